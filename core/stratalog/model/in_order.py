"""Looks for one segment among those of its shard, oldest first: a shard has one segment of each epoch, and thousands of
them. Cost: the logarithm of their number, less for the newest."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol, TypeVar

from stratalog.model.ids import SegmentKey


class Keyed(Protocol):
    """A segment, or whatever stands for one."""

    @property
    def key(self) -> SegmentKey: ...


_K = TypeVar("_K", bound=Keyed)


def place_of(ordered: Sequence[Keyed], epoch: int) -> int:
    """Index of the first whose epoch is at or above `epoch`."""
    if ordered and ordered[-1].key.epoch == epoch:
        return len(ordered) - 1
    return bisect_left(ordered, epoch, key=_epoch_of)


def find(ordered: Sequence[_K], key: SegmentKey) -> _K | None:
    place = place_of(ordered, key.epoch)
    return ordered[place] if place < len(ordered) and ordered[place].key == key else None


def _epoch_of(one: Keyed) -> int:
    return one.key.epoch
