"""A replica of one segment that does not lead it: takes checked ranges from the nodes that the record names, promises
fences, and proves its copy once the end is known. Plain data in, plain data out
(`machines/following/follower_events.py`). The source and the offset of the next fetch follow from the state, and an
effect names them when they change: fetching at an offset confirms everything below. Reports to the meta service rest on
records alone, so an event that is repeated, or comes too late, changes nothing.
Cost: about 2 us a step; a step per range, never per batch.
Source: docs/replication.md sections 4 to 6.
"""

from __future__ import annotations

from typing import assert_never

from stratalog.machines.following.copy_sources import fills_it, source_identity, sources_of
from stratalog.machines.following.follower_events import (
    AppendFailed,
    AppendRange,
    Ask,
    CheckedRange,
    CopyDamaged,
    CopyFilled,
    CopyProven,
    CutFailed,
    CutTail,
    DataFlushed,
    DropCopy,
    FillCopy,
    FlushData,
    FlushLost,
    FlushPolicyChanged,
    FollowerEffect,
    FollowerEvent,
    FollowerLife,
    FollowerStatus,
    MoveHighWatermark,
    PromiseFailed,
    PromiseWritten,
    ProveCopy,
    RangeAppended,
    RangeArrived,
    RangeRefusal,
    RangeRefused,
    ReportAccepted,
    ReportFailed,
    ReportFault,
    SegmentGone,
    SegmentNamed,
    StopAsking,
    SubmitPromise,
    SubmitReport,
    TailCut,
    TimePassed,
    WritePromise,
)
from stratalog.model.ids import SegmentKey

_FIRST_PAUSE_MS = 20
_LONGEST_PAUSE_MS = 1_000
_RECORD_MS = 60_000  # this long after a report was settled, the record that shows it has surely come
_INNOCENT_STRAYS = 2  # in a row: this many rounds may be under way when this copy grows
_TAKES_DATA = (FollowerLife.FOLLOWING, FollowerLife.COPYING)
_OVER = (FollowerLife.SEALED, FollowerLife.LEFT)


class SegmentFollower:
    """Follows one segment as one of its replicas.

    Requires: an effect that wants its answer at once gets it before any other event.
    Invariant: base_offset <= durable_offset <= end_offset; high_watermark <= end_offset, and never falls.
    Invariant: end_offset falls only where a recovery named an end below it; never below the high watermark.
    Invariant: after a fence was seen nothing is taken from the leader that it fenced; a promise is reported only once
    it is on the disk. Source: docs/replication.md section 4.
    """

    __slots__ = (
        "_appending",
        "_asks",
        "_changes_file",
        "_is_flushing",
        "_is_tail_whole",
        "_is_writing_promise",
        "_owes_word",
        "_pause_ms",
        "_paused_until_ms",
        "_peer",
        "_proof",
        "_retell_ms",
        "_strays",
        "_told_fence",
        "_was_out_of_isr",
        "committed_offset",
        "durable_offset",
        "end_offset",
        "fault",
        "high_watermark",
        "is_fsync",
        "key",
        "life",
        "node_id",
        "promised_fence",
        "record",
    )

    def __init__(
        self,
        key: SegmentKey,
        node_id: int,
        *,
        is_fsync: bool = False,
        end_offset: int | None = None,
        durable_offset: int | None = None,
        is_tail_whole: bool = True,
        promised_fence: int = 0,
    ) -> None:
        """As a start found it. `is_tail_whole`: nothing that a former life confirmed can be missing: it stopped in
        order, or confirmed what was flushed alone, and nothing that was flushed is gone. `promised_fence`: what a
        former life wrote down."""
        self.key = key
        self.node_id = node_id
        self.is_fsync = is_fsync
        self.end_offset = key.base_offset if end_offset is None else end_offset
        self.durable_offset = self.end_offset if durable_offset is None else durable_offset
        self.high_watermark = key.base_offset
        self.committed_offset = key.base_offset
        """The highest high watermark told; this copy may not be there yet."""
        self.promised_fence = promised_fence
        self.record: SegmentNamed | None = None
        self.life = FollowerLife.PROMISED if promised_fence else FollowerLife.FOLLOWING
        self.fault: str | None = None
        self._is_tail_whole = is_tail_whole
        self._was_out_of_isr = False
        self._appending: CheckedRange | None = None
        self._asks: Ask | None = None
        self._peer = 0
        """Which of those that have the rest is asked; the next one after each refusal."""
        self._changes_file = False
        """It is being cut, or filled: nothing is taken meanwhile."""
        self._is_flushing = False
        self._is_writing_promise = False
        self._told_fence = 0
        """In this life."""
        self._owes_word = False
        """The last report to the service failed."""
        self._pause_ms = 0
        self._paused_until_ms: int | None = None
        self._strays = self._retell_ms = 0
        self._proof: CopyProven | None = None

    # What happens -------------------------------------------------------------------------------------------------
    def step(self, event: FollowerEvent, now_ms: int) -> list[FollowerEffect]:
        effects = self._handle(event, now_ms)
        if effects and isinstance(effects[-1], AppendRange | CutTail):
            return effects  # the source follows from its answer
        return [*effects, *self._choose_source(now_ms)]

    def _handle(self, event: FollowerEvent, now_ms: int) -> list[FollowerEffect]:
        match event:
            case SegmentNamed():
                return self._named(event)
            case SegmentGone():
                return self._leave()
            case RangeArrived(node_id, found, high_watermark):
                return self._arrived(node_id, found, high_watermark, now_ms)
            case RangeRefused(node_id, why):
                return self._refused(node_id, why, now_ms)
            case RangeAppended():
                return self._appended()
            case AppendFailed():
                self._appending = None
                return self._pause(now_ms)
            case TailCut():
                return self._cut()
            case CutFailed():
                self._changes_file = False
                return self._pause(now_ms)
            case CopyFilled(end_offset):
                return self._filled(end_offset, now_ms)
            case FlushPolicyChanged(is_fsync):
                self.is_fsync = is_fsync
                return self._flushed(self.durable_offset)
            case DataFlushed(end_offset):
                return self._flushed(end_offset)
            case FlushLost(reason) | CopyDamaged(reason):
                return self._fail(reason)
            case PromiseWritten(fence):
                return self._promise_written(fence)
            case PromiseFailed():
                self._is_writing_promise = False
                return self._pause(now_ms)
            case CopyProven():
                return self._copy_proven(event)
            case ReportAccepted(is_settled):
                # It hears of a digest until it seals, ever more seldom: others may have to be waited for, or given up.
                self._owes_word = self.life is FollowerLife.PROVEN
                if self._owes_word:
                    self._retell_ms = min(max(2 * self._retell_ms, _LONGEST_PAUSE_MS), 8 * _LONGEST_PAUSE_MS)
                    self._paused_until_ms = now_ms + (_RECORD_MS if is_settled else self._retell_ms)
                return []
            case ReportFailed():
                self._owes_word = True
                return self._pause(now_ms)
            case TimePassed():
                return self._try_again(now_ms)
            case _:
                assert_never(event)

    # The record -----------------------------------------------------------------------------------------------------
    def _named(self, record: SegmentNamed) -> list[FollowerEffect]:
        if self.life is FollowerLife.LEFT:
            return []
        before, self.record = self.record, record
        if self.node_id not in record.replicas:
            return self._leave()
        if self.node_id not in record.isr:
            self._was_out_of_isr = True
        elif self._was_out_of_isr and self.life is not FollowerLife.FAULTY:
            self._is_tail_whole = True  # let in again by what this life fetched
        if before is None or source_identity(before) != source_identity(record):
            self._peer = self._pause_ms = self._strays = self._retell_ms = 0
            if not self._owes_word:
                self._paused_until_ms = None
        ended = [] if record.end_offset is None else self._end_known(record, record.end_offset)
        return [*ended, *self._promise_what_is_due(record)]

    def _promise_what_is_due(self, record: SegmentNamed) -> list[FollowerEffect]:
        if not self._is_asked(record):
            return []
        if record.fence > self.promised_fence and not self._is_writing_promise:
            return self._begin_promise(record.fence)
        if self.promised_fence >= record.fence > self._told_fence:
            return self._tell_promise()  # a former life promised: this one says what is here now
        return []

    def _is_asked(self, record: SegmentNamed) -> bool:
        """Whether this copy's content decides about the segment: where it ends, or which node has most of what is below
        its end. A node that has all of that proves it instead."""
        if not record.fence or record.is_sealed:
            return False
        return record.end_offset is None or (record.source is None and self.end_offset < record.end_offset)

    def _end_known(self, record: SegmentNamed, end_offset: int) -> list[FollowerEffect]:
        """What was acknowledged lies below it. Where its leader named it, all of that is committed; an end that a
        recovery named is held by one alone until it is sealed, and may be given up when that one is lost."""
        if not record.fence or record.is_sealed:
            self.committed_offset = max(self.committed_offset, end_offset)
        if self.life is FollowerLife.FAULTY:
            return []
        if record.is_sealed and self.node_id in record.proven and self.end_offset == end_offset:
            self.life = FollowerLife.SEALED
            return self._move_high_watermark()
        if self.life is FollowerLife.PROVEN:
            return []
        if self.end_offset > end_offset:
            if not record.fence:
                return self._fail(f"holds offsets up to {self.end_offset}, and its leader ended at {end_offset}")
            self.life = FollowerLife.COPYING
            return self._begin_cut(end_offset)
        if self.life is not FollowerLife.PROVING:
            self.life = FollowerLife.COPYING
        return [*self._move_high_watermark(), *self._prove_at_end(), *self._fill_as_source()]

    def _begin_cut(self, end_offset: int) -> list[FollowerEffect]:
        if self._changes_file:
            return []
        self._changes_file = True
        return [CutTail(end_offset)]

    def _cut(self) -> list[FollowerEffect]:
        assert self.record is not None and self.record.end_offset is not None, "nothing was to be cut"
        self._changes_file = False
        if self.life is not FollowerLife.COPYING:
            return []
        self.end_offset = self.record.end_offset
        self.durable_offset = min(self.durable_offset, self.end_offset)
        return [*self._move_high_watermark(), *self._prove_at_end()]

    def _fill_as_source(self) -> list[FollowerEffect]:
        record = self.record
        if record is None or record.end_offset is None or not fills_it(record, self.node_id):
            return []
        if self.life is not FollowerLife.COPYING or self._changes_file or self.end_offset >= record.end_offset:
            return []
        self._changes_file = True
        return [FillCopy(record.end_offset)]

    def _filled(self, end_offset: int, now_ms: int) -> list[FollowerEffect]:
        self._changes_file = False
        if self.life is not FollowerLife.COPYING:
            return []
        self.end_offset = self.durable_offset = max(self.end_offset, end_offset)
        if self.record is not None and self.end_offset != self.record.end_offset:
            self._pause(now_ms)
        return [*self._move_high_watermark(), *self._prove_at_end()]

    def _leave(self) -> list[FollowerEffect]:
        if self.life is FollowerLife.LEFT:
            return []
        self.life = FollowerLife.LEFT
        return [DropCopy()]

    # Data -----------------------------------------------------------------------------------------------------------
    def _arrived(
        self, node_id: int, found: CheckedRange | None, high_watermark: int, now_ms: int
    ) -> list[FollowerEffect]:
        peers = self._peers()
        if self.life not in _TAKES_DATA or node_id not in peers or self._changes_file:
            return []  # asked before the fence, or before another was named
        assert self.record is not None and self._appending is None, "the last AppendRange was not answered"
        self.committed_offset = max(self.committed_offset, high_watermark)
        if found is None:
            self._pause_ms = 0
            return self._move_high_watermark()
        if found.base_offset != self.end_offset:
            self._strays += 1  # of an earlier question, or of one that was asked twice, unless too many come
            is_wrong = self._strays > _INNOCENT_STRAYS
            return self._refused(node_id, RangeRefusal.DAMAGED, now_ms) if is_wrong else self._move_high_watermark()
        if found.epoch != self.key.epoch:
            why = RangeRefusal.NEWER_EPOCH if found.epoch > self.key.epoch else RangeRefusal.DAMAGED
            return self._refused(node_id, why, now_ms)
        is_past_end = (limit := self.record.end_offset) is not None and found.end_offset > limit
        if found.end_offset <= found.base_offset or is_past_end:
            return self._refused(node_id, RangeRefusal.DAMAGED, now_ms)
        self._pause_ms = 0
        self._appending = found
        return [AppendRange(found)]

    def _appended(self) -> list[FollowerEffect]:
        assert self._appending is not None, "nothing was being appended"
        self.end_offset = self._appending.end_offset
        self._appending, self._strays = None, 0
        flush: list[FollowerEffect] = []
        if self.is_fsync and not self._is_flushing and self.record is not None and self.record.end_offset is None:
            self._is_flushing = True
            flush = [FlushData()]
        return [*flush, *self._move_high_watermark(), *self._prove_at_end()]

    def _flushed(self, end_offset: int) -> list[FollowerEffect]:
        self._is_flushing = False
        self.durable_offset = min(max(self.durable_offset, end_offset), self.end_offset)
        if self.is_fsync and self.durable_offset < self.end_offset and self.life is FollowerLife.FOLLOWING:
            self._is_flushing = True
            return [FlushData()]
        return []

    def _move_high_watermark(self) -> list[FollowerEffect]:
        if (mark := min(self.committed_offset, self.end_offset)) <= self.high_watermark:
            return []
        self.high_watermark = mark
        return [MoveHighWatermark(mark)]

    def _refused(self, node_id: int, why: RangeRefusal, now_ms: int) -> list[FollowerEffect]:
        """Nothing is cut for what a peer says: the record names the end. Ask again, and of several the next."""
        if self._asks is None or self._asks.node_id != node_id:
            return []
        self._peer += 1
        self._pause(now_ms)
        if why is RangeRefusal.ENDS_BEFORE:
            return [ReportFault(f"node {node_id} ends before offset {self.end_offset}, up to which this copy goes")]
        if why is RangeRefusal.DAMAGED:
            return [ReportFault(f"node {node_id} sent what does not follow at offset {self.end_offset}")]
        return []

    def _fail(self, reason: str) -> list[FollowerEffect]:
        if self.life in _OVER or self.life is FollowerLife.FAULTY:
            return []
        self.life = FollowerLife.FAULTY
        self.fault = reason
        self._is_tail_whole = False
        return [ReportFault(reason)]

    # Fences ---------------------------------------------------------------------------------------------------------
    def _begin_promise(self, fence: int) -> list[FollowerEffect]:
        """From here on nothing more is taken from the fenced leader, which fixes what is reported."""
        if self.life is FollowerLife.FOLLOWING:
            self.life = FollowerLife.PROMISED
        self._is_writing_promise = True
        return [WritePromise(fence)]

    def _promise_written(self, fence: int) -> list[FollowerEffect]:
        self._is_writing_promise = False
        self.promised_fence = max(self.promised_fence, fence)
        record = self.record
        if record is not None and self._is_asked(record) and record.fence > self.promised_fence:
            return self._begin_promise(record.fence)
        return self._tell_promise()

    def _tell_promise(self) -> list[FollowerEffect]:
        record = self.record
        # From every replica: doubted former members of the ISR are waited for, too. The service weighs the votes.
        if record is None or not self._is_asked(record) or self.life in _OVER:
            return []
        self._told_fence = self.promised_fence
        return [SubmitPromise(self.promised_fence, self.end_offset, self.committed_offset, self._is_tail_whole)]

    # The end --------------------------------------------------------------------------------------------------------
    def _prove_at_end(self) -> list[FollowerEffect]:
        record = self.record
        if record is None or self.life is not FollowerLife.COPYING or self.end_offset != record.end_offset:
            return []
        self.life = FollowerLife.PROVING
        return [ProveCopy(self.end_offset)]

    def _copy_proven(self, proof: CopyProven) -> list[FollowerEffect]:
        if self.life is not FollowerLife.PROVING:
            return []
        self.life = FollowerLife.PROVEN
        self.durable_offset = self.end_offset
        self._proof = proof
        return self._tell_replica()

    def _tell_replica(self) -> list[FollowerEffect]:
        assert self._proof is not None, "nothing was proven"
        return [SubmitReport(self.end_offset, self._proof.size_bytes, self._proof.digest)]

    # Sources --------------------------------------------------------------------------------------------------------
    def _peers(self) -> tuple[int, ...]:
        return () if self.record is None else sources_of(self.record, self.node_id, self.promised_fence)

    def _wanted(self, now_ms: int) -> Ask | None:
        record, peers = self.record, self._peers()
        if record is None or not peers or self.life not in _TAKES_DATA or self._changes_file:
            return None
        if self._paused_until_ms is not None and now_ms < self._paused_until_ms:
            return None
        end = record.end_offset
        if end is not None:
            if self.end_offset >= end:
                return None
        elif self.is_fsync and self.durable_offset < self.end_offset:
            return None  # a fetch at this offset would say that all of it is durable
        # No acknowledgement waits for a replica outside of the ISR, or for a copy of a sealed segment.
        is_throttled = self.node_id not in record.isr or record.is_sealed
        return Ask(peers[self._peer % len(peers)], self.end_offset, is_throttled=is_throttled)

    def _choose_source(self, now_ms: int) -> list[FollowerEffect]:
        if (wanted := self._wanted(now_ms)) == self._asks:
            return []
        self._asks = wanted
        return [StopAsking() if wanted is None else wanted]

    # Trying again ---------------------------------------------------------------------------------------------------
    def _pause(self, now_ms: int) -> list[FollowerEffect]:
        self._pause_ms = min(max(2 * self._pause_ms, _FIRST_PAUSE_MS), _LONGEST_PAUSE_MS)
        self._paused_until_ms = now_ms + self._pause_ms
        return []

    def _try_again(self, now_ms: int) -> list[FollowerEffect]:
        record = self.record
        if self._paused_until_ms is None or now_ms < self._paused_until_ms or record is None or self.life in _OVER:
            return []
        self._paused_until_ms = None
        is_owed, self._owes_word = self._owes_word, False
        if self._is_asked(record) and record.fence > self.promised_fence:
            return [] if self._is_writing_promise else self._begin_promise(record.fence)
        if record.end_offset is None or (self._is_asked(record) and self.life is FollowerLife.COPYING):
            return self._tell_promise() if is_owed else []
        if self.end_offset > record.end_offset and self.life is FollowerLife.COPYING:
            return self._begin_cut(record.end_offset)
        if self.life is FollowerLife.COPYING:
            return self._fill_as_source()
        return self._tell_replica() if is_owed and self.life is FollowerLife.PROVEN else []

    # What others ask ------------------------------------------------------------------------------------------------
    @property
    def wakes_at_ms(self) -> int | None:
        """When `TimePassed` may do something; None: nothing waits for it."""
        return self._paused_until_ms if self.life not in _OVER else None

    @property
    def lacks_data(self) -> bool:
        """Of a segment that has ended: it can do nothing but ask others for more."""
        return self.life is FollowerLife.COPYING and not self._changes_file

    @property
    def has_other_sources(self) -> bool:
        """Whether it asks another node after a refusal."""
        return len(self._peers()) > 1

    @property
    def asks(self) -> Ask | None:
        """What is asked for now."""
        return self._asks

    def check_invariants(self) -> None:
        assert self.key.base_offset <= self.durable_offset <= self.end_offset
        assert self.key.base_offset <= self.high_watermark <= self.end_offset
        assert self.life is not FollowerLife.FOLLOWING or not self.promised_fence
        assert self._asks is None or self._asks.offset <= self.end_offset
        if self.is_fsync and self.life is FollowerLife.FOLLOWING and self._asks is not None:
            assert self._asks.offset <= self.durable_offset
        assert self.life not in (FollowerLife.PROVEN, FollowerLife.PROVING) or (
            self.record is not None and self.end_offset == self.record.end_offset
        )

    def describe(self) -> FollowerStatus:
        return FollowerStatus(
            self.key,
            self.life,
            self.end_offset,
            self.durable_offset,
            self.high_watermark,
            max(0, self.committed_offset - self.end_offset),
            self.promised_fence,
            self._asks.node_id if self._asks is not None else None,
        )
