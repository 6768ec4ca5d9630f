"""From which tier a range of a shard is read, by the topic's policy. A table, nothing else.

Source: docs/design.md section 6; the four policies are those of RocketMQ's tiered storage.
"""

from __future__ import annotations

from enum import Enum, StrEnum


class ReadPolicy(StrEnum):
    """Same values as the setting `remote.read.policy`."""

    DISABLE = "Disable"
    NOT_IN_DISK = "NotInDisk"
    NOT_IN_MEMORY = "NotInMemory"
    FORCE = "Force"


class ReadFrom(Enum):
    """Where to look."""

    LOCAL = "page cache, else disk"
    COLD = "object store"
    MEMORY_THEN_COLD = "page cache, else object store"
    NOWHERE = "not readable under this policy"


def choose(policy: str, *, has_local: bool, is_in_store: bool) -> ReadFrom:
    """`is_in_store`: the range lies below the commit offset."""
    if not is_in_store:
        return ReadFrom.LOCAL if has_local else ReadFrom.NOWHERE
    if policy == ReadPolicy.FORCE:
        return ReadFrom.COLD
    if not has_local:
        return ReadFrom.NOWHERE if policy == ReadPolicy.DISABLE else ReadFrom.COLD
    return ReadFrom.MEMORY_THEN_COLD if policy == ReadPolicy.NOT_IN_MEMORY else ReadFrom.LOCAL
