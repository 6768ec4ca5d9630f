"""Restart: what the disk holds, brought together with what the meta service knows.

For each shard: sealed copies are taken as they are (their index blocks are read later), a SEALING segment is read and
queued for its seal, the active one is scanned from its checkpoint and its room ahead or torn tail is cut, and a roll
that meta never heard of is confirmed now. Shards without files cost a dictionary entry: 10,000 idle ones start in well
under a second.

A shard of which the disk holds less than was written does not serve: `unhealed` says what is missing, and
`shards/healing.py` brings it back. What was written is known to the meta service (ends of segments, parts in the object
store, the log start) and to the checkpoint: it is written once all below it was flushed, so offsets below it that are
not in the file are gone from the disk. It is as old as it may be after a power cut, and says less then, never more. A
checkpoint may be wrong itself; then its file refutes it: whole batches lead to its offset at another place
(`shards/opening.py`). Less than that refutes nothing. What changes a file against its checkpoint revokes it before the
file is served, and once it is whole on the disk: until then the checkpoint tells what is missing.
Unless the last stop was in order, the segment that was active takes no more
batches: what was given in it may be lost, and no offset is given twice in an epoch.
Runs before the node serves, and again for a shard that was healed; scans on the disk threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from stratalog.machines.producer_table import ProducerTable
from stratalog.model.errors import Corrupt, StratalogError
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.producers import ProducerSnapshot
from stratalog.model.segment import RemoteState, Segment, SegmentState
from stratalog.telemetry.logs import logger
from stratalog_node.disk.checkpoints import Checkpoints
from stratalog_node.shards.active import ActiveSegment
from stratalog_node.shards.context import ShardContext
from stratalog_node.shards.copy_files import CopyFiles
from stratalog_node.shards.directory import ShardDirectory
from stratalog_node.shards.flusher import Flusher
from stratalog_node.shards.journal_replay import JournalReplay
from stratalog_node.shards.missing_files import note_missing, take_sealed
from stratalog_node.shards.opening import SegmentOpener, TailMissing, set_aside
from stratalog_node.shards.sealing import Sealing
from stratalog_node.shards.shard_log import ShardLog
from stratalog_node.shards.stopped import Stop, StopCause

log = logger(__name__)

_SHARDS_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class MissingTail:
    """Offsets `[local_end, known_end)` of an unsealed segment are not on the disk."""

    segment: Segment
    local_end: int
    known_end: int
    producers: tuple[ProducerSnapshot, ...]
    """As they were at the end of what is there."""

    def describe(self, topic: str) -> str:
        key = self.segment.key
        return (
            f"{topic}-{key.shard}: offsets {self.local_end} to {self.known_end} of segment "
            f"{key.base_offset}-{key.epoch} are known to have been written and are not on this disk"
        )


@dataclass(slots=True)
class _Found:
    """What one pass over a shard found, kept only when the pass ended well."""

    active: ActiveSegment | None = None
    high_watermark: int = 0
    ended: list[ActiveSegment] = field(default_factory=list)
    to_seal: list[ActiveSegment] = field(default_factory=list)
    to_confirm: list[tuple[ActiveSegment, ActiveSegment]] = field(default_factory=list)


class Recovery:
    def __init__(
        self,
        context: ShardContext,
        directory: ShardDirectory,
        copies: CopyFiles,
        flusher: Flusher,
        store: Checkpoints,
        doubted: Mapping[ShardKey, int] | None = None,
    ) -> None:
        """Blocking. `doubted`: the shards in doubt, with their epochs; None when all are (`disk/clean_stop.py`)."""
        self._context = context
        self._directory = directory
        self._copies = copies
        self._doubted = doubted
        self._store = store
        self._checkpoints = store.load_all()
        self._opener = SegmentOpener(context, flusher, self._checkpoints)
        self._files = context.layout.list_shards()
        self._found: list[tuple[ShardLog, _Found]] = []
        self.unhealed: dict[ShardKey, MissingTail] = {}

    def replay_journal(self) -> int:
        """Blocking. Returns how many entries the journals of the last life had."""
        replay = JournalReplay(self._context)
        count = replay.run()
        for key in replay.made:
            self._files.setdefault(key.shard_key, []).append(key)
        return count

    async def recover_all(self) -> None:
        """Every shard of the catalog, a few side by side."""
        keys = list(self._context.catalog.shard_keys())
        for start in range(0, len(keys), _SHARDS_AT_ONCE):
            # A group, so that nothing goes on reading behind a start that was given up.
            async with asyncio.TaskGroup() as group:
                for key in keys[start : start + _SHARDS_AT_ONCE]:
                    group.create_task(self.recover(key))

    def hand_over(self, sealing: Sealing) -> None:
        """Ended segments go on to be sealed, rolls that meta has not heard of to be confirmed, in order."""
        for shard, found in self._found:
            for ended in found.to_seal:
                sealing.recovered(shard, ended)
        for shard, found in self._found:
            for old, new in found.to_confirm:
                sealing.rolled(shard, old, new)
        self._found.clear()
        for key in [key for key in self._checkpoints if key.shard_key not in self.unhealed]:
            del self._checkpoints[key]  # of 10,000 large segments they hold gigabytes

    def revoke_stale(self) -> None:
        """Blocking, before the node serves: a file that grows past such a position again would be cut there."""
        stale = self._stale()
        if stale:
            self._store.revoke(stale)

    def _stale(self) -> list[SegmentKey]:
        """Checkpoints of no segment that is still written or sealed, and those that their file refutes. Those of an
        unhealed shard say what it must be healed to."""
        stale = [key for key in self._checkpoints if key not in self._opener.used]
        return [key for key in stale if key.shard_key not in self.unhealed]

    # One shard ------------------------------------------------------------------------------------------------------
    async def recover(self, key: ShardKey) -> None:
        shard = self._directory.attach(key)
        if shard is None:
            return
        active = self._context.catalog.active_segment(key)
        if active is not None:
            shard.doubted_epoch = active.epoch if self._doubted is None else self._doubted.get(key, -1)
        await self._recover(shard, set(self._files.get(key, ())))

    async def recover_again(self, shard: ShardLog) -> None:
        """The disk holds more than before: look anew. Afterwards the shard serves, or `unhealed` or its stop say why
        not."""
        self.unhealed.pop(shard.key, None)
        await self._recover(shard, set(self._context.layout.list_shard(shard.key)), is_first=False)

    async def revoke(self, key: SegmentKey) -> None:
        """The file will hold other bytes than those the checkpoint was made of."""
        if self._checkpoints.pop(key, None) is not None:
            await self._context.threads.background(lambda: self._store.revoke([key]))

    async def _recover(self, shard: ShardLog, files: set[SegmentKey], *, is_first: bool = True) -> None:
        segments = self._context.catalog.segments(shard.key)
        found = _Found()
        stop: Stop | None = None
        try:
            await self._recover_files(shard, list(segments), files, found)
            if not is_first:
                for key in [key for key in self._stale() if key.shard_key == shard.key]:
                    await self.revoke(key)
        except (StratalogError, OSError) as error:
            log.error("shard cannot be opened", topic=shard.topic.name, shard=shard.key.shard, error=str(error))
            stop = Stop(str(error), StopCause.UNREADABLE)
            found.to_confirm.clear()
        # From here on in one go: a shard without a stop and without its files would begin them anew.
        for copy in shard.ended:
            copy.file.retire()  # of the pass before
        shard.ended = found.ended  # what could be opened is read, also where the rest could not
        missing = self.unhealed.get(shard.key)
        if missing is not None:
            # What the object store holds stays readable meanwhile.
            shard.high_watermark = max(shard.high_watermark, missing.known_end)
            reason = missing.describe(shard.topic.name)
            shard.stop = Stop(reason, StopCause.HEALING)
            return
        if stop is None:
            shard.active = found.active
            shard.high_watermark = max(shard.high_watermark, found.high_watermark)
        shard.stop = stop
        self._found.append((shard, found))

    async def _recover_files(
        self, shard: ShardLog, segments: list[Segment], files: set[SegmentKey], found: _Found
    ) -> None:
        table = self._context.producer_table(shard.inherited or ())
        for segment in segments:
            has_file = segment.key in files
            files.discard(segment.key)
            match segment.state:
                case SegmentState.SEALED:
                    assert segment.seal is not None
                    table = self._context.producer_table(segment.seal.producers)
                    if has_file and self._context.node_id in segment.local_nodes:
                        take_sealed(shard, segment)
                    elif has_file and segment.remote.state is RemoteState.COMPLETE:
                        # A crash after meta agreed to free the copy and before the file was gone.
                        await self._copies.free_local(None, segment.key)
                    elif not has_file and self._context.node_id in segment.local_nodes:
                        note_missing(shard, segment)
                case SegmentState.SEALING | SegmentState.ACTIVE:
                    if self._context.node_id not in segment.replicas:
                        return
                    copy = await self._open(shard, segment, table, has_file=has_file)
                    if shard.key in self.unhealed:
                        return
                    if segment.state is SegmentState.SEALING:
                        assert copy is not None
                        copy.leader.is_ended = True
                        copy.producers_at_end = table.snapshot()
                        found.ended.append(copy)
                        found.to_seal.append(copy)
                    elif copy is None:
                        shard.inherited = table.snapshot()
                    else:
                        found.active = copy
                        found.high_watermark = copy.leader.high_watermark
                case _:
                    pass
        await self._take_unknown_rolls(shard, files, found)

    async def _open(
        self, shard: ShardLog, segment: Segment, table: ProducerTable, *, has_file: bool
    ) -> ActiveSegment | None:
        """An unsealed segment's file, its end found. None: it is ACTIVE and nobody has written to it, or it is entered
        in `unhealed`. `table` is the producer state before it, and after it."""
        known_end = known_end_of(segment)
        log_start = self._context.catalog.log_start_offset(shard.key)
        checkpoint = self._checkpoints.get(segment.key)
        if segment.state is SegmentState.ACTIVE:
            # Records were deleted up to there, or flushed, so there were some: the log goes on behind them.
            known_end = max(known_end, log_start, segment.base_offset if checkpoint is None else checkpoint.next_offset)
        local_end = segment.base_offset
        if has_file:
            try:
                return await self._opener.open(shard, segment.key, table, known_end=known_end)
            except TailMissing as missing:
                local_end = missing.local_end
        else:
            if checkpoint is not None and checkpoint.position == 0:
                table.replace(checkpoint.producers)
            if local_end == known_end and segment.state is SegmentState.ACTIVE:
                return None
        if segment.state is SegmentState.ACTIVE:
            shard.doubted_epoch = segment.epoch  # the disk is not as the last life left it, however that ended
        self.unhealed[shard.key] = MissingTail(segment, local_end, known_end, table.snapshot())
        return None

    async def _take_unknown_rolls(self, shard: ShardLog, files: set[SegmentKey], found: _Found) -> None:
        """Files of epochs that meta does not list: rolls that were not confirmed, or leftovers for the deletion
        worker. A chain of them goes on as it was: nothing in it counts until meta has confirmed it."""
        for key in sorted(files, key=lambda key: (key.epoch, key.base_offset)):
            old = found.active
            if old is None or key.epoch <= old.key.epoch:
                continue
            path = self._context.layout.segment(key)
            if key.epoch != old.key.epoch + 1 or key.base_offset != old.leader.end_offset:
                set_aside(path)
                continue
            try:
                old.producers_at_end = old.leader.producers.snapshot()
                new = await self._opener.open(shard, key, old.leader.producers, is_confirmed=False)
            except Corrupt as error:
                log.warning("unconfirmed segment is damaged", error=str(error))
                old.producers_at_end = None
                set_aside(path)
                continue
            old.leader.is_ended = True
            found.ended.append(old)
            found.active = new
            found.to_confirm.append((old, new))
            log.info("unconfirmed roll found", topic=shard.topic.name, shard=shard.key.shard, epoch=key.epoch)


def known_end_of(segment: Segment) -> int:
    """Up to which offset an unsealed segment is known to have been written; its base when nothing is known."""
    end = segment.end_offset if segment.end_offset is not None else segment.remote.commit_offset
    return max(end, segment.base_offset)
