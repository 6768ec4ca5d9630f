"""Brings back what a shard's disk lost and the meta service knows of: from the object store, beside the traffic.

A power cut takes the tail of a file that was not flushed, though parts of it are in the object store, and metadata
say so. Until the file is whole again the shard refuses with a retriable error; everything else serves. The bytes are
written where they were, so what lies behind a damaged place stays; they are checked against the digest chain of the
parts, and flushed, before the shard is read anew.
Offsets below the log start are not missed: the log goes on behind it, in a new segment.
Offsets that are nowhere stop the shard, which names them; with `uncleanSeal=allow` on the topic they are given up, and
a batch without records takes their place, so that the log has no gap.
Lives on the event loop; files are written on the background threads. A store that is away holds up these shards only.
"""

from __future__ import annotations

import asyncio

from stratalog.formats.records import encode_empty_batches
from stratalog.formats.segment_file import SEGMENT_HEADER_BYTES, encode_segment_header
from stratalog.kafka.error_codes import ErrorCode
from stratalog.meta_api.client import MetaClient
from stratalog.model.errors import Rejected, StratalogError
from stratalog.model.ids import ShardKey
from stratalog.model.segment import Segment, SegmentState
from stratalog.telemetry.logs import logger
from stratalog_node.backoff import Backoff
from stratalog_node.disk.files import FlushLost, SegmentFile, write_durably
from stratalog_node.disk.layout import GIVEN_UP_SUFFIX
from stratalog_node.disk.segment_scan import SegmentScan
from stratalog_node.shards.catalog_wait import catalog_shows
from stratalog_node.shards.new_segment import identity_of
from stratalog_node.shards.node_shards import NodeShards
from stratalog_node.shards.recovery import MissingTail, Recovery
from stratalog_node.shards.refill import Lost, Refill, RemoteBatches
from stratalog_node.shards.sealing import Sealing
from stratalog_node.shards.shard_log import ShardLog
from stratalog_node.shards.stopped import Stop, StopCause

log = logger(__name__)

_AT_ONCE = 4
_SHOWN_WITHIN_MS = 10_000
_PIECE_BYTES = 1 << 20
_LOOKS_AT_LOST = 6
"""An object that is gone or damaged is asked for so often, over a second or so, before it counts as lost, and is given
up where that is allowed: an answer may be damaged on its way, and metadata may move meanwhile."""


class Healing:
    def __init__(self, node: NodeShards, meta: MetaClient, recovery: Recovery, sealing: Sealing) -> None:
        self._node = node
        self._meta = meta
        self._recovery = recovery
        self._sealing = sealing
        self._remote: RemoteBatches | None = None
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, remote: RemoteBatches | None) -> None:
        """Begin with every shard that recovery left unhealed. `remote` is None on a node without an object store."""
        self._remote = remote
        for key in list(self._recovery.unhealed):
            task = asyncio.get_running_loop().create_task(self._heal(key), name="shard-healing")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """What is not healed yet is healed by the next start."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _heal(self, key: ShardKey) -> None:
        backoff = Backoff()
        looks = 0
        while (shard := self._node.get(key)) is not None and (missing := self._recovery.unhealed.get(key)) is not None:
            try:
                async with self._slots:
                    await self._bring_back(shard, missing, is_last_look=looks + 1 >= _LOOKS_AT_LOST)
                    await self._look_again(shard)
                continue
            except Lost as lost:
                looks += 1
                if lost.is_certain or looks >= _LOOKS_AT_LOST:
                    self._stop(shard, missing, lost)
                    return
                shard.refusal = self._waiting(shard, missing, str(lost))
            except (Rejected, FlushLost) as error:  # that a second flush succeeds proves nothing
                log.error("shard cannot be healed", topic=shard.topic.name, shard=shard.key.shard, error=str(error))
                shard.refusal = Stop(ErrorCode.KAFKA_STORAGE_ERROR, str(error), StopCause.UNREADABLE)
                return
            except (StratalogError, OSError, TimeoutError) as error:
                shard.refusal = self._waiting(shard, missing, str(error) or repr(error))
            except Exception as error:  # one shard's fault must not end in silence (F48)
                log.error("shard stopped by a fault", topic=shard.topic.name, shard=shard.key.shard, exc_info=True)
                reason = f"a fault in the node, see its log: {error}"
                shard.refusal = Stop(ErrorCode.KAFKA_STORAGE_ERROR, reason, StopCause.UNREADABLE)
                return
            await backoff.pause()

    async def _look_again(self, shard: ShardLog) -> None:
        await self._recovery.recover_again(shard)
        if self._node.get(shard.key) is not shard or shard.refusal is not None:
            return
        self._recovery.hand_over(self._sealing)
        self._node.stats.healed_shards += 1
        log.info("shard healed", topic=shard.topic.name, shard=shard.key.shard, end_offset=shard.end_offset)
        self._node.advanced(shard)

    def _waiting(self, shard: ShardLog, missing: MissingTail, why: str) -> Stop:
        reason = f"{missing.describe(shard.topic.name)} and cannot be brought back yet: {why}; it is tried again"
        if shard.refusal is None or shard.refusal.reason != reason:
            log.warning("shard not healed yet", reason=reason)
        return Stop(ErrorCode.KAFKA_STORAGE_ERROR, reason, StopCause.HEALING)

    def _stop(self, shard: ShardLog, missing: MissingTail, lost: Lost) -> None:
        path = self._node.layout.segment(missing.segment.key)
        base_offset = max(lost.base_offset, self._node.catalog.log_start_offset(shard.key))
        reason = (
            f"{shard.topic.name}-{shard.key.shard}: offsets {base_offset} to {lost.end_offset} were written and "
            f"are lost: {path} lacks them, and {lost}"
        )
        log.error("local data is lost", error=reason)
        shard.refusal = Stop(ErrorCode.KAFKA_STORAGE_ERROR, reason, StopCause.DATA_LOST)

    # One attempt ------------------------------------------------------------------------------------------------------
    async def _bring_back(self, shard: ShardLog, missing: MissingTail, *, is_last_look: bool) -> None:
        segment = self._node.catalog.segment(missing.segment.key)
        if segment is None:
            return  # deleted meanwhile
        log_start = self._node.catalog.log_start_offset(shard.key)
        if log_start >= missing.known_end > missing.local_end:
            await self._go_on_behind(shard, segment, log_start, missing)
            return
        path = self._node.layout.segment(segment.key)
        committed_end = max(segment.remote.commit_offset, segment.base_offset)
        if committed_end == segment.base_offset and not shard.rules.gives_up_lost and not path.exists():
            # Nothing to begin with: the name stays free for a copy that somebody puts there.
            raise Lost(missing.local_end, missing.known_end, "the object store has nothing of the segment")
        file = await self._open(shard, segment)
        file.pin()
        try:
            file.fd()  # writes and their flush go through one descriptor
            refill = Refill(self._node, self._remote, segment, file)
            try:
                lost = await refill.up_to(missing.known_end)
                if lost is not None:
                    if not shard.rules.gives_up_lost or not (lost.is_certain or is_last_look):
                        raise lost
                    await self._give_up(shard, file, refill.scan, missing.known_end)
            finally:
                # Also what is not whole yet: the next start takes what it finds for flushed up to the checkpoint.
                if refill.has_written:
                    await self._node.threads.background(lambda: file.sync(with_names=True))
        finally:
            file.unpin()
            file.close()

    async def _go_on_behind(self, shard: ShardLog, segment: Segment, log_start: int, missing: MissingTail) -> None:
        """All that is missing was deleted: end the segment at the log start, and with it its life."""
        if segment.state is SegmentState.ACTIVE:
            await self._meta.roll_segment(segment.key, log_start)
        await self._meta.advance_log_start(shard.key, log_start)
        while not await catalog_shows(lambda: self._node.catalog.segment(segment.key) is None, _SHOWN_WITHIN_MS):
            log.warning("a segment that was ended and deleted is still in the catalog", segment=str(segment.key))
        shard.inherited = missing.producers

    async def _open(self, shard: ShardLog, segment: Segment) -> SegmentFile:
        """The segment's file, made if it is gone."""
        path = self._node.layout.segment(segment.key)
        if path.exists():
            return SegmentFile(path, self._node.descriptors, path.stat().st_size)
        file = SegmentFile(path, self._node.descriptors, 0)
        file.create(encode_segment_header(identity_of(shard, segment.key)))
        return file

    async def _give_up(self, shard: ShardLog, file: SegmentFile, scan: SegmentScan, end_offset: int) -> None:
        """Batches without records in the place of `[scan.next_offset, end_offset)`."""
        base_offset = scan.next_offset
        log.error(
            "offsets given up: they are lost, and uncleanSeal=allow",
            topic=shard.topic.name,
            shard=shard.key.shard,
            base_offset=base_offset,
            end_offset=end_offset,
        )
        batches = encode_empty_batches(base_offset, end_offset, epoch=scan.key.epoch)
        position = SEGMENT_HEADER_BYTES + scan.position
        await self._recovery.revoke(scan.key)
        await self._node.threads.background(lambda: _save_rest(file, position))
        file.truncate(position)
        await self._node.threads.background(lambda: file.put_back(position, batches))
        self._node.stats.given_up_offsets += end_offset - base_offset


def _save_rest(file: SegmentFile, position: int) -> None:
    """Blocking: keep what lies from `position` on under another name, for a human, unless there is nothing. What an
    attempt kept that a crash cut short is not replaced by what that attempt wrote."""
    rest = (
        file.read(at, min(_PIECE_BYTES, file.size_bytes - at)) for at in range(position, file.size_bytes, _PIECE_BYTES)
    )
    kept = file.path.with_suffix(GIVEN_UP_SUFFIX)
    if position < file.size_bytes and not kept.exists():
        write_durably(kept, rest)
