"""The order in which the meta service learns of a shard's rolls, and what happens to the ended segments. One roll at a
time, oldest first: once all of the ended segment is on the disk and committed, the roll is reported; only then are
batches after it acknowledged. The segment is flushed as soon as its leader waits for no flush of its own, while its
followers fetch the rest of it. So no power cut takes back an end that the meta service knows, and no later segment is
known before an earlier one. The owner (`ShardChain`) reports what happened and asks what follows.
Source: docs/design.md section 10, "Roll".
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, assert_never

from stratalog.machines.leading.chain_events import (
    ChainEffect,
    ConfirmRoll,
    DropEmptySegment,
    EmptySegmentKept,
    FlushSegment,
    RollConfirmed,
    RollNews,
    SealSegment,
    SegmentFlushed,
    SegmentLeft,
)
from stratalog.machines.leading.leader_events import LeaderLife
from stratalog.machines.leading.segment_leader import SegmentLeader


class RollStep(Enum):
    """What is under way for the oldest roll that the meta service does not know. Closed."""

    NOTHING = "there is none"
    FLUSHING = "the ended segment is put on the disk"
    FLUSHED = "it waits for its followers"
    CONFIRMING = "the meta service learns of it"
    DROPPING = "the ended segment is empty, and goes"


ROLL_TRANSITIONS: Final[dict[RollStep, frozenset[RollStep]]] = {
    RollStep.NOTHING: frozenset((RollStep.FLUSHING,)),
    RollStep.FLUSHING: frozenset((RollStep.FLUSHED, RollStep.NOTHING)),
    RollStep.FLUSHED: frozenset((RollStep.CONFIRMING, RollStep.NOTHING)),
    RollStep.CONFIRMING: frozenset((RollStep.DROPPING, RollStep.NOTHING)),
    RollStep.DROPPING: frozenset((RollStep.NOTHING,)),
}
"""What each step may become. From every step a roll may end at once: others seal the segment, or the shard stops."""


class RollOrder:
    """Invariant: one step of one roll is under way."""

    __slots__ = ("_epoch", "_moving_epoch", "step")

    def __init__(self) -> None:
        self.step = RollStep.NOTHING
        self._moving_epoch = -1
        """The segment that another node continues after, until the meta service knows that it ended."""
        self._epoch = -1
        """Of the segment that ended with the roll."""

    def next_roll(self, ended: Sequence[SegmentLeader], active: SegmentLeader | None) -> list[ChainEffect]:
        """The next roll, if it may be told."""
        if self.step is RollStep.FLUSHED:
            return self._confirm(next((one for one in ended if one.key.epoch == self._epoch), None))
        if self.step is not RollStep.NOTHING:
            return []
        old = _oldest_unknown(ended, active) or next((e for e in ended if e.key.epoch == self._moving_epoch), None)
        if old is None or old.life is not LeaderLife.ENDED or old.durable_offset != old.end_offset:
            return []
        self.step, self._epoch = RollStep.FLUSHING, old.key.epoch
        return [FlushSegment(self._epoch)]

    def _confirm(self, old: SegmentLeader | None) -> list[ChainEffect]:
        if old is None or old.life is not LeaderLife.ENDED or not old.is_wholly_committed:
            return []
        self.step = RollStep.CONFIRMING
        return [ConfirmRoll(self._epoch, old.end_offset)]

    def moves(self, epoch: int) -> None:
        """Another node continues after that segment."""
        self._moving_epoch = epoch

    def handle(self, event: RollNews, old: SegmentLeader | None) -> list[ChainEffect] | None:
        """What follows for the segment that the event is about, `old` if it is still one of those that are not sealed.
        None: nothing new."""
        match event:
            case SegmentFlushed(epoch):
                if old is None or self.step is not RollStep.FLUSHING or epoch != self._epoch:
                    return None
                if old.life is not LeaderLife.ENDED:
                    return None
                self.step = RollStep.FLUSHED
                return self._confirm(old)
            case RollConfirmed(epoch, log_start_offset):
                if old is None or self.step is not RollStep.CONFIRMING or epoch != self._epoch:
                    return None
                return self._confirmed(old, log_start_offset)
            case EmptySegmentKept(epoch):
                self._leave(epoch)
                return [SealSegment(epoch)] if old is not None else None
            case SegmentLeft(epoch):
                self._leave(epoch)
                return []
            case _:
                assert_never(event)

    def _confirmed(self, old: SegmentLeader, log_start_offset: int) -> list[ChainEffect]:
        """An unclean start leaves an empty segment for each shard that is written to for the first time after it.
        Sealing, indexing and uploading an empty segment would be useless."""
        if self._epoch == self._moving_epoch:
            self._moving_epoch = -1
        base_offset = old.key.base_offset
        if old.end_offset > base_offset or log_start_offset < base_offset:
            self.step = RollStep.NOTHING
            return [SealSegment(self._epoch)]
        self.step = RollStep.DROPPING
        return [DropEmptySegment(self._epoch, base_offset)]

    def _leave(self, epoch: int) -> None:
        """That segment is finished here."""
        if epoch == self._epoch:
            self.step = RollStep.NOTHING


def _oldest_unknown(ended: Sequence[SegmentLeader], active: SegmentLeader | None) -> SegmentLeader | None:
    """The segment whose end the meta service does not know: the one behind it is not confirmed."""
    for old, new in zip(ended, [*ended[1:], active], strict=True):
        if new is not None and not new.is_confirmed:
            return old
    return None
