"""Batches in the log whose answers wait: acks=1 for the leader's mark, acks=all for the high watermark.

Two lines, each in offset order, so that a slow follower holds up only those who asked for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from stratalog.machines.segment_leader import OfferedBatch


class Waiting:
    """One batch in the log whose answer waits, without its bytes; `base_offset` is the original one when the batch
    repeats an earlier one."""

    __slots__ = ("base_offset", "batch", "end_offset")

    def __init__(self, end_offset: int, base_offset: int, batch: OfferedBatch) -> None:
        self.end_offset = end_offset
        self.base_offset = base_offset
        self.batch = batch
        # It is in the log: what waits is the answer. The bytes are a view that would keep a whole receive buffer.
        batch.payload = None


_NOBODY: deque[Waiting] = deque()
"""Stands for both lines of a shard that never had one: an empty deque takes 760 bytes. Never appended to."""


class WaitingLines:
    __slots__ = ("_for_all", "_for_leader")

    def __init__(self) -> None:
        self._for_leader = _NOBODY
        self._for_all = _NOBODY

    def __len__(self) -> int:
        return len(self._for_leader) + len(self._for_all)

    def append(self, waiting: Waiting) -> None:
        """A batch just written: nobody in line has a higher offset."""
        self._line_of(waiting).append(waiting)

    def insert(self, waiting: Waiting) -> None:
        """A repeated batch: it waits where its first copy waits."""
        line = self._line_of(waiting)
        at = len(line)
        while at > 0 and line[at - 1].end_offset > waiting.end_offset:
            at -= 1
        line.insert(at, waiting)

    def _line_of(self, waiting: Waiting) -> deque[Waiting]:
        if waiting.batch.acks == -1:
            if self._for_all is _NOBODY:
                self._for_all = deque()
            return self._for_all
        if self._for_leader is _NOBODY:
            self._for_leader = deque()
        return self._for_leader

    def take_reached(self, leader_mark: int, high_watermark: int) -> Iterator[Waiting]:
        """Those whose mark has passed them, in order."""
        line = self._for_leader
        while line and line[0].end_offset <= leader_mark:
            yield line.popleft()
        line = self._for_all
        while line and line[0].end_offset <= high_watermark:
            yield line.popleft()

    def take_above(self, end_offset: int) -> Iterator[Waiting]:
        """Those above an offset, which the log no longer reaches."""
        for line in (self._for_leader, self._for_all):
            while line and line[-1].end_offset > end_offset:
                yield line.pop()
