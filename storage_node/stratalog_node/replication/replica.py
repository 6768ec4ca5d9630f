"""One segment that another node leads: the shell around `machines/following/segment_follower.py`. It performs effects
and decides nothing. Lives on the event loop; disk and meta service are asked beside it, one thing of a kind at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, Protocol, assert_never

from stratalog.formats.batches.batch_scan import check_batches
from stratalog.formats.batches.record_batch import offset_and_epoch, parse_header
from stratalog.formats.disk.checkpoint import Checkpoint
from stratalog.kafka.error_codes import ErrorCode
from stratalog.kafka.replica_fetch import SegmentAnswer
from stratalog.machines.following.copy_sources import fills_it
from stratalog.machines.following.fetch_rounds import SegmentName
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
    StopAsking,
    SubmitPromise,
    SubmitReport,
    TailCut,
    TimePassed,
    WritePromise,
)
from stratalog.machines.following.segment_follower import SegmentFollower
from stratalog.model.batch import BATCH_HEADER_BYTES
from stratalog.model.commands.table_commands import NodeCommand, PromiseFence, ReportReplica
from stratalog.model.errors import Conflict, Corrupt, NotFound, OutcomeUnknown, StratalogError, Unavailable
from stratalog.model.ids import SegmentKey
from stratalog.model.producers import ProducerSnapshot, ProducerTally
from stratalog.model.segment import SealRecord, Segment
from stratalog.settings.choices import FlushPolicy
from stratalog.settings.topic import TopicSettings
from stratalog.telemetry.logs import logger
from stratalog_node.backoff import Backoff
from stratalog_node.disk import files
from stratalog_node.replication.first_files import FirstFiles
from stratalog_node.replication.replica_copy import CheckedBatches, ReplicaCopy
from stratalog_node.shards.copies.local_copy import LocalCopy
from stratalog_node.shards.flush.flusher import AHEAD_BYTES

log = logger(__name__)

_SMALL_BYTES = 256 << 10
_PROVE_AGAIN_S = 1.0
_REFUSALS = {
    ErrorCode.OFFSET_OUT_OF_RANGE: RangeRefusal.ENDS_BEFORE,
    ErrorCode.FENCED_LEADER_EPOCH: RangeRefusal.NEWER_EPOCH,
}


class ReplicaHost(Protocol):
    """What a replica needs of the node."""

    def ask(self, name: SegmentName, ask: Ask | None) -> None:
        """Replaces the present request for this segment. None: stop asking."""
        ...

    def start(self, work: Coroutine[object, object, None]) -> None: ...

    @property
    def first_files(self) -> FirstFiles: ...

    async def change(self, copy: ReplicaCopy, work: Callable[[], Any], *, is_urgent: bool = False) -> Any:
        """Blocking work on a thread by which the copy's file comes, goes, or becomes another: one thing at a time for
        all copies of the node, urgent work first. Its descriptor stays until the thread is done, also when the caller
        is cancelled."""
        ...

    async def settle(self, copy: ReplicaCopy, work: Callable[[], Any], *, reads_all: bool = False) -> Any:
        """As `change`, beside work on other copies; of those that read it all, one at a time. Requires: the file
        stays what it is."""
        ...

    async def settle_behind(self, copy: ReplicaCopy, work: Callable[[], Any]) -> Any:
        """As `settle`, where no client waits for it."""
        ...

    async def write_promise(self, key: Any, fence: int) -> None: ...

    def report_slot(self) -> AbstractAsyncContextManager[None]:
        """See `ReportGate.turn`."""
        ...

    async def submit(self, command: NodeCommand[Segment]) -> Segment: ...

    async def fill(self, copy: ReplicaCopy, end_offset: int, is_due: Callable[[], bool]) -> None:
        """Fills what no node has: see `replication/filling.py`."""
        ...

    async def producers_at_end(self, key: SegmentKey, found: tuple[ProducerSnapshot, ...]) -> ProducerTally | None:
        """With `found` in the segment alone. None: what was before it is not known here yet."""
        ...

    def version_of(self, key: SegmentKey) -> int:
        """The version of the segment's record, as this node knows it."""
        ...

    async def keep_checkpoint(self, checkpoint: Checkpoint, is_true: Callable[[], bool]) -> None:
        """Write it, unless it is no longer true when its turn comes: then it is revoked, or will be."""
        ...

    async def revoke_checkpoint(self, key: SegmentKey) -> None:
        """Call it before the file is replaced: no start uses the checkpoint any more. Raises: Unavailable."""
        ...

    def happened(self, replica: Replica) -> None:
        """Something did: its copy may owe a flush."""
        ...

    def append_failed(self, replica: Replica, error: StratalogError) -> None: ...

    def repair_if_faulty(self, replica: Replica) -> None: ...

    def dropped(self, replica: Replica) -> None: ...

    def steady_ms(self) -> int: ...


class Replica:
    __slots__ = (
        "_host",
        "_is_closed",
        "_is_flushing_ahead",
        "_proof",
        "_timer",
        "copy",
        "follower",
        "name",
        "seen_offset",
    )

    def __init__(self, host: ReplicaHost, follower: SegmentFollower, copy: ReplicaCopy) -> None:
        key = copy.key
        self._host = host
        self.follower = follower
        self.copy = copy
        self.name = SegmentName(key.topic_id, key.shard, key.epoch)
        self._proof: SealRecord | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_flushing_ahead = False
        self._is_closed = False
        self.seen_offset = copy.end_offset
        """The highest end that came; what lies below may not be here."""

    # What it hears --------------------------------------------------------------------------------------------------
    def handle(self, event: FollowerEvent) -> None:
        answer: FollowerEvent | None = event
        while answer is not None and not self._is_closed:
            effects, answer = self.follower.step(answer, self._host.steady_ms()), None
            for effect in effects:
                answer = self._perform(effect)
        self._host.happened(self)
        self._set_alarm()

    def change_settings(self, settings: TopicSettings) -> None:
        """The topic's present ones."""
        is_fsync = settings.flush_policy is FlushPolicy.FSYNC
        if self.follower.is_fsync != is_fsync:
            self.handle(FlushPolicyChanged(is_fsync))

    def receive(self, node_id: int, answer: SegmentAnswer[memoryview]) -> None:
        """Handle a peer's answer. It is checked before the machine gets it."""
        if answer.error_code:
            why = _REFUSALS.get(ErrorCode(answer.error_code), RangeRefusal.NOT_NOW)
            self.handle(RangeRefused(node_id, why))
            return
        if not answer.records_bytes:
            self.handle(RangeArrived(node_id, None, answer.high_watermark))
            return
        (data,) = answer.records
        base_offset = self.follower.end_offset
        if len(data) < BATCH_HEADER_BYTES:
            log.warning(
                "data from another node is not a record batch", peer=node_id, segment=str(self.name), size=len(data)
            )
            self.handle(RangeRefused(node_id, RangeRefusal.DAMAGED))
            return
        if offset_and_epoch(data) != (base_offset, self.name.epoch):
            first = parse_header(data)
            stray = CheckedRange(first.epoch, first.base_offset, first.end_offset, len(data), None)
            self.handle(RangeArrived(node_id, stray, answer.high_watermark))  # which takes nothing of it
            return
        try:
            headers = check_batches(data, base_offset=base_offset, epoch=self.name.epoch, source=f"node {node_id}")
        except Corrupt as error:
            log.warning(
                "data from another node failed its check", peer=node_id, segment=str(self.name), error=str(error)
            )
            self.handle(RangeRefused(node_id, RangeRefusal.DAMAGED))
            return
        batches = CheckedBatches(data, headers)
        range_ = CheckedRange(self.name.epoch, base_offset, headers[-1].end_offset, len(data), batches)
        self.seen_offset = max(self.seen_offset, range_.end_offset)
        self.handle(RangeArrived(node_id, range_, answer.high_watermark))

    def _set_alarm(self) -> None:
        wakes_at_ms = self.follower.wakes_at_ms
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wakes_at_ms is not None and not self._is_closed:
            delay_s = max(0, wakes_at_ms - self._host.steady_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.handle, TimePassed())

    # What the machine asks for --------------------------------------------------------------------------------------
    def _perform(self, effect: FollowerEffect) -> FollowerEvent | None:
        """Returns: the answer to an effect that wants one at once, which is the last of its step."""
        host = self._host
        match effect:
            case Ask():
                host.ask(self.name, effect)
            case StopAsking():
                host.ask(self.name, None)
            case AppendRange(found):
                return self._append(found)
            case CutTail(end_offset):
                host.start(self._cut(end_offset))
            case FillCopy(end_offset):
                host.start(self._fill(end_offset))
            case FlushData():
                host.start(self._flush_at_last())
            case WritePromise(fence):
                host.start(self._promise(fence))
            case SubmitPromise(fence, end_offset, high_watermark, is_whole):
                seen_offset = self.copy.seen_offset if self.copy.is_damaged else 0
                is_whole = is_whole and not self.copy.is_damaged
                word = PromiseFence(self.copy.key, fence, end_offset, high_watermark, is_whole, seen_offset)
                host.start(self._submit(lambda: word))
            case ProveCopy():
                host.start(self._prove())
            case SubmitReport():
                host.start(self._report())
            case MoveHighWatermark():
                pass  # the sender queries the machine for it
            case DropCopy():
                host.dropped(self)
            case ReportFault(reason):
                log.error("a replica makes no progress", segment=str(self.name), reason=reason)
                host.start(self._repair_if_faulty())
            case _:
                assert_never(effect)
        return None

    def _append(self, found: CheckedRange) -> FollowerEvent:
        if not self.copy.is_made and not self._host.first_files.may_make(self.copy):
            return AppendFailed()
        try:
            self.copy.append(found.payload)
        except StratalogError as error:
            self._host.append_failed(self, error)
            return AppendFailed()
        if not self._is_flushing_ahead and self.copy.unflushed_bytes > AHEAD_BYTES:
            self._is_flushing_ahead = True
            self._host.start(self._flush_ahead())
        return RangeAppended()

    async def _repair_if_faulty(self) -> None:
        self._host.repair_if_faulty(self)

    async def _cut(self, end_offset: int) -> None:
        try:
            with self.copy.change():
                await self._host.revoke_checkpoint(self.copy.key)
                await self._change_file(lambda: self.copy.cut(end_offset), is_urgent=True)
        except Exception as error:
            self._log_failure("what a recovery left out cannot be cut off", error)
            self.handle(CutFailed())
        else:
            self.handle(TailCut())

    async def _fill(self, end_offset: int) -> None:
        copy = self.copy
        try:
            await self._settle(copy.flush)
            with copy.change():
                await self._host.revoke_checkpoint(copy.key)
                await self._host.fill(copy, end_offset, lambda: self._fills(end_offset))
                if self.follower.life is not FollowerLife.COPYING:
                    return
                await self._change_file(copy.open_found, is_urgent=True)
        except files.FlushLost as lost:
            self.handle(FlushLost(str(lost)))
        except Exception as error:
            self._log_failure("a copy that was filled cannot be read back now", error)
            self.handle(CopyFilled(copy.end_offset))
        else:
            log.info("a copy was filled up to its end", segment=str(self.name), end_offset=copy.end_offset)
            self.handle(CopyFilled(copy.end_offset))

    def _fills(self, end_offset: int) -> bool:
        record, follower = self.follower.record, self.follower
        is_asked = record is not None and fills_it(record, follower.node_id) and record.end_offset == end_offset
        return is_asked and follower.life is FollowerLife.COPYING

    async def _change_file(self, work: Callable[[], Any], *, is_urgent: bool = False) -> Any:
        """Threads find its descriptor open, and leave it as it is."""
        file = self.copy.file
        file.pin()
        try:
            if file.path.exists():
                file.fd()
            return await self._host.change(self.copy, work, is_urgent=is_urgent)
        finally:
            file.unpin()

    async def _settle(self, work: Callable[[], Any], *, reads_all: bool = False, is_behind: bool = False) -> Any:
        """Pinned, so that its descriptor stays open while the thread runs, even if a copy is dropped or swept
        meanwhile: the number could be reused for another file, and flushing the wrong file counts as a failed flush."""
        file = self.copy.file
        file.pin()
        try:
            if is_behind:
                return await self._host.settle_behind(self.copy, work)
            return await self._host.settle(self.copy, work, reads_all=reads_all)
        finally:
            file.unpin()

    async def _flush(self, *, is_behind: bool = False) -> bool:
        """False: it could not be tried (no descriptor, no room), which says nothing against what is there."""
        try:
            end_offset, self.copy.flushed_bytes = await self._settle(self.copy.flush, is_behind=is_behind)
        except (files.FlushLost, NotFound) as lost:
            self.handle(FlushLost(str(lost)))
        except Exception as error:
            self._log_failure("a copy cannot be flushed now", error)
            return False
        else:
            self.handle(DataFlushed(end_offset))
        return True

    async def _flush_at_last(self) -> None:
        """Its leader waits for it."""
        backoff = Backoff()
        while not await self._flush() and not self._is_closed:
            await backoff.pause()

    async def _flush_ahead(self) -> None:
        """A proof, and a power cut, wait for little then."""
        try:
            await self._flush(is_behind=True)
        finally:
            self._is_flushing_ahead = False

    @property
    def owes_flush(self) -> bool:
        return not self._is_closed and not (self.copy.is_flushed and self.copy.is_noted)

    async def flush_behind(self, *, force: bool = False) -> None:
        """No client waits for this flush. With `force` a checkpoint is written in any case."""
        version = self.copy.version
        is_sound = self.follower.life is not FollowerLife.FAULTY and version is not None
        checkpoint = self.copy.due_checkpoint(force=force) if is_sound else None
        if not self.copy.is_flushed and not await self._flush(is_behind=not force):
            return
        if checkpoint is None or self.follower.life is FollowerLife.FAULTY:
            return
        try:
            await self._host.keep_checkpoint(checkpoint, lambda: self.copy.version == version and not self._is_closed)
        except StratalogError as error:  # it costs a scan
            log.warning("no checkpoint of a followed segment", segment=str(self.name), error=str(error))

    async def flush_at_stop(self) -> bool:
        """Whether all of it is on the disk."""
        await self.flush_behind(force=True)
        return self.copy.is_flushed and self.follower.life is not FollowerLife.FAULTY

    async def _promise(self, fence: int) -> None:
        try:
            await self._host.write_promise(self.copy.key, fence)
        except Exception as error:
            self._log_failure("a fence cannot be promised now", error)
            self.handle(PromiseFailed())
        else:
            self.handle(PromiseWritten(fence))

    async def _prove(self) -> None:
        await self.copy.wait_until_no_rolls()
        while not self._is_closed and self.follower.life is FollowerLife.PROVING:
            try:
                self._proof = await self._prove_once()
            except (Corrupt, NotFound, files.FlushLost) as damage:
                self.handle(CopyDamaged(str(damage)))
            except Exception as error:
                # Nothing is known against the copy, and without it the segment may never be sealed.
                self._log_failure("a copy cannot be proven now", error)
                await asyncio.sleep(_PROVE_AGAIN_S)
            else:
                self.handle(CopyProven(self._proof.size_bytes, self._proof.digest))

    async def _prove_once(self) -> SealRecord:
        """What waits for the disk is done apart from what takes the processor, so that slow flushes of many copies run
        side by side. Of a small copy both are one piece of work: after a node died there are thousands of them."""
        copy = self.copy
        proof: SealRecord
        if not copy.is_made:
            await self._change_file(copy.make, is_urgent=True)
        copy.file.pin()
        try:
            copy.file.fd()  # opened here: threads leave a descriptor as they find it
            if copy.file.size_bytes <= _SMALL_BYTES:
                proof, copy.flushed_bytes = await self._settle(copy.flush_and_prove)
            else:
                _, copy.flushed_bytes = await self._settle(copy.flush_ended)
                proof = await self._settle(copy.prove, reads_all=True)
        finally:
            copy.file.unpin()
        return proof

    async def _report(self) -> None:
        found = self.copy.found_producers
        assert self._proof is not None and found is not None, "nothing was proven"
        try:
            tally = await self._host.producers_at_end(self.copy.key, found)
        except Exception as error:
            self._log_failure("the producers at the end of a copy cannot be found now", error)
            tally = None
        if tally is None:
            # The seal carries what producers wrote up to its end, not in this segment alone.
            log.debug("a copy is reported once the segments before it are settled", segment=str(self.name))
            self.handle(ReportFailed())
            return
        proof = replace(self._proof, producers=tally)
        key = self.copy.key
        await self._submit(lambda: ReportReplica(key, proof, self._host.version_of(key)), is_proof=True)

    async def _submit(self, make: Callable[[], NodeCommand[Segment]], *, is_proof: bool = False) -> None:
        try:
            async with self._host.report_slot():
                segment = await self._host.submit(make())
        except Conflict as conflict:
            record = self.follower.record
            if is_proof and record is not None and record.is_sealed:
                # The seal record is authoritative: this copy must be made again, whichever one was right before.
                self.handle(CopyDamaged(str(conflict)))
                return
            log.warning("the meta service refused a report", segment=str(self.name), error=str(conflict))
            self.handle(ReportFailed())
        except (Unavailable, OutcomeUnknown):
            self.handle(ReportFailed())
        except Exception as error:
            self._log_failure("the meta service did not accept a report", error)
            self.handle(ReportFailed())
        else:
            self.handle(ReportAccepted.answered(segment, self.follower.node_id))

    def _log_failure(self, what: str, error: Exception) -> None:
        """Log a failed effect. An exception counts like any failure: the machine has the effect tried again, and only
        this copy waits. Otherwise the machine would wait forever for an answer (F48)."""
        if isinstance(error, StratalogError):
            log.warning(what, segment=str(self.name), error=str(error))
        else:
            log.error(f"{what}: a fault", segment=str(self.name), exc_info=error)

    # What this node's shards see of it ------------------------------------------------------------------------------
    @property
    def end_offset(self) -> int:
        return self.follower.end_offset

    @property
    def lacks_what_it_held(self) -> bool:
        """Its copy was found damaged, and what others have of it has not been fetched again."""
        record, end_offset = self.follower.record, self.copy.end_offset
        is_at_end = record is not None and record.end_offset is not None and end_offset >= record.end_offset
        return self.copy.is_damaged and not is_at_end

    def own_producers(self) -> tuple[ProducerSnapshot, ...]:
        return self.copy.scan.producers.snapshot()

    def local_copy(self) -> LocalCopy | None:
        return None if self.follower.life is FollowerLife.FAULTY else self.copy.local()

    def close(self) -> None:
        """Stop: it handles no further events. Work under way has no effect, because another replica object may follow
        the segment now."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
