"""What placement knows of a node's disk: how scarce room is, in four classes, so that the metadata seldom change, and
whether it makes progress at all.

Pure. A class is left only when the free share is past its border by `MARGIN_PERCENT`: a disk that fills and is freed
around a border changes nothing. What a class means to placement is in `placement`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

BORDERS_PERCENT: Final = (40, 20, 10)
"""Of the disk that is free: below each of them room is scarcer by one class."""
MARGIN_PERCENT: Final = 3
SCARCEST: Final = len(BORDERS_PERCENT)
LAST_CHOICE: Final = 32
"""Of a disk that makes no progress, in place of its class: any load of another node is better than a segment there."""


class HostDisk(Protocol):
    """As a node's record describes it."""

    @property
    def has_room(self) -> bool: ...

    @property
    def can_write(self) -> bool: ...

    @property
    def scarcity(self) -> int: ...


N = TypeVar("N", bound=HostDisk)


def with_good_disks(nodes: Sequence[N], wanted: int) -> Sequence[N]:
    """Those whose disks work and have room, or whose disks work, or all of them, when those are fewer than wanted."""
    working = [node for node in nodes if node.can_write]
    roomy = [node for node in working if node.has_room]
    return next((some for some in (roomy, working) if len(some) >= wanted), nodes)


def weight_class(node: HostDisk) -> int:
    """How much placement avoids the node for its disk: each class counts a segment double."""
    return node.scarcity if node.can_write else LAST_CHOICE


def scarcity_of(free_bytes: int, total_bytes: int, noted: int) -> int:
    """0 (plenty) to `SCARCEST`, beginning with what is noted; a disk of unknown size stays as it is noted."""
    if total_bytes <= 0:
        return noted
    worse = _class_of(free_bytes, total_bytes, MARGIN_PERCENT)
    better = _class_of(free_bytes, total_bytes, -MARGIN_PERCENT)
    return max(worse, min(better, noted))


def _class_of(free_bytes: int, total_bytes: int, given_percent: int) -> int:
    """As if so much more were free. Integers: the same on every machine."""
    return sum(free_bytes * 100 + given_percent * total_bytes < border * total_bytes for border in BORDERS_PERCENT)
