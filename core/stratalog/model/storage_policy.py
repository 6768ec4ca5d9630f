"""How a segment keeps its batches, and so what an acknowledgement promises.

Source: docs/design.md section 7, docs/direct-spec.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

STORAGE_POLICY: Final = "storage.policy"


class StoragePolicy(StrEnum):
    """Of a segment from its opening on; of a topic, how its next segments open. Closed."""

    REPLICATED = "Replicated"
    """On several nodes: acknowledged by the in-sync replicas, or by a majority."""
    DIRECT = "Direct"
    """On its leader alone: acknowledged once the object store has it."""


def next_policy(settings: Mapping[str, str]) -> StoragePolicy:
    """How the next segments of a topic with these settings open. What this release does not know, which a newer one
    wrote, is Replicated."""
    is_direct = settings.get(STORAGE_POLICY) == StoragePolicy.DIRECT
    return StoragePolicy.DIRECT if is_direct else StoragePolicy.REPLICATED
