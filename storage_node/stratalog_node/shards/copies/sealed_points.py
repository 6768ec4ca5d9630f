"""Keeps the index points of sealed copies in memory, up to a limit over all shards (decision 0002).

Above the limit the least recently read copy loses its points; the next read of it loads its index block, on a disk
thread. The most recently read copy always keeps its points, because a copy whose points exceed the limit could
otherwise only be read slowly.
A read fetches its points once and keeps using them, even if they are dropped here meanwhile.
Lives on the event loop. Cost: nothing for active segments, one move in an ordered dict per read of a sealed copy.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from stratalog.formats.segments.index_points import POINT_BYTES, IndexPoints
from stratalog.telemetry.metrics import counter, gauge
from stratalog_node.disk.threads import DiskThreads
from stratalog_node.shards.copies.local_copy import LocalCopy
from stratalog_node.shards.copies.sealed import SealedCopy

T = TypeVar("T")

_COPY_BYTES = 256
"""What a copy's points take beside the points: objects, and the place in here."""


@dataclass(slots=True)
class IndexStats:
    held_bytes: int = gauge("Bytes of sealed segments' index points in memory.")
    loads: int = counter("Times a read had to wait for a sealed segment's index points.")
    drops: int = counter("Times a sealed segment's index points gave way to others.")


class SealedPoints:
    """Invariant: a sealed copy has points if and only if it is held here; `held_bytes` is the sum over them."""

    def __init__(self, threads: DiskThreads, limit_bytes: int) -> None:
        self.stats = IndexStats()
        self._threads = threads
        self._limit_bytes = limit_bytes
        self._held: OrderedDict[SealedCopy, int] = OrderedDict()
        """Least recently read first."""

    def touch(self, copy: SealedCopy) -> None:
        """A copy that is held is being read, without `read`."""
        self._held.move_to_end(copy)

    async def read(self, copy: LocalCopy, work: Callable[[IndexPoints], T]) -> T:
        """Do the work with the copy's points on a disk thread, which first reads them when they are not in memory."""
        return await self._with(copy, copy.points, _load, work)

    async def read_in_time(self, copy: LocalCopy, work: Callable[[IndexPoints], T]) -> T:
        """The same with points of a sealed copy that have true times."""
        points = copy.points if copy.points is not None and copy.points.has_true_times else None
        return await self._with(copy, points, _load_in_time, work)

    async def _with(
        self,
        copy: LocalCopy,
        points: IndexPoints | None,
        load: Callable[[LocalCopy], IndexPoints],
        work: Callable[[IndexPoints], T],
    ) -> T:
        if points is None:
            self.stats.loads += 1

        # One visit to the thread, so that the file stays pinned from the first byte to the last.
        def load_and_work() -> tuple[IndexPoints, T]:
            found = points if points is not None else load(copy)
            return found, work(found)

        found, done = await self._threads.read_file(copy.file, load_and_work)
        if isinstance(copy, SealedCopy) and not copy.file.closes_when_unused:  # else its points would never be dropped
            self.hold(copy, found)
        return done

    def hold(self, copy: SealedCopy, points: IndexPoints) -> None:
        """Keep them, as the points of the copy read last."""
        self.forget(copy)
        copy.points = points
        size_bytes = _COPY_BYTES + POINT_BYTES * len(points)
        self._held[copy] = size_bytes
        self.stats.held_bytes += size_bytes
        while self.stats.held_bytes > self._limit_bytes and len(self._held) > 1:
            self.forget(next(iter(self._held)))
            self.stats.drops += 1

    def forget(self, copy: LocalCopy) -> None:
        """The copy goes, or gives way."""
        if isinstance(copy, SealedCopy):
            self.stats.held_bytes -= self._held.pop(copy, 0)
            copy.points = None


def _load(copy: LocalCopy) -> IndexPoints:
    """Blocking. Of many readers that wait for the same copy only the first few read it."""
    points = copy.points
    if points is None:
        assert isinstance(copy, SealedCopy), "an active segment's points are always in memory"
        points = copy.read_points()
    return points


def _load_in_time(copy: LocalCopy) -> IndexPoints:
    """Blocking."""
    points = copy.points
    if points is None or not points.has_true_times:
        assert isinstance(copy, SealedCopy), "whoever looks at another copy by time knows where its times come from"
        points = copy.read_points_in_time()
    return points
