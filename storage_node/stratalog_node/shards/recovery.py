"""Restart: what the disk holds, brought together with what the meta service knows.

For each shard: sealed copies are taken as they are (their index blocks are read later), a SEALING segment is read and
queued for its seal, the active one is scanned from its checkpoint and its room ahead or torn tail is cut, and a roll
that meta never heard of is confirmed now. Shards without files cost a dictionary entry: 10,000 idle ones start in well
under a second.
Runs before the node serves; scans on the disk threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from stratalog.formats.checkpoint import Checkpoint
from stratalog.formats.index_points import IndexBuilder, IndexPoint
from stratalog.formats.record_batch import walk
from stratalog.formats.segment_file import (
    SEGMENT_HEADER_BYTES,
    check_identity,
    decode_segment_header,
    encode_segment_header,
)
from stratalog.kafka.error_codes import ErrorCode
from stratalog.machines.producer_table import ProducerTable
from stratalog.machines.segment_leader import SegmentLeader
from stratalog.model.errors import Corrupt, StratalogError
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.segment import RemoteState, Segment, SegmentIdentity, SegmentState
from stratalog.telemetry.logs import logger
from stratalog_node.disk.files import SegmentFile, read_front, sync_names_of
from stratalog_node.disk.segment_scan import SegmentScan
from stratalog_node.shards.active import ActiveSegment
from stratalog_node.shards.journal_replay import JournalReplay
from stratalog_node.shards.node_shards import NodeShards
from stratalog_node.shards.sealed import SealedCopy
from stratalog_node.shards.shard_log import ShardLog
from stratalog_node.shards.stopped import Stop, StopCause

if TYPE_CHECKING:
    from stratalog_node.shards.sealing import Sealing

log = logger(__name__)

_SHARDS_AT_ONCE = 32
_SHORT_BYTES = 64 << 10


class Recovery:
    def __init__(self, node: NodeShards, checkpoints: Mapping[SegmentKey, Checkpoint]) -> None:
        self._node = node
        self._checkpoints = checkpoints
        self._files = node.layout.list_shards()
        self._to_seal: list[tuple[ShardLog, ActiveSegment]] = []
        self._to_confirm: list[tuple[ShardLog, ActiveSegment, ActiveSegment]] = []
        self._used: set[SegmentKey] = set()

    def replay_journal(self) -> int:
        """Blocking. Returns how many entries the journals of the last life had."""
        replay = JournalReplay(self._node)
        count = replay.run()
        for key in replay.made:
            self._files.setdefault(key.shard_key, []).append(key)
        return count

    async def recover_all(self) -> None:
        """Every shard of the catalog, a few side by side."""
        keys = list(self._node.catalog.shard_keys())
        for start in range(0, len(keys), _SHARDS_AT_ONCE):
            # A group, so that nothing goes on reading behind a start that was given up.
            async with asyncio.TaskGroup() as group:
                for key in keys[start : start + _SHARDS_AT_ONCE]:
                    group.create_task(self.recover(key))

    def hand_over(self, sealing: Sealing) -> None:
        """Ended segments go on to be sealed, rolls that meta has not heard of to be confirmed, in order."""
        for shard, ended in self._to_seal:
            sealing.recovered(shard, ended)
        for shard, old, new in self._to_confirm:
            sealing.rolled(shard, old, new)

    def stale_checkpoints(self) -> list[SegmentKey]:
        """Those of no segment that is still written or sealed, and those that their file contradicts. Delete them
        before the node serves: a file that grows past such a position again would be cut there."""
        return [key for key in self._checkpoints if key not in self._used]

    # One shard ------------------------------------------------------------------------------------------------------
    async def recover(self, key: ShardKey) -> None:
        shard = self._node.attach(key)
        if shard is None:
            return
        files = self._files.get(key)
        segments = self._node.catalog.segments(key)
        if not files:
            self._check_nothing_is_lost(shard, segments)
            return
        try:
            await self._recover_files(shard, segments, set(files))
        except (StratalogError, OSError) as error:
            log.error("shard cannot be opened", topic=shard.topic.name, shard=key.shard, error=str(error))
            shard.refusal = Stop(ErrorCode.KAFKA_STORAGE_ERROR, str(error), StopCause.UNREADABLE)

    def _check_nothing_is_lost(self, shard: ShardLog, segments: list[Segment]) -> None:
        """No file: fine for a segment never written to, an alarm when data of it is known elsewhere."""
        for segment in segments:
            if segment.state is SegmentState.SEALED or not self._node.is_local_state(segment):
                continue
            known_end = segment.end_offset if segment.end_offset is not None else segment.remote.commit_offset
            if known_end > segment.base_offset:
                path = self._node.layout.segment(segment.key)
                message = (
                    f"{shard.topic.name}-{shard.key.shard}: segment {segment.base_offset}-{segment.epoch} reached "
                    f"offset {known_end} but its file is gone: put {path} back, then start the node again"
                )
                log.error("local data is lost", error=message)
                shard.refusal = Stop(ErrorCode.KAFKA_STORAGE_ERROR, message, StopCause.DATA_LOST)
                shard.high_watermark = max(shard.high_watermark, known_end)

    async def _recover_files(self, shard: ShardLog, segments: list[Segment], files: set[SegmentKey]) -> None:
        table = ProducerTable()
        for segment in segments:
            has_file = segment.key in files
            files.discard(segment.key)
            match segment.state:
                case SegmentState.SEALED:
                    assert segment.seal is not None
                    table = ProducerTable(segment.seal.producers)
                    if has_file and self._node.node_id in segment.local_nodes:
                        self._take_sealed(shard, segment)
                    elif has_file and segment.remote.state is RemoteState.COMPLETE:
                        # A crash after meta agreed to free the copy and before the file was gone.
                        await self._node.free_local(None, segment.key)
                    elif not has_file and self._node.node_id in segment.local_nodes:
                        log.error("local copy of a sealed segment is missing", segment=str(segment.key))
                case SegmentState.SEALING:
                    if not has_file:
                        self._check_nothing_is_lost(shard, [segment])
                        return
                    ended = await self._scan(shard, segment, table)
                    ended.leader.is_ended = True
                    ended.producers_at_end = table.snapshot()
                    shard.ended.append(ended)
                    self._to_seal.append((shard, ended))
                case SegmentState.ACTIVE:
                    if not has_file:
                        self._check_nothing_is_lost(shard, [segment])
                        break
                    shard.active = await self._scan(shard, segment, table)
                    shard.high_watermark = shard.active.leader.end_offset
                case _:
                    pass
        await self._take_unknown_rolls(shard, files)

    def _take_sealed(self, shard: ShardLog, segment: Segment) -> None:
        assert segment.seal is not None
        layout = self._node.layout
        size_bytes = SEGMENT_HEADER_BYTES + segment.seal.size_bytes
        file = SegmentFile(layout.segment(segment.key), self._node.descriptors, size_bytes)
        shard.copies[segment.epoch] = SealedCopy(segment.key, file, layout.index(segment.key), segment.seal)

    async def _scan(self, shard: ShardLog, segment: Segment, table: ProducerTable) -> ActiveSegment:
        """Open an unsealed segment's file and find its end. `table` is the producer state before it, and after it."""
        known_end = segment.end_offset if segment.end_offset is not None else segment.remote.commit_offset
        return await self._open(shard, segment.key, table, known_end=known_end)

    async def _open(
        self, shard: ShardLog, key: SegmentKey, table: ProducerTable, *, is_confirmed: bool = True, known_end: int = 0
    ) -> ActiveSegment:
        path = self._node.layout.segment(key)
        file = SegmentFile(path, self._node.descriptors, path.stat().st_size)
        identity = self._identify(file, shard, key)
        data_bytes = file.size_bytes - SEGMENT_HEADER_BYTES
        scan, checked_bytes = await self._scan_file(file, key, data_bytes, table)
        if scan.next_offset < known_end:
            # Before anything is cut: behind one damaged batch there may be whole ones that somebody can save.
            raise Corrupt(
                f"its batches end at offset {scan.next_offset}, but {known_end} is known to have been written",
                source=str(path),
                position=SEGMENT_HEADER_BYTES + scan.position,
            )
        if scan.position < data_bytes:
            if not _holds_only_zeros_from(file, SEGMENT_HEADER_BYTES + scan.position):
                torn = data_bytes - scan.position
                self._node.stats.torn_tail_bytes += torn
                log.warning(
                    "torn tail cut", file=str(path), bytes=torn, end_offset=scan.next_offset, reason=scan.stopped
                )
            file.truncate(SEGMENT_HEADER_BYTES + scan.position)
        flushed_bytes = SEGMENT_HEADER_BYTES + checked_bytes if checked_bytes else 0
        if shard.rules.is_fsync and checked_bytes < scan.position:
            # What is found here is below the high watermark from now on, and a repetition of it is acknowledged.
            await self._node.threads.read(lambda: _flush(file))
            flushed_bytes = file.size_bytes
        leader = SegmentLeader(
            key,
            self._node.node_id,
            shard.rules.roll,
            table,
            isr=(self._node.node_id,),
            end_offset=scan.next_offset,
            size_bytes=scan.position,
            max_timestamp_ms=scan.index.max_timestamp_ms,
            first_append_ms=identity.created_ms if scan.position else None,
            is_confirmed=is_confirmed,
        )
        active = ActiveSegment(identity, file, leader, scan.index)
        active.flushed_bytes = flushed_bytes
        if checked_bytes < scan.position:
            # So that the next start does not read it again, also when nobody writes until then.
            self._node.written(shard, active)
        return active

    def _identify(self, file: SegmentFile, shard: ShardLog, key: SegmentKey) -> SegmentIdentity:
        """What the file's header says, checked; a file whose header was never written is made again."""
        path = file.path
        identity = SegmentIdentity(
            self._node.cluster_id,
            key.topic_id,
            shard.topic.name,
            key.shard,
            key.epoch,
            key.base_offset,
            self._node.now_ms,
        )
        front = read_front(path, SEGMENT_HEADER_BYTES) or b""
        if len(front) < SEGMENT_HEADER_BYTES or not any(front):
            # The crash came while the file was being made (or the power went before any of it was flushed).
            if file.size_bytes > SEGMENT_HEADER_BYTES:
                self._set_aside(key)
            file.create(encode_segment_header(identity))
            return identity
        found = decode_segment_header(front, source=str(path))
        check_identity(found, identity, source=str(path))
        return found

    async def _scan_file(
        self, file: SegmentFile, key: SegmentKey, data_bytes: int, table: ProducerTable
    ) -> tuple[SegmentScan, int]:
        """The state at the end of the valid batches, and the position of the checkpoint it started from."""
        before = table.snapshot()
        scan = self._resume(key, data_bytes, table)
        start = scan.position
        await self._advance(scan, file, data_bytes)
        if start == scan.position < data_bytes and start > 0 and not self._ends_whole(file, scan):
            # Not one batch follows the checkpoint: rather a wrong checkpoint than a tail torn just there.
            log.warning("checkpoint doubted: reading the segment from its start", file=str(file.path), position=start)
            again = ProducerTable(before)
            full = await self._advance(SegmentScan.begin(key, again), file, data_bytes)
            if full.position != start:
                table.replace(again.snapshot())
                full.producers = table
                return full, 0
        if start:
            self._used.add(key)
        return scan, start

    @staticmethod
    def _ends_whole(file: SegmentFile, scan: SegmentScan) -> bool:
        """Whether room ahead begins where the scan stands, and the batches before it, from the last index point on, end
        just there. Only their headers count: a batch damaged since it was flushed is no reason to cut what follows."""
        if not _holds_only_zeros_from(file, SEGMENT_HEADER_BYTES + scan.position):
            return False
        points = scan.index
        last = points[len(points) - 1] if len(points) else IndexPoint(scan.key.base_offset, 0, -1)
        data = file.read(SEGMENT_HEADER_BYTES + last.position, scan.position - last.position)
        next_offset = last.offset
        try:
            for _, header in walk(
                data, source=str(file.path), verify=False, expected_base_offset=next_offset, epoch=scan.key.epoch
            ):
                next_offset = header.end_offset
        except Corrupt:
            return False
        return next_offset == scan.next_offset

    async def _advance(self, scan: SegmentScan, file: SegmentFile, data_bytes: int) -> SegmentScan:
        def work() -> SegmentScan:
            return scan.advance(lambda at, size: file.read(SEGMENT_HEADER_BYTES + at, size), data_bytes)

        if scan.position == data_bytes:
            return scan
        if data_bytes - scan.position <= _SHORT_BYTES:
            return work()  # nobody is served yet, and a thread costs more than this
        return await self._node.threads.read_file(file, work)

    def _resume(self, key: SegmentKey, data_bytes: int, table: ProducerTable) -> SegmentScan:
        checkpoint = self._checkpoints.get(key)
        if checkpoint is None or checkpoint.position > data_bytes:
            return SegmentScan.begin(key, table)
        table.replace(checkpoint.producers)
        index = IndexBuilder.resume(
            key.base_offset,
            checkpoint.points,
            checkpoint.position,
            checkpoint.first_timestamp_ms,
            checkpoint.max_timestamp_ms,
        )
        return SegmentScan(key, index, table, checkpoint.position, checkpoint.next_offset, checkpoint.digest)

    async def _take_unknown_rolls(self, shard: ShardLog, files: set[SegmentKey]) -> None:
        """Files of epochs that meta does not list: rolls that were not confirmed, or leftovers for the deletion
        worker. A chain of them goes on as it was: nothing in it counts until meta has confirmed it."""
        for key in sorted(files, key=lambda key: (key.epoch, key.base_offset)):
            old = shard.active
            if old is None or key.epoch <= old.key.epoch:
                continue
            if key.epoch != old.key.epoch + 1 or key.base_offset != old.leader.end_offset:
                self._set_aside(key)
                continue
            try:
                old.producers_at_end = old.leader.producers.snapshot()
                new = await self._open(shard, key, old.leader.producers, is_confirmed=False)
            except Corrupt as error:
                log.warning("unconfirmed segment is damaged", error=str(error))
                old.producers_at_end = None
                self._set_aside(key)
                continue
            old.leader.is_ended = True
            shard.ended.append(old)
            shard.active = new
            self._to_confirm.append((shard, old, new))
            log.info("unconfirmed roll found", topic=shard.topic.name, shard=shard.key.shard, epoch=key.epoch)

    def _set_aside(self, key: SegmentKey) -> None:
        """Batches after a gap: never acknowledged, because their roll was not. Kept under another name for a human."""
        path = self._node.layout.segment(key)
        target = path.with_suffix(".unconfirmed")
        log.warning("unacknowledged segment set aside", file=str(path), kept_as=str(target))
        path.rename(target)


def _holds_only_zeros_from(file: SegmentFile, position: int) -> bool:
    """Blocking: one window in the usual case, for a torn tail is seen at its first byte and room ahead is short."""
    positions = range(position, file.size_bytes, _SHORT_BYTES)
    return not any(file.read(at, min(_SHORT_BYTES, file.size_bytes - at)).strip(b"\0") for at in positions)


def _flush(file: SegmentFile) -> None:
    file.sync()
    sync_names_of([file.path])
