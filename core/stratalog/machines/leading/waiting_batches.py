"""Batches in the log whose answers wait: acks=1 for the leader's mark, acks=all for the high watermark.

Two lines, each in offset order, so that a slow follower holds up only those who asked for it. What waits is the answer:
whoever puts a batch in line has no use for its bytes any more. A repetition, which is in the log already, waits where
its original does; those of a running turn stand aside until it is known what of the turn was written.
"""

from __future__ import annotations

from collections import deque

from stratalog.machines.leading.leader_events import OfferedBatch

_NOBODY: deque[OfferedBatch] = deque()
"""Stands for both lines of a shard that never had one: an empty deque takes 760 bytes. Never appended to."""


class WaitingBatches:
    __slots__ = ("_for_all", "_for_leader", "_repeated")

    def __init__(self) -> None:
        self._for_leader = _NOBODY
        self._for_all = _NOBODY
        self._repeated: tuple[OfferedBatch, ...] = ()

    def __len__(self) -> int:
        return len(self._for_leader) + len(self._for_all) + len(self._repeated)

    def repeat(self, repeated: list[OfferedBatch]) -> None:
        """Of the running turn, in the log already or being written."""
        self._repeated = tuple(repeated)

    def forget_repeated_above(self, end_offset: int) -> list[OfferedBatch]:
        """What the log reaches no further than was not written: these share its fate."""
        lost = [batch for batch in self._repeated if batch.end_offset > end_offset]
        self._repeated = tuple(batch for batch in self._repeated if batch.end_offset <= end_offset)
        return lost

    def queue(self, written: list[OfferedBatch], high_watermark: int) -> list[OfferedBatch]:
        """The turn's batches are in the log. Returns those to answer at once; all others wait for their marks."""
        at_once = []
        for batch in written:
            if batch.acks:
                self.append(batch)
            else:
                at_once.append(batch)
        repeated, self._repeated = self._repeated, ()
        for batch in repeated:
            if batch.acks == 0 or batch.end_offset <= high_watermark:
                at_once.append(batch)
            else:
                # In the log but not committed yet: a repetition is not acknowledged before its original (F54).
                self.insert(batch)
        return at_once

    def append(self, batch: OfferedBatch) -> None:
        """A batch that was just written: no waiting one has a higher offset."""
        # The bytes are a view that would keep a whole receive buffer.
        batch.payload = None
        self._queue_of(batch).append(batch)

    def insert(self, batch: OfferedBatch) -> None:
        """One that repeats an earlier one, whose offsets it has: it waits where that one waits."""
        batch.payload = None
        line = self._queue_of(batch)
        at = len(line)
        while at > 0 and line[at - 1].end_offset > batch.end_offset:
            at -= 1
        line.insert(at, batch)

    def _queue_of(self, batch: OfferedBatch) -> deque[OfferedBatch]:
        if batch.acks == -1:
            if self._for_all is _NOBODY:
                self._for_all = deque()
            return self._for_all
        if self._for_leader is _NOBODY:
            self._for_leader = deque()
        return self._for_leader

    def take_reached(self, leader_mark: int, high_watermark: int) -> list[OfferedBatch]:
        """Those whose mark has passed them, in order."""
        taken = []
        line = self._for_leader
        while line and line[0].end_offset <= leader_mark:
            taken.append(line.popleft())
        line = self._for_all
        while line and line[0].end_offset <= high_watermark:
            taken.append(line.popleft())
        return taken

    def take_above(self, end_offset: int) -> list[OfferedBatch]:
        """Those above an offset, which the log no longer reaches, in order."""
        taken: list[OfferedBatch] = []
        for line in (self._for_leader, self._for_all):
            above = len(taken)
            while line and line[-1].end_offset > end_offset:
                taken.append(line.pop())
            taken[above:] = reversed(taken[above:])
        return taken

    def take_all(self) -> list[OfferedBatch]:
        """All that wait, in order. Repetitions of the running turn are its own to answer."""
        self._repeated = ()
        return self.take_above(-1)
