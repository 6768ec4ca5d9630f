"""In which order the meta service hears of a shard's rolls, and what becomes of the ended segments.

One roll at a time, oldest first: all of the ended segment is committed, then on the disk, then told; only then is what
follows it acknowledged. So no power cut takes back an end that the meta service knows, and no later segment is known
before an earlier one. Whoever holds the rolls (`ShardChain`) says what happened and asks what follows.
Source: docs/design.md section 10, "Roll".
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from stratalog.machines.chain_events import ChainEffect, ConfirmRoll, DropEmptySegment, FlushSegment, SealSegment
from stratalog.machines.leader_events import LeaderLife
from stratalog.machines.segment_leader import SegmentLeader


class RollStep(Enum):
    """What is under way for the oldest roll that the meta service does not know. Closed."""

    NOTHING = "it waits for its followers, or there is none"
    FLUSHING = "the ended segment is put on the disk"
    CONFIRMING = "the meta service is told"
    DROPPING = "the ended segment is empty, and goes"


class RollOrder:
    """Invariant: one step of one roll is under way."""

    __slots__ = ("_epoch", "step")

    def __init__(self) -> None:
        self.step = RollStep.NOTHING
        self._epoch = -1
        """Of the segment that ended with the roll."""

    def go_on(self, ended: Sequence[SegmentLeader], active: SegmentLeader | None) -> list[ChainEffect]:
        """The next roll, if it may be told."""
        if self.step is not RollStep.NOTHING:
            return []
        old = _oldest_unknown(ended, active)
        if old is None or old.life is not LeaderLife.ENDED or not old.is_wholly_committed:
            return []
        self.step, self._epoch = RollStep.FLUSHING, old.key.epoch
        return [FlushSegment(self._epoch)]

    def flushed(self, old: SegmentLeader) -> list[ChainEffect]:
        if self.step is not RollStep.FLUSHING or old.key.epoch != self._epoch or old.life is not LeaderLife.ENDED:
            return []
        self.step = RollStep.CONFIRMING
        return [ConfirmRoll(self._epoch, old.end_offset)]

    def is_confirming(self, epoch: int) -> bool:
        return self.step is RollStep.CONFIRMING and epoch == self._epoch

    def confirmed(self, old: SegmentLeader, log_start_offset: int) -> list[ChainEffect]:
        """An unclean start leaves an empty segment of each shard that is written to for the first time after it: a
        seal, an index and a manifest of nothing help nobody."""
        base_offset = old.key.base_offset
        if old.end_offset > base_offset or log_start_offset < base_offset:
            self.step = RollStep.NOTHING
            return [SealSegment(self._epoch)]
        self.step = RollStep.DROPPING
        return [DropEmptySegment(self._epoch, base_offset)]

    def left(self, epoch: int) -> None:
        """That segment is no concern any more."""
        if epoch == self._epoch:
            self.step = RollStep.NOTHING


def _oldest_unknown(ended: Sequence[SegmentLeader], active: SegmentLeader | None) -> SegmentLeader | None:
    """The segment whose end the meta service does not know: the one behind it is not confirmed."""
    for old, new in zip(ended, [*ended[1:], active], strict=True):
        if new is not None and not new.is_confirmed:
            return old
    return None
