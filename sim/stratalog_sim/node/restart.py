"""The restart and the healing of one shard: does the steps of `machines.restart.shard_restart` and
`machines.restart.shard_healing` on a simulated disk. Files are read at once; what the object store is asked for takes
its time."""

from __future__ import annotations

from stratalog.machines.leading.chain_events import ServiceBegun, ShardRecovered
from stratalog.machines.leading.producer_table import ProducerTable
from stratalog.machines.leading.sealed_producers import as_seen
from stratalog.machines.leading.segment_leader import SegmentLeader
from stratalog.machines.leading.shard_life import Stop, StopCause
from stratalog.machines.restart import restart_events, shard_healing
from stratalog.machines.restart.shard_restart import ShardRestart
from stratalog.model.commands import table_commands as commands
from stratalog.model.errors import NotFound, StratalogError
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import Segment
from stratalog_sim.environment.disk import Batch, Disk, DiskFailed, DiskFile, Hole, header_of
from stratalog_sim.environment.process import Ask, Sleep, Task
from stratalog_sim.environment.store import Get
from stratalog_sim.node.proofs import producers_before, table_of
from stratalog_sim.node.restart_steps import RestartSteps, Work
from stratalog_sim.node.shard import ShardShell

_RETRY_MS = 200


class ShardStart(RestartSteps):
    """From `begin` until the shard serves, or stops for this life."""

    def __init__(self, shard: ShardShell, doubted_epoch: int | None) -> None:
        self._shard = shard
        self._restart = ShardRestart(shard.node.node_id, doubted_epoch)
        self._owed: list[int] = []
        self._missing: restart_events.Heal | None = None
        self._is_waiting = False
        self._is_healing_over = False

    @property
    def _disk(self) -> Disk:
        return self._shard.disk

    def begin(self) -> None:
        if self._lies_behind_what_others_seal():
            stop = Stop("what other nodes seal lies before it", StopCause.HEALING)
            self._shard.step(ShardRecovered((), None, 0, -1, stop))
            self._shard.node.spawn(self._begin_later())
            return
        self.list_files()
        if self._missing is not None:
            self._shard.node.spawn(self._heal_all())

    def _lies_behind_what_others_seal(self) -> bool:
        """Whether a segment of this node comes after one that other nodes have yet to seal. The producers of that one
        are unknown before the seal, and the segment after it continues from them."""
        node = self._shard.node
        is_open = False
        for segment in node.view.segments(self._shard.key):
            is_own = not node.is_shared(segment.key) and segment.key in node.disk.files
            if is_open and is_own and segment.seal is None:
                return True
            is_open = is_open or (segment.seal is None and node.is_shared(segment.key))
        return False

    def _begin_later(self) -> Task:
        while self._lies_behind_what_others_seal():
            yield Sleep(_RETRY_MS)
        if self._shard.node.shards.get(self._shard.key) is self._shard:
            self.begin()

    # A pass -----------------------------------------------------------------------------------------------------------
    def list_files(self) -> None:
        shard = self._shard
        view, key = shard.node.view, shard.key
        own = [one for one in view.segments(key) if not shard.node.is_shared(one.key) or one.seal is not None]
        found = ((one.key, table_of(shard.node, one)) for one in own if one.seal is not None)
        tables = {one: as_seen(table, shard.node.now_ms) for one, table in found if table is not None}
        metadata = restart_events.ShardMetadata(tuple(own), view.log_start(key), shard.is_fsync, tables)
        # What is shared with others is followed, or was never acknowledged: see `Following`.
        files = frozenset(one for one in self._disk.files if one.shard_key == key and not shard.node.is_shared(one))
        claims = {one: said[-1] for one, said in self._disk.checkpoints.items() if one.shard_key == key}
        self._owed, self._missing, self._is_waiting = [], None, False
        self.do_pass(self._restart, restart_events.FilesListed(metadata if key in view.shards else None, files, claims))
        if self._is_waiting:
            shard.step(ShardRecovered((), None, 0, -1, Stop("a table of producers is away", StopCause.HEALING)))
            shard.node.spawn(self._list_later())
        elif self._missing is None:
            shard.step(ServiceBegun(tuple(self._owed)))

    def _list_later(self) -> Task:
        yield Sleep(_RETRY_MS)
        if self._shard.node.shards.get(self._shard.key) is self._shard:
            self.begin()

    def lacks_table(self, segment: Segment) -> None:
        self._shard.node.tell(f"lacks the table of producers of epoch {segment.epoch}")
        self._is_waiting = True

    def ended(self, how: restart_events.Serve | restart_events.Heal | restart_events.StopShard) -> None:
        tell = self._shard.node.tell
        match how:
            case restart_events.Serve(log):
                self._take(log, None)
            case restart_events.Heal(segment, local_end, known_end, log):
                tell(f"misses [{local_end}, {known_end}) of epoch {segment.epoch}")
                self._missing = how
                self._take(log, Stop("it heals", StopCause.HEALING))
            case restart_events.StopShard(why, log):
                tell(f"cannot open shard {self._shard.key.shard}: {why}")
                self._take(log, Stop(why, StopCause.UNREADABLE))

    def begins(self, step: restart_events.RestartStep) -> None:
        pass

    def begins_healing(self, step: shard_healing.HealingStep) -> None:
        pass

    def owes_seal(self, key: SegmentKey) -> None:
        self._owed.append(key.epoch)

    def free(self, key: SegmentKey) -> None:
        self._shard.node.judge.freed(self._shard.node.node_id, key)
        self._disk.remove(key)

    def open_file(self, key: SegmentKey) -> restart_events.FileOpened:
        return restart_events.FileOpened(key, self._disk.files[key].size_bytes, has_header=True)

    def set_aside(self, key: SegmentKey) -> None:
        self._disk.touch()
        del self._disk.files[key]
        self._disk.set_aside += 1

    def make_again(self, key: SegmentKey) -> restart_events.StepFailed | None:
        try:
            self._disk.make(key)
        except DiskFailed as error:
            return restart_events.StepFailed(None, str(error))
        return None

    def cut(self, key: SegmentKey, position: int) -> None:
        self._disk.truncate(key, _cell_at(self._disk.files[key], position))

    def flush(self, key: SegmentKey) -> restart_events.StepFailed | None:
        return None if self._disk.flush(key) else restart_events.StepFailed(key, "the disk lost a page")

    def revoke(self, keys: tuple[SegmentKey, ...]) -> None:
        self._disk.revoke(keys)

    def scan(
        self, key: SegmentKey, from_position: int, producers: restart_events.Producers
    ) -> restart_events.FileScanned:
        cells = self._disk.files[key].cells
        listed = self._shard.node.view.segment(key)
        before = producers_before(self._shard.node, listed) if listed is not None and not from_position else None
        table = ProducerTable(producers if before is None else as_seen(before, self._shard.node.now_ms))
        offset, position = key.base_offset, 0
        if from_position:
            claim = self._disk.checkpoints[key][-1]
            offset, position = claim.end_offset, from_position
        for cell in cells[_cell_at(self._disk.files[key], from_position) :]:
            if not isinstance(cell, Batch) or cell.base_offset != offset or cell.epoch != key.epoch:
                break
            table.replay(header_of(cell), self._shard.node.now_ms)
            offset, position = cell.end_offset, position + cell.size_bytes
        return restart_events.FileScanned(key, position, offset, table.snapshot())

    def is_led_to(self, key: SegmentKey) -> bool:
        claim, offset, position = self._disk.checkpoints[key][-1], key.base_offset, 0
        for cell in self._disk.files[key].cells:
            if position >= claim.position:
                break
            if isinstance(cell, Hole) or cell.base_offset != offset:
                return False
            offset, position = cell.end_offset, position + cell.size_bytes
        return (position, offset) == (claim.position, claim.end_offset)

    def _take(self, found: restart_events.RecoveredLog, stop: Stop | None) -> None:
        shard = self._shard
        node = shard.node
        is_hidden = any(one.seal is None and node.is_shared(one.key) for one in node.view.segments(shard.key))
        # The machine does not know of shared segments without a seal: `producers_before` finds their producers.
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
            shard.node.note_dirty(shard.key, one.key)
            if one.is_confirmed:
                # What is found is served from now on.
                served = min(one.end_offset, shard.chain.high_watermark)
                shard.node.judge.moved_high_watermark(shard.node.node_id, one.key, served)

    def _leader_of(self, found: restart_events.RecoveredSegment) -> SegmentLeader:
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
    def _heal_all(self) -> Task:
        """Attempts, until the shard serves or cannot: each pass may find that something else is missing."""
        while self._missing is not None and not self._is_healing_over:
            missing, healing = self._missing, shard_healing.ShardHealing(self._missing)
            key = missing.segment.key
            while self._missing is missing and not self._is_healing_over:
                view = self._shard.node.view
                begun = shard_healing.AttemptBegun(
                    view.segment(key), view.log_start(self._shard.key), key in self._disk.files, may_give_up=False
                )
                yield from self.do_attempt(healing, begun)
                if self._missing is not None:
                    yield Sleep(_RETRY_MS)

    def pause(self) -> Work:
        yield Sleep(_RETRY_MS)
        return None

    def healing_ended(self, how: shard_healing.TryAgain | shard_healing.StopHealing) -> None:
        if isinstance(how, shard_healing.StopHealing):
            self._is_healing_over = True
            self._shard.node.tell(f"cannot heal: {how.why} {how.lost}")

    def give_up(self, key: SegmentKey, holes: tuple[shard_healing.OffsetRange, ...], end_offset: int) -> None:
        raise AssertionError(f"nothing is given up here, not {holes} of {key} either")

    def ask_store(self, segment: Segment, ranges: tuple[shard_healing.OffsetRange, ...]) -> Work:
        try:
            missed = yield from self._missed(segment, ranges)
        except StratalogError as error:
            return shard_healing.AttemptFailed(str(error), is_final=False)
        return shard_healing.StoreAnswered(tuple(missed), self._shard.node.view.segment(segment.key), may_give_up=False)

    def end_segment(self, key: SegmentKey, end_offset: int) -> Work:
        try:
            yield self._shard.node.ask_meta(commands.RollSegment(key, end_offset))
        except StratalogError as error:
            return shard_healing.AttemptFailed(str(error), is_final=False)
        return None

    def drop_segment(self, key: SegmentKey, log_start: int) -> Work:
        try:
            yield self._shard.node.ask_meta(commands.AdvanceLogStart(key.shard_key, log_start))
        except StratalogError as error:
            return shard_healing.AttemptFailed(str(error), is_final=False)
        return None

    def refill(self, segment: Segment, end_offset: int) -> Work:
        """What the file lacks, from the parts of the object store, in place."""
        key = segment.key
        while True:
            file = self._disk.files[key]
            whole = file.whole(key)
            at = whole[-1].end_offset if whole else key.base_offset
            if at >= end_offset:
                return (
                    shard_healing.FileRefilled(at)
                    if self._disk.flush(key)
                    else shard_healing.AttemptFailed("flush failed", is_final=True)
                )
            part = next((one for one in segment.remote.parts if one.base_offset <= at < one.end_offset), None)
            if part is None:
                return shard_healing.FileRefilled(at, shard_healing.Obstacle.NOT_COMMITTED)
            try:
                found = yield Ask("store", Get(part.object_key))
            except NotFound:
                return shard_healing.FileRefilled(at, shard_healing.Obstacle.NOT_THERE, "no such object")
            except StratalogError as error:
                return shard_healing.AttemptFailed(str(error), is_final=False)
            batches = [b for one in found if one.key == key for b in one.batches if b.base_offset >= at]
            self._disk.touch()
            behind = file.cells[len(whole) + 1 :]
            # A batch after the damaged place stays if its offset is not before the end of the refilled range.
            last = batches[-1].end_offset
            rest = [cell for cell in behind if isinstance(cell, Batch) and cell.base_offset >= last]
            file.cells = [*whole, *batches, *rest]
            file.flushed = min(file.flushed, len(whole))

    def _missed(self, segment: Segment, ranges: tuple[shard_healing.OffsetRange, ...]):  # type: ignore[no-untyped-def]
        missed: list[shard_healing.OffsetRange] = []
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
