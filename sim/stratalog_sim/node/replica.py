"""The shell of one replica that does not lead: performs what its follower machine asks for, and keeps its question to a
peer on its way as long as the machine wants it."""

from __future__ import annotations

from typing import Protocol, assert_never

from stratalog.machines.following import follower_events
from stratalog.machines.following.followed_segments import news_of
from stratalog.machines.following.segment_follower import SegmentFollower
from stratalog.model.commands import table_commands as commands
from stratalog.model.errors import Conflict, StratalogError
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.segment import Segment
from stratalog_sim.environment.disk import DiskFailed, DiskFile, digest_of
from stratalog_sim.environment.process import Sleep, Task
from stratalog_sim.node.proofs import proof_of
from stratalog_sim.node.shell import NodeShell

_FLUSH_MS = 8
_RETRY_MS = 100


class FollowingPart(Protocol):
    """What replicas and shards use of the node's part that follows."""

    is_continued: bool
    replicas: dict[SegmentKey, ReplicaShell]

    def ask(self, key: SegmentKey, ask: follower_events.Ask | None) -> None: ...

    def fill(self, replica: ReplicaShell, end: int) -> Task: ...

    def replace_if_faulty(self, replica: ReplicaShell) -> None: ...

    def forget_begun(self, key: ShardKey, epoch: int) -> None: ...

    def left(self, key: ShardKey, epoch: int) -> None: ...

    def moved(self, key: SegmentKey) -> None: ...


class FollowingNode(NodeShell):
    following: FollowingPart


class ReplicaShell:
    def __init__(self, node: FollowingNode, key: SegmentKey, *, is_fsync: bool, is_tail_whole: bool) -> None:
        self.node = node
        self.key = key
        file = node.disk.files.get(key)
        whole = file.whole(key) if file is not None else []
        end = None if file is None else whole[-1].end_offset if whole else key.base_offset
        found = key.base_offset if end is None else end
        seen = max(found if file is None else file.seen_offset(key), node.disk.written_offset(key))
        if seen > found:
            node.disk.note_damage(key, seen)
            node.tell("finds", key, f"damaged at {found}, and batches up to {seen}")
        elif file is not None and len(whole) < len(file.cells):
            node.disk.truncate(key, len(whole))
        is_kept = node.disk.seen.get(key, -1) <= (key.base_offset if end is None else end)
        is_flushed = file is None or node.disk.flush(key)
        self.machine = SegmentFollower(
            key,
            node.node_id,
            is_fsync=is_fsync,
            end_offset=end,
            durable_offset=end if is_flushed else key.base_offset,
            is_tail_whole=is_kept and node.following.is_continued and (is_tail_whole or is_fsync),
            promised_fence=node.disk.fences.get(key, 0),
        )
        self._wake_ms: int | None = None
        self.is_gone = False
        self.is_closed = False
        """Another shell has its place: what was on its way for this one changes nothing."""

    # The machine ----------------------------------------------------------------------------------------------------
    def step(self, event: follower_events.FollowerEvent) -> None:
        if self.is_closed:
            return
        answer: follower_events.FollowerEvent | None = event
        while answer is not None:
            effects, answer = self.machine.step(answer, self.node.scheduler.now_ms), None
            for effect in effects:
                assert answer is None, "an effect behind one that is answered at once"
                answer = self._perform(effect)
        self.machine.check_invariants()
        wakes_ms = self.machine.wakes_at_ms
        if wakes_ms is not None and (self._wake_ms is None or wakes_ms < self._wake_ms):
            self._wake_ms = wakes_ms
            self.node.scheduler.after(max(1, wakes_ms - self.node.scheduler.now_ms), self.node, self._time_passed)

    def heard(self, segment: Segment | None) -> None:
        if segment is None:
            self.step(follower_events.SegmentGone())
            return
        node, life = self.node, self.machine.life
        # Replicas here copy from nodes alone.
        self.step(
            news_of(segment, node.node_id, life, node.view.is_alive, has_store=False, may_read_bucket=True),
        )

    def _time_passed(self) -> None:
        self._wake_ms = None
        self.step(follower_events.TimePassed())

    def _perform(self, effect: follower_events.FollowerEffect) -> follower_events.FollowerEvent | None:
        match effect:
            case follower_events.Ask():
                self.node.following.ask(self.key, effect)
            case follower_events.StopAsking():
                self.node.following.ask(self.key, None)
            case follower_events.AppendRange(found):
                return self._append(found)
            case follower_events.CutTail(end_offset):
                self.node.disk.seen.pop(self.key, None)
                self.node.disk.ends_in_memory[self.key] = end_offset
                cells = self.node.disk.files[self.key].whole(self.key)
                self.node.disk.truncate(self.key, sum(1 for one in cells if one.end_offset <= end_offset))
                self.node.tell("cuts", self.key, f"at {end_offset}")
                return follower_events.TailCut()
            case follower_events.FillCopy(end_offset):
                self.node.spawn(self.node.following.fill(self, end_offset))
            case follower_events.FlushData():
                self.node.on_disk(_FLUSH_MS, self._flush, self.machine.end_offset)
            case follower_events.WritePromise(fence):
                self.node.on_disk(_FLUSH_MS, self._write_promise, fence)
            case follower_events.SubmitPromise():
                self.node.spawn(self._tell_promise(effect))
            case follower_events.ProveCopy(end_offset):
                self.node.on_disk(_FLUSH_MS, self._prove, end_offset)
            case follower_events.SubmitReport():
                self.node.spawn(self._tell_replica(effect))
            case follower_events.MoveHighWatermark(high_watermark):
                self.node.judge.follower_serves(self.node.node_id, self.key, high_watermark)
                self.node.committed_grew(self.key.shard_key, self.key.epoch)
            case follower_events.DropCopy():
                self.is_gone = True
                if self.key in self.node.disk.files:
                    self.node.judge.freed(self.node.node_id, self.key, is_replica=False)
                    self.node.disk.remove(self.key)
            case follower_events.ReportFault(reason):
                self.node.tell("fault of", self.key, reason)
                self.node.spawn(self._replace_if_faulty())
            case _:
                assert_never(effect)
        return None

    def _replace_if_faulty(self) -> Task:
        yield Sleep(1)
        self.node.following.replace_if_faulty(self)

    # Data -----------------------------------------------------------------------------------------------------------
    def _append(self, found: follower_events.CheckedRange) -> follower_events.FollowerEvent:
        disk = self.node.disk
        try:
            if self.key not in disk.files:
                disk.make(self.key)
            self.cut_damage()
            disk.append(self.key, list(found.payload))
        except DiskFailed:
            return follower_events.AppendFailed()
        return follower_events.RangeAppended()

    @property
    def is_damaged(self) -> bool:
        """It held more than it has, and others have not made it good yet."""
        record, end = self.machine.record, self.machine.end_offset
        is_at_end = record is not None and record.end_offset is not None and end >= record.end_offset
        return end < self.node.disk.seen.get(self.key, -1) and not is_at_end

    def cut_damage(self) -> None:
        """What lies behind the whole batches: others say what belongs there."""
        file = self.node.disk.files[self.key]
        whole = file.whole(self.key)
        if len(whole) < len(file.cells):
            self.node.disk.truncate(self.key, len(whole))

    def _flush(self, end_offset: int) -> None:
        if self.key in self.node.disk.files and self.node.disk.flush(self.key):
            self.step(follower_events.DataFlushed(end_offset))
        else:
            self.step(follower_events.FlushLost("the disk lost a page"))

    # Promises and proofs ----------------------------------------------------------------------------------------------
    def _write_promise(self, fence: int) -> None:
        disk = self.node.disk
        disk.touch()
        if disk.fails_flushes:
            self.step(follower_events.PromiseFailed())
            return
        disk.fences[self.key] = fence
        self.step(follower_events.PromiseWritten(fence))

    def _tell_promise(self, promise: follower_events.SubmitPromise) -> Task:
        yield Sleep(1)
        self.node.judge.promised(self.node.node_id, self.key, promise.fence)
        seen = self.node.disk.seen.get(self.key, 0) if self.is_damaged else 0
        command = commands.PromiseFence(
            self.key, promise.fence, promise.end_offset, promise.high_watermark, promise.is_tail_whole, seen
        )
        yield from self._tell(command)

    def _tell_replica(self, report: follower_events.SubmitReport) -> Task:
        proof = proof_of(self.node, self.key, report.end_offset, report.size_bytes, report.digest)
        if proof is None:
            yield Sleep(50)
            self.step(follower_events.ReportFailed())
            return
        listed = self.node.view.segment(self.key)
        version = listed.isr_version if listed is not None else -1
        yield from self._tell(commands.ReportReplica(self.key, proof, version))

    def _tell(self, command: commands.Command[Segment]) -> Task:
        try:
            segment = yield self.node.ask_meta(command)
        except StratalogError as error:
            self.node.tell("was not heard:", command, error)
            record = self.machine.record
            is_wrong = isinstance(error, Conflict) and isinstance(command, commands.ReportReplica)
            if is_wrong and record is not None and record.is_sealed:
                self.step(follower_events.CopyDamaged(str(error)))
            else:
                self.step(follower_events.ReportFailed())
        else:
            self.step(follower_events.ReportAccepted.answered(segment, self.node.node_id))

    def _prove(self, end_offset: int) -> None:
        if self.is_closed:
            return
        disk = self.node.disk
        file = disk.files.get(self.key)
        if file is None and end_offset > self.key.base_offset:
            self.step(follower_events.CopyDamaged("there is no file"))
            return
        if file is None and disk.is_full:
            self.node.scheduler.after(_RETRY_MS, self.node, self._prove, end_offset)
            return
        if file is None:
            disk.make(self.key)
        self.cut_damage()
        if not disk.flush(self.key):
            self.step(follower_events.CopyDamaged("the disk lost a page"))
            return
        batches = (file or DiskFile()).whole(self.key)
        if (batches[-1].end_offset if batches else self.key.base_offset) != end_offset:
            self.step(follower_events.CopyDamaged("its batches end elsewhere"))
            return
        disk.sealed[self.key] = None
        self.step(follower_events.CopyProven(sum(batch.size_bytes for batch in batches), digest_of(batches)))
