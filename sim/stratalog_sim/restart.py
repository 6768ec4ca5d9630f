"""The restart and the healing of one shard: does the steps of `machines.shard_restart` and `machines.shard_healing` on
a simulated disk. Files are read at once; what the object store is asked for takes its time."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from stratalog.machines.chain_events import ServiceBegun, ShardRecovered
from stratalog.machines.producer_table import ProducerTable
from stratalog.machines.restart_events import (
    CheckpointTraced,
    ConfirmRoll,
    CutTail,
    FileOpened,
    FileScanned,
    FilesListed,
    FlushFile,
    FreeLeftover,
    Heal,
    MakeAnew,
    NoteMissing,
    OpenFile,
    Producers,
    RecoveredLog,
    RecoveredSegment,
    RestartEvent,
    RestartStep,
    RevokeCheckpoints,
    RevokeStale,
    ScanFile,
    SealEnded,
    Serve,
    SetAside,
    ShardMetadata,
    StepFailed,
    StopShard,
    TakeSealed,
    TraceCheckpoint,
)
from stratalog.machines.segment_leader import SegmentLeader
from stratalog.machines.shard_healing import (
    AskStore,
    AttemptBegun,
    AttemptFailed,
    DropSegment,
    EndSegment,
    FileRefilled,
    GiveUp,
    HealingEvent,
    HealingStep,
    ListFiles,
    Obstacle,
    OffsetRange,
    Pause,
    Refill,
    ShardHealing,
    StopHealing,
    StoreAsked,
    TryAgain,
)
from stratalog.machines.shard_life import Stop, StopCause
from stratalog.machines.shard_restart import ShardRestart
from stratalog.model import commands
from stratalog.model.errors import NotFound, StratalogError
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import Segment
from stratalog_sim.disk import Batch, Disk, DiskFailed, DiskFile, Hole, header_of
from stratalog_sim.process import Ask, Sleep, Task
from stratalog_sim.proofs import producers_before
from stratalog_sim.store import Get

if TYPE_CHECKING:
    from stratalog_sim.shard import ShardShell

_RETRY_MS = 200


class ShardStart:
    """From `begin` until the shard serves, or stops for this life."""

    def __init__(self, shard: ShardShell, doubted_epoch: int | None) -> None:
        self._shard = shard
        self._restart = ShardRestart(shard.node.node_id, doubted_epoch)
        self._owed: list[int] = []

    @property
    def _disk(self) -> Disk:
        return self._shard.disk

    def begin(self) -> None:
        missing = self._list_files()
        if missing is not None:
            self._shard.node.spawn(self._heal(missing))

    # A pass -----------------------------------------------------------------------------------------------------------
    def _list_files(self) -> Heal | None:
        """Returns what is missing, if the shard does not serve yet."""
        shard = self._shard
        view, key = shard.node.view, shard.key
        own = [one for one in view.segments(key) if not shard.node.is_shared(one.key) or one.seal is not None]
        metadata = ShardMetadata(tuple(own), view.log_start(key), shard.is_fsync)
        # What is shared with others is followed, or was never acknowledged: see `NodeLife.follow`.
        files = frozenset(one for one in self._disk.files if one.shard_key == key and not shard.node.is_shared(one))
        claims = {one: said[-1] for one, said in self._disk.checkpoints.items() if one.shard_key == key}
        event: RestartEvent | None = FilesListed(metadata if shard.key in view.shards else None, files, claims)
        self._owed = []
        missing: Heal | None = None
        while event is not None:
            steps, event = self._restart.step(event), None
            self._restart.check_invariants()
            for step in steps:
                if isinstance(step, Heal):
                    missing = step
                try:
                    event = self._do(step)
                except DiskFailed as error:
                    event = StepFailed(None, str(error))
                if event is not None:
                    break
        if missing is None:
            shard.step(ServiceBegun(tuple(self._owed)))
        return missing

    def _do(self, step: RestartStep) -> RestartEvent | None:
        disk = self._disk
        match step:
            case TakeSealed() | NoteMissing() | ConfirmRoll():
                pass
            case FreeLeftover(key):
                self._shard.node.judge.freed(self._shard.node.node_id, key)
                disk.remove(key)
            case OpenFile(key):
                return FileOpened(key, disk.files[key].size_bytes, has_header=True)
            case SetAside(key):
                disk.touch()
                del disk.files[key]
                disk.set_aside += 1
            case MakeAnew(key):
                disk.make(key)
            case ScanFile(key, from_position, producers):
                return self._scan(key, from_position, producers)
            case TraceCheckpoint(key):
                return CheckpointTraced(key, is_led_to=self._is_led_to(key))
            case CutTail(key, position):
                disk.truncate(key, _cell_at(disk.files[key], position))
            case FlushFile(key):
                if not disk.flush(key):
                    return StepFailed(key, "the disk lost a page")
            case RevokeCheckpoints(keys) | RevokeStale(keys):
                disk.revoke(keys)
            case Serve(log):
                self._take(log, None)
            case Heal(segment, local_end, known_end, log):
                self._shard.node.tell(f"misses [{local_end}, {known_end}) of epoch {segment.epoch}")
                self._take(log, Stop("it heals", StopCause.HEALING))
            case StopShard(why, log):
                self._shard.node.tell(f"cannot open shard {self._shard.key.shard}: {why}")
                self._take(log, Stop(why, StopCause.UNREADABLE))
            case SealEnded(key):
                self._owed.append(key.epoch)
            case _:
                assert_never(step)
        return None

    def _scan(self, key: SegmentKey, from_position: int, producers: Producers) -> FileScanned:
        cells = self._disk.files[key].cells
        listed = self._shard.node.view.segment(key)
        before = producers_before(self._shard.node, listed) if listed is not None and not from_position else None
        table = ProducerTable(producers if before is None else before)
        offset, position = key.base_offset, 0
        if from_position:
            claim = self._disk.checkpoints[key][-1]
            offset, position = claim.end_offset, from_position
        for cell in cells[_cell_at(self._disk.files[key], from_position) :]:
            if not isinstance(cell, Batch) or cell.base_offset != offset or cell.epoch != key.epoch:
                break
            table.replay(header_of(cell), self._shard.node.now_ms)
            offset, position = cell.end_offset, position + cell.size_bytes
        return FileScanned(key, position, offset, table.snapshot())

    def _is_led_to(self, key: SegmentKey) -> bool:
        claim, offset, position = self._disk.checkpoints[key][-1], key.base_offset, 0
        for cell in self._disk.files[key].cells:
            if position >= claim.position:
                break
            if isinstance(cell, Hole) or cell.base_offset != offset:
                return False
            offset, position = cell.end_offset, position + cell.size_bytes
        return (position, offset) == (claim.position, claim.end_offset)

    def _take(self, found: RecoveredLog, stop: Stop | None) -> None:
        shard = self._shard
        node = shard.node
        is_hidden = any(one.seal is None and node.is_shared(one.key) for one in node.view.segments(shard.key))
        # What others share and nobody sealed yet the machine was not told of: who wrote there `producers_before` says.
        shard.inherited = None if is_hidden else found.inherited
        shard.step(
            ShardRecovered(
                tuple(self._leader_of(one) for one in found.ended),
                None if found.active is None else self._leader_of(found.active),
                found.high_watermark,
                found.doubted_epoch,
                stop,
            )
        )
        for one in [*found.ended, *filter(None, [found.active])]:
            shard.node.note_dirty(shard, one.key)
            if one.is_confirmed:
                # What is found is served from now on.
                served = min(one.end_offset, shard.chain.high_watermark)
                shard.node.judge.moved_high_watermark(shard.node.node_id, one.key, served)

    def _leader_of(self, found: RecoveredSegment) -> SegmentLeader:
        node = self._shard.node
        return SegmentLeader(
            found.key,
            node.node_id,
            self._shard.chain.policy,
            ProducerTable(found.producers),
            isr=(node.node_id,),
            end_offset=found.end_offset,
            size_bytes=found.size_bytes,
            first_append_ms=node.now_ms if found.size_bytes else None,
            is_confirmed=found.is_confirmed,
            is_tail_doubted=found.is_tail_doubted,
            is_ended=found.is_ended,
        )

    # Healing ----------------------------------------------------------------------------------------------------------
    def _heal(self, missing: Heal) -> Task:
        healing = ShardHealing(missing)
        key = missing.segment.key
        while True:
            view = self._shard.node.view
            event: HealingEvent | None = AttemptBegun(
                view.segment(key), view.log_start(self._shard.key), key in self._disk.files, may_give_up=False
            )
            while event is not None:
                steps, event = healing.step(event), None
                for step in steps:
                    if isinstance(step, ListFiles):
                        again = self._list_files()
                        if again is not None:
                            yield Sleep(_RETRY_MS)
                            self._shard.node.spawn(self._heal(again))
                        return
                    if isinstance(step, StopHealing):
                        self._shard.node.tell(f"cannot heal epoch {key.epoch}: {step.why} {step.lost}")
                        return
                    if isinstance(step, TryAgain | Pause):
                        yield Sleep(_RETRY_MS)
                        continue
                    event = yield from self._do_healing(step)
                    if event is not None:
                        break

    def _do_healing(self, step: HealingStep):  # type: ignore[no-untyped-def]  # a task with a result
        match step:
            case MakeAnew(key):
                self._disk.make(key)
            case Refill(segment, end_offset):
                return (yield from self._refill(segment, end_offset))
            case AskStore(segment, ranges):
                try:
                    missed = yield from self._missed(segment, ranges)
                except StratalogError as error:
                    return AttemptFailed(str(error), is_final=False)
                return StoreAsked(tuple(missed), self._shard.node.view.segment(segment.key), may_give_up=False)
            case RevokeCheckpoints(keys):
                self._disk.revoke(keys)
            case EndSegment(key, end_offset):
                try:
                    yield self._shard.node.ask_meta(commands.RollSegment(key, end_offset))
                except StratalogError as error:
                    return AttemptFailed(str(error), is_final=False)
            case DropSegment(key, log_start):
                try:
                    yield self._shard.node.ask_meta(commands.AdvanceLogStart(key.shard_key, log_start))
                except StratalogError as error:
                    return AttemptFailed(str(error), is_final=False)
            case GiveUp() | Pause() | ListFiles() | TryAgain() | StopHealing():
                raise AssertionError(f"{step} is not asked for here")
            case _:
                assert_never(step)
        return None

    def _refill(self, segment: Segment, end_offset: int):  # type: ignore[no-untyped-def]
        """What the file lacks, from the parts of the object store, in place."""
        key = segment.key
        while True:
            file = self._disk.files[key]
            whole = file.whole(key)
            at = whole[-1].end_offset if whole else key.base_offset
            if at >= end_offset:
                return FileRefilled(at) if self._disk.flush(key) else AttemptFailed("flush failed", is_final=True)
            part = next((one for one in segment.remote.parts if one.base_offset <= at < one.end_offset), None)
            if part is None:
                return FileRefilled(at, Obstacle.NOT_COMMITTED)
            try:
                found = yield Ask("store", Get(part.object_key))
            except NotFound:
                return FileRefilled(at, Obstacle.NOT_THERE, "no such object")
            except StratalogError as error:
                return AttemptFailed(str(error), is_final=False)
            batches = [b for one in found if one.key == key for b in one.batches if b.base_offset >= at]
            self._disk.touch()
            behind = file.cells[len(whole) + 1 :]
            # What lies behind the damaged place stays where its offset goes on.
            last = batches[-1].end_offset
            rest = [cell for cell in behind if isinstance(cell, Batch) and cell.base_offset >= last]
            file.cells = [*whole, *batches, *rest]
            file.flushed = min(file.flushed, len(whole))

    def _missed(self, segment: Segment, ranges: tuple[OffsetRange, ...]):  # type: ignore[no-untyped-def]
        missed: list[OffsetRange] = []
        for begin, end in ranges:
            for part in segment.remote.parts:
                if part.end_offset <= begin or part.base_offset >= end:
                    continue
                try:
                    yield Ask("store", Get(part.object_key))
                except NotFound:
                    missed.append((max(begin, part.base_offset), min(end, part.end_offset)))
        return missed


def _cell_at(file: DiskFile, position: int) -> int:
    at, size = 0, 0
    while size < position:
        size += file.cells[at].size_bytes
        at += 1
    return at
