"""Restart: reconciles what the disk holds with what the meta service knows, shard by shard.

`machines.restart.shard_restart` decides; this lists files and checkpoints, performs the steps (those on files in
`shards/restart/opening.py`), and hands on the results. A shard without files costs a dictionary entry: 10,000 idle ones
start in well under a second.

If the disk holds less than was written of a shard, the shard does not serve: it is entered in `unhealed`, and
`shards/restart/healing.py` brings back what is missing and has the shard examined again.
Runs before the node serves, and again for a shard that was healed; scans on the disk threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from stratalog.formats.disk.checkpoint import Checkpoint
from stratalog.machines.leading.sealed_producers import as_seen
from stratalog.machines.leading.shard_life import Stop, StopCause
from stratalog.machines.leading.shared_segments import is_shared, shared_before_own
from stratalog.machines.restart import restart_events
from stratalog.machines.restart.shard_restart import ShardRestart, deleted_files, judge_sealed
from stratalog.model.errors import DiskFull, StratalogError, Unavailable
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.segment import Segment
from stratalog.telemetry.bounded_lines import BoundedLines
from stratalog.telemetry.logs import logger
from stratalog_node.disk.checkpoints import Checkpoints
from stratalog_node.disk.life_record import NOT_KNOWN, Origin
from stratalog_node.shards.copies.context import ShardContext
from stratalog_node.shards.copies.missing_files import has_sealed_size, note_missing, take_sealed
from stratalog_node.shards.flush.flusher import Flusher
from stratalog_node.shards.log.directory import ShardDirectory
from stratalog_node.shards.log.handing_over import leave
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.shards.restart.copy_files import CopyFiles
from stratalog_node.shards.restart.journal_replay import JournalReplay
from stratalog_node.shards.restart.opening import OpenedFiles

log = logger(__name__)

_SHARDS_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class _HeldShard:
    """It begins to serve once its stale checkpoints are revoked."""

    shard: ShardLog
    steps: list[restart_events.RestartStep]
    """Those that are left of its pass."""
    opened: OpenedFiles


class Recovery:
    def __init__(
        self,
        context: ShardContext,
        directory: ShardDirectory,
        copies: CopyFiles,
        flusher: Flusher,
        store: Checkpoints,
        doubted: Mapping[ShardKey, int] | None = None,
        origin: Origin = NOT_KNOWN,
        note_examined: Callable[[Iterable[ShardKey]], None] = lambda _: None,
    ) -> None:
        """Blocking. `doubted`: the shards in doubt, with their epochs; None when all are (`disk/clean_stop.py`).
        `note_examined` is called on a thread, with the shards whose files a power cut may have torn and that are not
        opened yet."""
        self._context = context
        self._directory = directory
        self._copies = copies
        self._flusher = flusher
        self._doubted = doubted
        self._is_continued = origin.is_continued
        self._is_memory_kept = origin.is_memory_kept or (doubted is not None and origin.is_examined)
        self._unexamined_before = origin.unexamined
        self._may_be_torn = origin.unexamined if self._is_memory_kept else None
        """Shards of which a power cut may have torn a file, until they are opened; None: all."""
        self._note_examined = note_examined
        self._noted = origin.unexamined if origin.is_memory_kept else None
        """What was noted as not examined; None: that nothing was."""
        self._store = store
        self._checkpoints: dict[ShardKey, dict[SegmentKey, Checkpoint]] = {}
        for key, checkpoint in store.load_all().items():
            self._checkpoints.setdefault(key.shard_key, {})[key] = checkpoint
        self._files = context.layout.list_shards()
        self._to_revoke: list[SegmentKey] = []
        self._held: dict[ShardKey, _HeldShard] = {}
        """Until `revoke_stale`."""
        self.lines = BoundedLines(
            log, lambda: context.turn.steady_ms, "`stratalog status` names each shard with its reason"
        )
        self._owed: dict[ShardLog, list[int]] = {}
        """What the last life owes: epochs to seal, and perhaps rolls to confirm."""
        self._restarts: dict[ShardKey, ShardRestart] = {}
        """The shards that are not opened or not healed yet."""
        self.unhealed: dict[ShardKey, restart_events.Heal] = {}
        self.waiting: dict[ShardKey, SegmentKey] = {}
        """Shards that are not opened before a segment is sealed that other nodes have a say in, or before the table of
        producers at its end is had."""
        self._partly: set[ShardKey] = set()
        """Shards that were opened only up to a segment whose seal they wait for."""
        self._unreadable: set[ShardKey] = set()
        """Shards whose files could not be read."""
        self.short_of_room: dict[ShardKey, None] = {}
        """Shards that a full disk kept from being opened at the start."""

    def replay_journal(self) -> int:
        """Blocking. Returns how many entries the journals of the last life had."""
        replay = JournalReplay(self._context)
        count = replay.run()
        for key in replay.made:
            self._files.setdefault(key.shard_key, []).append(key)
        return count

    async def recover_all(self) -> None:
        """Every shard of the catalog, a few side by side, and those that only have checkpoints left."""
        keys = list(dict.fromkeys((*self._context.catalog.shard_keys(), *self._checkpoints)))
        for start in range(0, len(keys), _SHARDS_AT_ONCE):
            # A task group, so that no read outlives a start that failed.
            async with asyncio.TaskGroup() as group:
                for key in keys[start : start + _SHARDS_AT_ONCE]:
                    group.create_task(self.recover(key))

    def hand_over(self) -> None:
        """Hand ended segments to be sealed, and rolls that the meta service does not know to be confirmed, in order."""
        owed, self._owed = self._owed, {}
        for shard, epochs in owed.items():
            if self._directory.get(shard.key) is shard:
                shard.begin_service(epochs)
        for key in [key for key in self._checkpoints if key not in self._restarts]:
            del self._checkpoints[key]  # of 10,000 large segments they hold gigabytes

    async def revoke_stale(self) -> None:
        """Before the node serves: what `RevokeStale` asked for, in one flush. Then the shards that it is about begin;
        on a full disk they wait for room. Blocking for that flush. Raises: Unavailable."""
        keys, self._to_revoke = self._to_revoke, []
        held, self._held = self._held, {}
        full: DiskFull | None = None
        try:
            if keys:
                self._store.revoke(keys)
        except DiskFull as error:
            full = error  # what belongs to no shard any more is revoked by the next start
        for one in held.values():
            try:
                if full is not None:
                    raise full
                await self._perform_all(one.shard, one.steps, one.opened, is_first=True)
            except DiskFull as error:
                self._wait_for_room(one.shard, error)
            else:
                self._restarted(one.shard.key)
            finally:
                one.opened.close()

    @property
    def is_examination_noted(self) -> bool:
        return self._noted == self._unexamined()

    async def note_examined(self) -> None:
        """After shards were opened, one call at a time: note which ones were not. The next start cannot tell a tail of
        theirs that a power cut took from one that the disk damaged. Call it again until `is_examination_noted`."""
        unexamined = self._unexamined()
        if self._noted == unexamined:
            return
        try:
            await self._context.threads.background(lambda: self._note_examined(unexamined))
        except StratalogError as error:
            log.warning("it could not be noted which files were examined", error=str(error))
        else:
            self._noted = unexamined

    def _unexamined(self) -> frozenset[ShardKey]:
        closed = self._restarts.keys() | self._unreadable
        return frozenset(closed if self._may_be_torn is None else closed & self._may_be_torn)

    # One shard ------------------------------------------------------------------------------------------------------
    async def recover(self, key: ShardKey) -> None:
        restart = self._begin(key)
        shard = self._directory.attach(key) if self._context.catalog.has_shard(key) else None
        if shard is None:
            self._forget_shard(restart.step(restart_events.FilesListed(None, frozenset(), self._claims(key))))
            return
        self._restarts[key] = restart
        await self._recover(shard, is_first=True)

    def _begin(self, key: ShardKey) -> ShardRestart:
        doubted_epoch = None if self._doubted is None else self._doubted.get(key, -1)
        return ShardRestart(self._context.node_id, doubted_epoch)

    async def recover_again(self, shard: ShardLog) -> None:
        """The disk holds more than before: look again. Afterwards the shard serves, or `unhealed` or its stop say why
        not. Raises: Unavailable, DiskFull, OSError; then nothing has changed."""
        await self._recover(shard, is_first=False)

    async def revoke(self, keys: Iterable[SegmentKey]) -> None:
        """At once: the node serves already, and the files hold, or will hold, other bytes than they were made of.
        Raises: Unavailable, DiskFull; then the next try finds them as they were."""
        kept = [key for key in keys if key in self._checkpoints.get(key.shard_key, {})]
        if kept:
            await self._context.threads.background(lambda: self._store.revoke(kept))
        for key in kept:  # only now: what is not in memory is not revoked on the disk again
            self._checkpoints.get(key.shard_key, {}).pop(key, None)

    def _claims(self, key: ShardKey) -> dict[SegmentKey, restart_events.CheckpointClaim]:
        """The claims of the files with which this shard's log continues. `replication/` examines those of followed
        copies."""
        checkpoints, listed = self._checkpoints.get(key, {}), self._context.catalog.segments(key)
        return {
            segment: restart_events.CheckpointClaim(checkpoint.position, checkpoint.next_offset, checkpoint.producers)
            for segment, checkpoint in checkpoints.items()
            if not is_shared(listed, segment.epoch) and not self._is_being_copied(segment)
        }

    def _is_being_copied(self, key: SegmentKey) -> bool:
        segment, node_id = self._context.catalog.segment(key), self._context.node_id
        if segment is None or segment.seal is None:
            return False
        return node_id in segment.replicas and node_id not in segment.local_nodes

    def _forget_shard(self, steps: list[restart_events.RestartStep]) -> None:
        """A deleted shard needs nothing else."""
        for step in steps:
            assert isinstance(step, restart_events.RevokeStale)
            self._to_revoke += step.keys

    async def _recover(self, shard: ShardLog, *, is_first: bool) -> None:
        key = shard.key
        if is_first:
            await self._free_deleted(key)
        if key in self._partly:  # opened again, with all that follows
            self._partly.discard(key)
            leave(shard, shard.ended)
            shard.ended = []
            self._restarts[key] = self._begin(key)
        tables: dict[SegmentKey, restart_events.Producers] = {}
        while True:
            # Anew each time: until a table came from afar others may have led the shard.
            listed = self._context.catalog.segments(key)
            if (shared := shared_before_own(listed, self._context.node_id)) is not None:
                self._wait_for_seal(shard, shared)
                if all(one.seal is not None for one in listed if one.epoch < shared.epoch):
                    return
                # Its seal waits for the seals of those before it, which only this node makes: open them anyway.
                self._partly.add(key)
            else:
                self.waiting.pop(key, None)
            end_epoch = None if shared is None else shared.epoch
            try:
                sealed = await self._pass(shard, listed, tables, is_first=is_first, end_epoch=end_epoch)
            except DiskFull as error:
                if not is_first:
                    raise
                self._wait_for_room(shard, error)
                return
            if sealed is None:
                break
            try:
                found = await self._context.tables.producers(sealed, is_far=not is_first)
            except Unavailable as error:
                if not is_first:
                    raise
                self._wait_for(shard, sealed, str(error))  # others are asked once this node serves
                return
            tables[sealed.key] = as_seen(found, self._context.turn.now_ms)
        if key not in self._held:
            self._restarted(key)

    def _restarted(self, key: ShardKey) -> None:
        if key not in self.unhealed and key not in self.waiting:
            del self._restarts[key]

    def _wait_for_room(self, shard: ShardLog, error: DiskFull) -> None:
        if self._close_for_now(shard, f"it needs room on the disk to be opened: {error}"):
            self.short_of_room[shard.key] = None

    async def _free_deleted(self, key: ShardKey) -> None:
        catalog = self._context.catalog
        for gone in deleted_files(self._files.get(key, ()), catalog.segments(key), catalog.log_start_offset(key)):
            log.info("a file of a segment that was deleted meanwhile is removed", segment=str(gone))
            await self._free(gone)

    async def _free(self, key: SegmentKey) -> None:
        """Remove a file that is no longer needed. If that fails the next start tries again."""
        try:
            await self._copies.free_local(None, key)
        except OSError as error:
            log.warning("a file that is not used any more stays for now", segment=str(key), error=str(error))

    async def _pass(
        self,
        shard: ShardLog,
        listed: Sequence[Segment],
        tables: Mapping[SegmentKey, restart_events.Producers],
        *,
        is_first: bool,
        end_epoch: int | None,
    ) -> Segment | None:
        """For what lies before that epoch, or for all. Returns: the sealed segment whose missing producer table stopped
        it."""
        key, restart = shard.key, self._restarts[shard.key]
        files = self._files.get(key, ()) if is_first else self._context.layout.list_shard(key)

        def is_due(epoch: int) -> bool:
            # What is shared with other nodes is followed, whoever led it (`replication/`).
            return (end_epoch is None or epoch < end_epoch) and not is_shared(listed, epoch)

        own = tuple(segment for segment in listed if is_due(segment.epoch))
        short = set() if self._is_continued else self._short_of_their_seals(listed)
        own_files = frozenset(file for file in files if is_due(file.epoch) and file not in short)
        claims = {file: claim for file, claim in self._claims(key).items() if is_due(file.epoch)}
        log_start_offset = self._context.catalog.log_start_offset(key)
        metadata = restart_events.ShardMetadata(
            own,
            log_start_offset,
            is_fsync=shard.rules.is_fsync,
            tables=dict(tables),
            may_read_bucket=self._context.catalog.reads_bucket(shard.key.topic_id),
        )
        in_memory = self._context.ends.found
        written = {one.key: in_memory[one.key] for one in own if one.key in in_memory}
        event = restart_events.FilesListed(metadata, own_files, claims, written)
        checkpoints = self._checkpoints.get(key, {})
        is_kept = self._is_memory_kept and key not in self._unexamined_before
        opened = OpenedFiles(self._context, self._flusher, shard, checkpoints, is_memory_kept=is_kept)
        try:
            steps = await self._perform_all(shard, restart.step(event), opened, is_first=is_first)
        finally:
            if key not in self._held:
                opened.close()
        last = steps[-1] if steps else None
        return last.segment if isinstance(last, restart_events.ReadProducers) else None

    def _short_of_their_seals(self, listed: Sequence[Segment]) -> set[SegmentKey]:
        """Segments whose file has another size than the seal says: the directory is in an older state. Blocking."""
        return {one.key for one in listed if one.seal is not None and not has_sealed_size(self._context.layout, one)}

    def _wait_for_seal(self, shard: ShardLog, shared: Segment) -> None:
        others = tuple(node_id for node_id in shared.replicas if node_id != self._context.node_id)
        who = f"other nodes {others} have a say in it" if others else "a recovery decides where it ends"
        reason = (
            f"segment {shared.base_offset}-{shared.epoch} is not sealed yet, and {who}: what producers wrote up to its "
            "end is known then"
        )
        self._wait_for(shard, shared, reason)

    def _wait_for(self, shard: ShardLog, awaited: Segment, why: str) -> None:
        """Its files are not touched meanwhile: scanned now, the log would begin without its producers."""
        if self._close_for_now(shard, why):
            self.waiting[shard.key] = awaited.key

    def _close_for_now(self, shard: ShardLog, why: str) -> bool:
        """Returns: whether its topic is still there."""
        if self._directory.get(shard.key) is not shard:
            return False
        reason = f"{shard.topic.name}-{shard.key.shard}: {why}"
        self.lines.warning("shard not opened yet", reason=reason)
        for segment in self._context.catalog.segments(shard.key):
            has_file = has_sealed_size(self._context.layout, segment)
            if segment.seal is not None and isinstance(
                judge_sealed(segment, self._context.node_id, has_file=has_file), restart_events.TakeSealed
            ):
                take_sealed(shard, segment)
        # A stop in order meanwhile must not take the doubt from it.
        doubted_epoch = shard.epoch if self._doubted is None else self._doubted.get(shard.key, -1)
        stop = Stop(reason, StopCause.HEALING)
        shard.recovered([], None, high_watermark=0, inherited=None, doubted_epoch=doubted_epoch, stop=stop)
        return True

    async def _perform_all(
        self, shard: ShardLog, steps: list[restart_events.RestartStep], opened: OpenedFiles, *, is_first: bool
    ) -> list[restart_events.RestartStep]:
        """To the end of the pass. Returns: the last steps."""
        while (event := await self._perform(shard, steps, opened, is_first=is_first)) is not None:
            steps = self._restarts[shard.key].step(event)
        return steps

    async def _perform(
        self, shard: ShardLog, steps: list[restart_events.RestartStep], opened: OpenedFiles, *, is_first: bool
    ) -> restart_events.RestartEvent | None:
        for number, step in enumerate(steps, 1):
            if is_first and isinstance(step, restart_events.RevokeStale):
                self._to_revoke += step.keys  # those of all shards in one flush
                self._held[shard.key] = _HeldShard(shard, steps[number:], opened)
                return None
            try:
                answer = await self._perform_step(shard, step, opened, is_first=is_first)
            except DiskFull:
                raise  # it says nothing about the file
            except (StratalogError, OSError) as error:
                return restart_events.StepFailed(
                    step.key if isinstance(step, restart_events.FileStep) else None, str(error)
                )
            except Exception as fault:  # one file's must not keep all other shards from being opened (F48)
                if not isinstance(step, restart_events.FileStep):
                    raise
                log.error("a segment's file cannot be opened: a fault", segment=str(step.key), exc_info=True)
                return restart_events.StepFailed(step.key, f"a fault in the node, see its log: {fault!r}")
            if answer is not None:
                return answer
        return None

    async def _perform_step(
        self, shard: ShardLog, step: restart_events.RestartStep, opened: OpenedFiles, *, is_first: bool
    ) -> restart_events.RestartEvent | None:
        if isinstance(step, restart_events.FileStep):
            return await opened.perform(step)
        match step:
            case restart_events.TakeSealed(segment):
                take_sealed(shard, segment)
            case restart_events.NoteMissing(segment):
                note_missing(shard, segment)
            case restart_events.FreeLeftover(key):
                await self._free(key)
            case restart_events.RevokeCheckpoints(keys) | restart_events.RevokeStale(keys):
                await self.revoke(keys)
            case restart_events.Serve(found):
                self.unhealed.pop(shard.key, None)
                self._unreadable.discard(shard.key)
                self._begin_serving(shard, found, opened, shard.stop if shard.key in self.waiting else None)
            case restart_events.Heal():
                self.unhealed[shard.key] = step
                reason = describe_missing(step, shard.topic.name)
                stop = Stop(reason, StopCause.HEALING)
                self._begin_serving(shard, step.log, opened, stop)
            case restart_events.StopShard(why, found):
                self.unhealed.pop(shard.key, None)
                self._unreadable.add(shard.key)
                log.error("shard cannot be opened", topic=shard.topic.name, shard=shard.key.shard, error=why)
                stop = Stop(why, StopCause.UNREADABLE)
                self._begin_serving(shard, found, opened, stop)
            case restart_events.SealEnded(key):
                self._owed.setdefault(shard, []).append(key.epoch)
            case restart_events.ReadProducers():
                pass  # done by who began the pass
            case restart_events.ConfirmRoll(_, new):
                log.info("unconfirmed roll found", topic=shard.topic.name, shard=shard.key.shard, epoch=new.epoch)
                self._owed.setdefault(shard, [])
            case _:
                assert_never(step)
        return None

    def _begin_serving(
        self, shard: ShardLog, found: restart_events.RecoveredLog, opened: OpenedFiles, stop: Stop | None
    ) -> None:
        """Life begins. In one go: a shard without a stop and without its files would begin them again."""
        if self._directory.get(shard.key) is not shard:
            return  # its topic was deleted meanwhile
        is_waiting = shard.key in self.waiting
        shard.recovered(
            [opened.activate(ended) for ended in found.ended],
            None if found.active is None else opened.activate(found.active),
            high_watermark=found.high_watermark,
            inherited=found.inherited,
            doubted_epoch=shard.chain.doubted_epoch if is_waiting else found.doubted_epoch,
            stop=stop,
        )


def describe_missing(missing: restart_events.Heal, topic: str) -> str:
    key = missing.segment.key
    return (
        f"{topic}-{key.shard}: offsets {missing.local_end} to {missing.known_end} of segment "
        f"{key.base_offset}-{key.epoch} are known to have been written and are not on this disk"
    )
