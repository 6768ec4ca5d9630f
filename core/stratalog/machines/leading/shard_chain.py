"""One shard's consecutive segments on the node that leads it: which one takes batches, when the next is opened, up to
where readers are served, which producers are answered, in which order the meta service learns of rolls, and when the
shard stops.

Plain data in, plain data out (`machines/leading/chain_events.py`). Step it once per shard and loop turn with everything
that came. Each leader decides about its own segment (`machines/leading/segment_leader.py`); rolls are confirmed in the
order of `machines/leading/roll_order.py`. An effect that asks for an answer at once (`PersistBatches`, `NameActive`,
`OpenSegment`) is the last of its step, and what follows from it is asked for in the answer's step: so no shell gets the
order wrong. Cost: as the active leader's, and about 0.5 us a step. Source: docs/design.md sections 3 and 10.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, assert_never

from stratalog.machines.leading.append_refusals import AppendRefusals
from stratalog.machines.leading.chain_events import (
    AcknowledgeBatches,
    ActiveNamed,
    ActiveUnknown,
    AppendFailed,
    BatchesRefusedBefore,
    BatchesTurnedAway,
    ChainEffect,
    ChainEvent,
    DoubtCopy,
    EmptySegmentKept,
    HandOver,
    LeadershipChecked,
    LeaveSegment,
    NameActive,
    NameSuccessor,
    NotifyReaders,
    OpeningFailed,
    OpenSegment,
    PrepareSuccessorOf,
    ProposeIsrOf,
    RefuseBatches,
    RollConfirmed,
    RollNews,
    SealSegment,
    SegmentEventReceived,
    SegmentFlushed,
    SegmentFlushFailed,
    SegmentLeft,
    SegmentOpened,
    ServiceBegun,
    ShardRecovered,
    ShardStopped,
    SuccessorNamed,
    SuccessorUnknown,
)
from stratalog.machines.leading.leader_events import (
    Acknowledge,
    AnswerDuplicate,
    BatchesPersisted,
    BatchesReceived,
    BatchesWritten,
    FlushFailed,
    LagChecked,
    LeaderEffect,
    NodeUpdated,
    OfferedBatch,
    OpeningConfirmed,
    PersistBatches,
    PersistFailed,
    PolicyChanged,
    PrepareSuccessor,
    ProposeIsr,
    RecordReceived,
    RefuseBatch,
    RollFailed,
    RollPolicy,
    RollPutOff,
    RollRequested,
    RollSegment,
    SegmentRecord,
    StopLeading,
    SuccessorOpened,
    TimePassed,
)
from stratalog.machines.leading.next_segment import (
    NotYet,
    begin_listed,
    begin_prepared,
    is_elsewhere,
    is_settled_behind,
)
from stratalog.machines.leading.roll_order import RollOrder
from stratalog.machines.leading.segment_leader import SegmentLeader
from stratalog.machines.leading.shard_life import Life, Stop, StopCause
from stratalog.machines.leading.waiting_batches import WaitingBatches
from stratalog.model.append import AppendFailure
from stratalog.model.ids import ShardKey
from stratalog.model.segment import Segment

_Effects: TypeAlias = list[ChainEffect]


class ShardChain:
    """Requires: an effect that wants its answer at once gets it before any other event.

    Invariant: each segment begins where the one before it ends, its epoch one higher; only the last takes batches.
    Invariant: the high watermark never falls, and passes a segment's end only when all of it is committed and the meta
    service knows that it ended there.
    Invariant: a batch is answered once: acknowledged, refused, or unknown.
    """

    __slots__ = (
        "_in_flight",
        "_left_epoch",
        "_opening",
        "_order",
        "_refusals",
        "_rest",
        "_roll",
        "_waiting",
        "active",
        "doubted_epoch",
        "ended",
        "high_watermark",
        "key",
        "led_since_epoch",
        "life",
        "node_id",
        "policy",
        "stop",
    )

    def __init__(
        self, key: ShardKey, node_id: int, policy: RollPolicy, *, high_watermark: int = 0, led_since_epoch: int = 0
    ) -> None:
        self.key = key
        self.node_id = node_id
        self.policy = policy
        self.high_watermark = high_watermark
        self.led_since_epoch = led_since_epoch
        """Every epoch from here on was led by this node in this life, so its log was never truncated since."""
        self.life = Life.UNOPENED
        self.stop: Stop | None = None
        """Set while it is HEALING or STOPPED."""
        self.active: SegmentLeader | None = None
        self.ended: tuple[SegmentLeader, ...] = ()
        """Not sealed yet, oldest first."""
        self.doubted_epoch = -1
        """The epoch that was active before an unclean start, and takes no batches."""
        self._left_epoch = -1  # behind it another node went on: the list may not say so yet
        self._order: RollOrder | None = None
        self._refusals: AppendRefusals | None = None
        self._waiting: WaitingBatches | None = None
        self._in_flight: list[OfferedBatch] | None = None
        self._roll: RollSegment | None = None
        self._opening: SegmentLeader | None = None
        self._rest: list[OfferedBatch] | None = None

    @classmethod
    def begin(cls, key: ShardKey, node_id: int, policy: RollPolicy, newest: Segment | None) -> ShardChain:
        """Of a shard of which this life has opened nothing. `newest`: the newest segment in the metadata."""
        if newest is None:
            return cls(key, node_id, policy)
        return cls(key, node_id, policy, high_watermark=newest.base_offset, led_since_epoch=newest.epoch)

    def after_resigning(self, policy: RollPolicy, listed: Segment | None) -> ShardChain:
        """Of a shard whose segments other nodes seal: it may lead again what a later record names. `listed`: the active
        segment in the metadata."""
        led_since_epoch = 0 if listed is None else listed.epoch + 1
        mark = self.high_watermark
        return ShardChain(self.key, self.node_id, policy, high_watermark=mark, led_since_epoch=led_since_epoch)

    def learn_committed(self, newest: Segment) -> bool:
        """The metadata list this segment as the newest: what lies below its base, and below its end once it has one,
        cannot be taken back. A leader's own mark is never lower than this; while an ended segment waits for its seal
        here, only what lies before the newest one counts. Returns whether the high watermark rose."""
        if self.active is not None:
            return False
        known = newest.base_offset if newest.end_offset is None or self.ended else newest.end_offset
        if known <= self.high_watermark:
            return False
        self.high_watermark = known
        return True

    def leads(self, epoch: int) -> bool:
        """Whether `SegmentEventReceived` of this epoch can change anything."""
        return self._leader_of(epoch) is not None

    @property
    def leads_nothing(self) -> bool:
        """`NodeUpdated` changes nothing then."""
        return not self._led

    # What happens -------------------------------------------------------------------------------------------------
    def step(self, event: ChainEvent, now_ms: int) -> _Effects:
        match event:
            case SegmentEventReceived(epoch, news):  # what followers confirm comes as often as batches do
                leader = self._leader_of(epoch)
                if leader is not None and type(news) is RecordReceived and is_elsewhere(leader, news.record, self.stop):
                    return self._superseded(leader, news.record, now_ms)
                return self._follow(leader, leader.step(news, now_ms), now_ms) if leader is not None else []
            case BatchesReceived():
                active = self.active
                if active is None or self.life is not Life.SERVING:
                    return self._receive_closed(event.batches, now_ms)
                if (refusals := self._refusals) is not None and refusals.owed:
                    due, refused = refusals.sort_out(event.batches, active, now_ms)
                    effects = active.step(BatchesReceived(due), now_ms) if due else []
                    return [*refused, *self._sort_out(effects, now_ms)]
                effects = active.step(event, now_ms)
                if len(effects) == 1 and type(only := effects[0]) is PersistBatches:
                    self._in_flight = only.batches
                    return [only]
                return self._sort_out(effects, now_ms)
            case BatchesPersisted():
                return self._persisted(event, now_ms)
            case BatchesTurnedAway(batches, message):
                return self._refuse(batches, AppendFailure.NO_ROOM, message, now_ms)
            case BatchesRefusedBefore(batches):
                self._begin_refusals().owed.refused(batches, now_ms)
                return []
            case BatchesWritten():
                return self._written(event, now_ms)
            case AppendFailed(why, message):
                return self._append_failed(why, message, now_ms)
            case ActiveNamed() | ActiveUnknown():
                return self._named(event, now_ms)
            case SuccessorNamed() | SuccessorUnknown():
                return self._successor(event, now_ms)
            case SegmentOpened():
                return self._opened(now_ms)
            case OpeningFailed(why, message):
                return self._opening_failed(why, message, now_ms)
            case RollRequested() | TimePassed():
                late = self._tell_led(LagChecked(event.steady_ms), now_ms) if isinstance(event, TimePassed) else []
                if self.active is None or self.life is not Life.SERVING:
                    return late
                return [*late, *self._sort_out(self.active.step(event, now_ms), now_ms)]
            case NodeUpdated():
                return self._tell_led(event, now_ms)
            case SegmentFlushed() | RollConfirmed() | EmptySegmentKept() | SegmentLeft():
                return self._move_on(event, now_ms)
            case SegmentFlushFailed(epoch, reason):
                if (leader := self._leader_of(epoch)) is None:
                    return [DoubtCopy(epoch, reason)]  # others seal it by now, and this node may lead again
                leader.step(FlushFailed(), now_ms)
                return [DoubtCopy(epoch, reason), *self._stop(Stop(reason, StopCause.FLUSH_FAILED), now_ms)]
            case ShardStopped(stop):
                return self._stop(stop, now_ms)
            case PolicyChanged(policy):
                self.policy = policy
                for leader in self._led:
                    leader.step(event, now_ms)
                return []
            case ShardRecovered():
                return self._recovered(event)
            case LeadershipChecked():
                return self._refusals.leadership_checked(event) if self._refusals else []
            case ServiceBegun(owed_seals):
                return [*(SealSegment(epoch) for epoch in owed_seals), *self._next_roll()]
            case _:
                assert_never(event)

    # Batches ------------------------------------------------------------------------------------------------------
    def _receive_closed(self, batches: list[OfferedBatch], now_ms: int) -> _Effects:
        if self.stop is not None:
            return self._refuse(batches, self.stop.failure, self.stop.reason, now_ms)
        self._rest = batches
        return [NameActive()]

    def _refuse(self, batches: Sequence[OfferedBatch], why: AppendFailure, message: str, now_ms: int) -> _Effects:
        return self._begin_refusals().refuse(batches, why, message, now_ms) if batches else []

    def _begin_refusals(self) -> AppendRefusals:
        self._refusals = self._refusals or AppendRefusals()
        return self._refusals

    def _sort_out(self, effects: list[LeaderEffect], now_ms: int) -> _Effects:
        """What the active leader asked for, one thing that is answered at once at a time."""
        found: _Effects = []
        repeated: list[OfferedBatch] = []
        faults: list[RefuseBatch] = []
        persist: PersistBatches | None = None
        for effect in effects:
            match effect:
                case PersistBatches():
                    persist = effect
                case RefuseBatch(batch, why):
                    if isinstance(why, AppendFailure):
                        found += self._refuse([batch], why, why.value, now_ms)
                    else:
                        faults.append(effect)
                case AnswerDuplicate(batch, duplicate):
                    batch.base_offset = duplicate.base_offset
                    repeated.append(batch)
                case RollSegment():
                    self._roll = effect
                case PrepareSuccessor(epoch):
                    found.append(PrepareSuccessorOf(epoch))
                case Acknowledge() | ProposeIsr() | StopLeading():
                    raise AssertionError(f"{effect} follows from no batch")
                case _:
                    assert_never(effect)
        if repeated:
            self._waiting = self._waiting or WaitingBatches()
            self._waiting.repeat(repeated)
        if faults and self.active is not None:
            found += self._begin_refusals().faults(faults, self.active)
        if persist is not None:
            self._in_flight = persist.batches
            return [*found, persist]
        return [*found, *self._queue([]), *self._begin_roll()]

    def _persisted(self, event: BatchesPersisted, now_ms: int) -> _Effects:
        active, batches = self.active, self._in_flight
        assert active is not None and batches is not None, "nothing was being written"
        self._in_flight = None
        effects = active.step(event, now_ms)
        if effects and self._roll is None and not (self.ended or self._waiting):
            mark = effects[0]
            if type(mark) is Acknowledge and mark.high_watermark == event.end_offset:
                # The common case: written is committed, and no request waits in line.
                self.high_watermark = event.end_offset
                return [AcknowledgeBatches(active.key.epoch, event.end_offset, batches)]
        return [*self._queue(batches), *self._follow(active, effects, now_ms), *self._begin_roll()]

    def _written(self, event: BatchesWritten, now_ms: int) -> _Effects:
        active, batches = self.active, self._in_flight
        assert active is not None and batches is not None, "nothing was being written"
        self._in_flight = None
        active.step(event, now_ms)
        return [*self._queue(batches), *self._begin_roll()]

    def _append_failed(self, why: AppendFailure, message: str, now_ms: int) -> _Effects:
        """What repeats, in its turn, what was not written shares its fate; what would have followed was never tried."""
        active, batches = self.active, self._in_flight
        assert active is not None and batches is not None, "nothing was being written"
        active.step(PersistFailed(), now_ms)
        lost = self._waiting.forget_repeated_above(active.end_offset) if self._waiting else []
        roll, self._roll, self._in_flight = self._roll, None, None
        effects = self._refuse([*batches, *lost], why, message, now_ms)
        if roll is not None:
            why, message = AppendFailure.WRITE_FAILED, "the write before this one failed"
            effects += self._refuse(roll.remaining, why, message, now_ms)
        return [*effects, *self._queue([])]

    def _queue(self, batches: list[OfferedBatch]) -> _Effects:
        """These are in the log now, and the repetitions of the turn were before: they wait for their marks."""
        waiting = self._waiting
        if waiting is None:
            if not batches:
                return []
            waiting = self._waiting = WaitingBatches()
        at_once = waiting.queue(batches, self.high_watermark)
        assert self.active is not None
        return [AcknowledgeBatches(self.active.key.epoch, self.high_watermark, at_once)] if at_once else []

    def _follow(self, leader: SegmentLeader, effects: list[LeaderEffect], now_ms: int) -> _Effects:
        """What came of news about one segment."""
        found: _Effects = []
        for effect in effects:
            match effect:
                case Acknowledge(leader_mark, high_watermark):
                    found += self._acknowledge(leader, leader_mark, high_watermark)
                case ProposeIsr():
                    found.append(ProposeIsrOf(leader.key.epoch, effect))
                case StopLeading() if self.stop is None and is_settled_behind(self._leader_of(leader.key.epoch + 1)):
                    left = leader.key.epoch
                    found += [LeaveSegment(left), *self._move_on(SegmentLeft(left), now_ms)]
                case StopLeading():
                    found += self._stop(Stop("fenced by the meta service", StopCause.DEPOSED), now_ms)
                case PersistBatches() | RefuseBatch() | AnswerDuplicate() | RollSegment() | PrepareSuccessor():
                    raise AssertionError(f"{effect} follows from batches alone")
                case _:
                    assert_never(effect)
        return found

    def _acknowledge(self, leader: SegmentLeader, leader_mark: int, high_watermark: int) -> _Effects:
        if self.stop is not None and self.stop.ends_leading:
            return []
        # Of a later segment nothing is heard before its roll was confirmed, which waits for all of the earlier ones.
        batches = self._waiting.take_reached(leader_mark, high_watermark) if self._waiting else []
        found: _Effects = []
        if batches and leader.lacks_replicas and (lacking := [batch for batch in batches if batch.acks == -1]):
            why = AppendFailure.NOT_ENOUGH_REPLICAS_LEFT
            found.append(RefuseBatches(lacking, why, why.value))
            batches = [batch for batch in batches if batch.acks != -1]
        if batches or high_watermark > self.high_watermark:
            self.high_watermark = max(self.high_watermark, high_watermark)
            found.append(AcknowledgeBatches(leader.key.epoch, high_watermark, batches))
        if leader is not self.active:
            found += self._next_roll()
        return found

    def _tell_led(self, event: LagChecked | NodeUpdated, now_ms: int) -> _Effects:
        led = self._led if self.stop is None else ()
        return [effect for leader in led for effect in self._follow(leader, leader.step(event, now_ms), now_ms)]

    # Segments -----------------------------------------------------------------------------------------------------
    def _named(self, event: ActiveNamed | ActiveUnknown, now_ms: int) -> _Effects:
        newest_ended = max(self._left_epoch, self.ended[-1].key.epoch if self.ended else -1)
        found = begin_listed(event, self.node_id, self.policy, newest_ended, self.doubted_epoch)
        if isinstance(found, NotYet):
            return self._refuse_rest(found.why, found.message, now_ms)
        self._opening = found
        return [OpenSegment(found, is_roll=False)]

    def _begin_roll(self) -> _Effects:
        return [NameSuccessor(self.active.key.epoch)] if self._roll is not None and self.active is not None else []

    def _successor(self, event: SuccessorNamed | SuccessorUnknown, now_ms: int) -> _Effects:
        """Continue in the next file at once; the meta service confirms in the background (docs/design.md section 10).
        While it cannot confirm soon, continue in the same file, because batches after an unconfirmed roll are not
        acknowledged."""
        roll, self._roll, old = self._roll, None, self.active
        assert old is not None and roll is not None, "no segment was ending"
        if isinstance(event, SuccessorUnknown):
            prepare = PrepareSuccessorOf(old.key.epoch)
            return [prepare, *self._sort_out(old.step(RollPutOff(roll.remaining), now_ms), now_ms)]
        if event.leader != self.node_id:
            return self._hand_over(old, roll, now_ms)
        self._rest = roll.remaining
        self._opening = begin_prepared(old, roll.end_offset, event, self.policy)
        return [OpenSegment(self._opening, is_roll=True)]

    def _hand_over(self, old: SegmentLeader, roll: RollSegment, now_ms: int) -> _Effects:
        old.step(SuccessorOpened(old.producers.snapshot()), now_ms)
        self.ended = (*self.ended, old)
        self._order = self._order or RollOrder()
        self._order.moves(old.key.epoch)
        return [
            *self._leave_to_another(old.key.epoch, roll.remaining, AppendFailure.MOVING, now_ms),
            *self._next_roll(),
        ]

    def _superseded(self, successor: SegmentLeader, record: SegmentRecord, now_ms: int) -> _Effects:
        """Data after the end were never acknowledged. If no successor was named, the segment may be followed."""
        self.ended = tuple(leader for leader in self.ended if leader.key.epoch < successor.key.epoch)
        written = self._waiting.take_above(successor.key.base_offset) if self._waiting else []
        why = AppendFailure.OUTCOME_UNKNOWN if record.leader is None else AppendFailure.MOVING
        return self._leave_to_another(successor.key.epoch - 1, written, why, now_ms)

    def _leave_to_another(self, epoch: int, batches: list[OfferedBatch], why: AppendFailure, now_ms: int) -> _Effects:
        self.life, self.active, self._left_epoch = Life.MOVED, None, epoch
        doubted = self._refusals.end(AppendFailure.MOVING, why.value) if self._refusals else []
        return [HandOver(epoch), *doubted, *self._refuse(batches, why, why.value, now_ms)]

    def _opened(self, now_ms: int) -> _Effects:
        old, self.active, self._opening = self.active, self._opening, None
        assert self.active is not None, "no segment was being opened"
        found: _Effects = []
        if old is not None:
            old.step(SuccessorOpened(old.producers.snapshot()), now_ms)
            self.ended = (*self.ended, old)
            found += self._next_roll()
        else:  # another may have led before; all of that is committed
            self.high_watermark = max(self.high_watermark, self.active.high_watermark)
            self.led_since_epoch = max(self.led_since_epoch, self.active.key.epoch)
        self.life = Life.SERVING
        rest, self._rest = self._rest, None
        return [*found, *self.step(BatchesReceived(rest), now_ms)] if rest else found

    def _opening_failed(self, why: AppendFailure, message: str, now_ms: int) -> _Effects:
        self._opening = None
        if self.active is not None:
            self.active.step(RollFailed(), now_ms)
        return self._refuse_rest(why, message, now_ms)

    def _refuse_rest(self, why: AppendFailure, message: str, now_ms: int) -> _Effects:
        rest, self._rest = self._rest or (), None
        return self._refuse(rest, why, message, now_ms)

    def _move_on(self, event: RollNews, now_ms: int) -> _Effects:
        order = self._order or RollOrder()
        effects = order.handle(event, self._leader_of(event.epoch))
        if effects is None:
            return []
        of_ended: _Effects = []
        if isinstance(event, RollConfirmed):
            of_ended = self._ended(event.epoch, event.opened, now_ms)
        elif isinstance(event, SegmentLeft):
            self.ended = tuple(leader for leader in self.ended if leader.key.epoch != event.epoch)
            of_ended = self._ended(event.epoch, None, now_ms)  # the answer to its roll may be still to come
        return [*of_ended, *effects, *self._next_roll()]

    def _ended(self, epoch: int, opened: SegmentRecord | None, now_ms: int) -> _Effects:
        successor = self._leader_of(epoch + 1)
        if successor is None or successor.is_confirmed:
            return []
        if opened is not None and is_elsewhere(successor, opened, self.stop):
            return self._superseded(successor, opened, now_ms)
        return self._follow(successor, successor.step(OpeningConfirmed(opened), now_ms), now_ms)

    def _next_roll(self) -> _Effects:
        if not self.ended or (self.stop is not None and (self.stop.hides_end or self.stop.ends_leading)):
            return []
        self._order = self._order or RollOrder()
        return self._order.next_roll(self.ended, self.active)

    @property
    def _led(self) -> Sequence[SegmentLeader]:
        return self.ended if self.active is None else (*self.ended, self.active)

    def _leader_of(self, epoch: int) -> SegmentLeader | None:
        led = (self.active, *self.ended)
        return next((leader for leader in led if leader is not None and leader.key.epoch == epoch), None)

    # Life ---------------------------------------------------------------------------------------------------------
    def _recovered(self, event: ShardRecovered) -> _Effects:
        self.ended, self.active = event.ended, event.active
        self.high_watermark = max(self.high_watermark, event.high_watermark)
        self._order, self.doubted_epoch, self.stop = None, event.doubted_epoch, event.stop
        self.life = event.stop.life if event.stop else Life.SERVING if event.active is not None else Life.UNOPENED
        return []

    def _stop(self, stop: Stop, now_ms: int) -> _Effects:
        before = self.stop
        if before is not None and before.outweighs(stop):
            return []
        self.stop, self.life = stop, stop.life
        self._in_flight = self._opening = self._roll = self._rest = None
        waiting = self._waiting.take_all() if self._waiting else ()
        found = self._refuse(waiting, AppendFailure.OUTCOME_UNKNOWN, stop.reason, now_ms)
        found += self._refusals.end(stop.failure, stop.reason) if self._refusals else []
        if before is None or before.cause is not stop.cause:
            found.append(NotifyReaders())
        if stop.cause is StopCause.DELETED:
            self.active, self.ended = None, ()
        return found

    # What others ask ----------------------------------------------------------------------------------------------
    @property
    def waiting_count(self) -> int:
        return len(self._waiting or ()) + (self._refusals.waiting_count if self._refusals else 0)

    @property
    def is_end_known(self) -> bool:
        """False: only the known part of it is served; a client that asks for the end, or beyond, must ask again
        (F40)."""
        return self.stop is None or not self.stop.hides_end

    @property
    def end_offset(self) -> int:
        return max([self.high_watermark, *(leader.end_offset for leader in self._led)])

    def compare_epoch(self, epoch: int, listed_epoch: int) -> int:
        """-1: a client with this epoch has stale metadata; 1: it knows more than we do; 0: serve it. `listed_epoch` is
        that of the listed active segment; every roll raises the epoch, so one that this node led too is good enough."""
        newest = self.active.key.epoch if self.active is not None else listed_epoch
        return 1 if epoch > newest else 0 if epoch >= self.led_since_epoch else -1
