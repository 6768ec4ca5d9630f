"""Brings back what a shard's disk lost and the meta service knows of: from the object store, beside the traffic.

A power cut takes the tail of a file that was not flushed, though parts of it are in the object store, and metadata
say so. Until the file is whole again the shard refuses with a retriable error; everything else serves. The bytes are
written where they were, so what lies behind a damaged place stays; they are checked against the digest chain of the
parts, and flushed, before the shard is read anew.
Offsets below the log start are not missed: the log goes on behind it, in a new segment.
Offsets that are nowhere stop the shard, which names them. With `uncleanSeal=allow` on the topic just they are given up
(`shards/giving_up.py`): a batch without records takes their place, so that the log has no gap, and what the object
store has behind them comes back. The checkpoint, which may be all that knows of them, is revoked once that is flushed:
until then the next start heals again, afterwards the file refutes it.
Lives on the event loop; files are written on the background threads. A store that is away holds up these shards only.
"""

from __future__ import annotations

import asyncio

from stratalog.formats.segment_file import encode_segment_header
from stratalog.model.commands import AdvanceLogStart, RollSegment
from stratalog.model.errors import Rejected, StratalogError, Unavailable
from stratalog.model.ids import ShardKey
from stratalog.model.segment import Segment, SegmentState
from stratalog.telemetry.logs import logger
from stratalog_node.backoff import Backoff
from stratalog_node.disk.files import FlushLost, SegmentFile
from stratalog_node.shards.catalog_wait import catalog_shows
from stratalog_node.shards.cold_reads import RemoteBatches
from stratalog_node.shards.context import ShardContext
from stratalog_node.shards.directory import ShardDirectory
from stratalog_node.shards.giving_up import GivingUp, joined
from stratalog_node.shards.new_segment import identity_of
from stratalog_node.shards.recovery import MissingTail, Recovery
from stratalog_node.shards.refill import Lost, Refill
from stratalog_node.shards.sealing import Sealing
from stratalog_node.shards.shard_log import ShardLog
from stratalog_node.shards.stopped import Stop, StopCause

log = logger(__name__)

_AT_ONCE = 4
_SHOWN_WITHIN_MS = 10_000


class Healing:
    def __init__(
        self,
        context: ShardContext,
        directory: ShardDirectory,
        recovery: Recovery,
        sealing: Sealing,
        remote: RemoteBatches | None,
    ) -> None:
        """`remote` is None on a node without an object store."""
        self._context = context
        self._directory = directory
        self._meta = context.meta
        self._recovery = recovery
        self._sealing = sealing
        self._remote = remote
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin with every shard that recovery left unhealed."""
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
        while (shard := self._directory.get(key)) is not None and (
            missing := self._recovery.unhealed.get(key)
        ) is not None:
            try:
                async with self._slots:
                    await self._bring_back(shard, missing)
                    await self._open_again(shard)
                continue
            except Lost as lost:
                self._stop(shard, missing, lost)
                return
            except (Rejected, FlushLost) as error:  # that a second flush succeeds proves nothing
                log.error("shard cannot be healed", topic=shard.topic.name, shard=shard.key.shard, error=str(error))
                shard.stop = Stop(str(error), StopCause.UNREADABLE)
                return
            except (StratalogError, OSError, TimeoutError) as error:
                shard.stop = self._waiting(shard, missing, str(error) or repr(error))
            except Exception as error:  # one shard's fault must not end in silence (F48)
                log.error("shard stopped by a fault", topic=shard.topic.name, shard=shard.key.shard, exc_info=True)
                reason = f"a fault in the node, see its log: {error}"
                shard.stop = Stop(reason, StopCause.UNREADABLE)
                return
            await backoff.pause()

    async def _open_again(self, shard: ShardLog) -> None:
        await self._recovery.recover_again(shard)
        if self._directory.get(shard.key) is not shard or shard.stop is not None:
            return
        self._recovery.hand_over(self._sealing)
        self._context.stats.healed_shards += 1
        log.info("shard healed", topic=shard.topic.name, shard=shard.key.shard, end_offset=shard.end_offset)
        self._context.turn.tell_moved(shard)

    def _waiting(self, shard: ShardLog, missing: MissingTail, why: str) -> Stop:
        reason = f"{missing.describe(shard.topic.name)} and cannot be brought back yet: {why}; it is tried again"
        if shard.stop is None or shard.stop.reason != reason:
            log.warning("shard not healed yet", reason=reason)
        return Stop(reason, StopCause.HEALING)

    def _stop(self, shard: ShardLog, missing: MissingTail, lost: Lost) -> None:
        path = self._context.layout.segment(missing.segment.key)
        log_start = self._context.catalog.log_start_offset(shard.key)
        ranges = joined(lost.ranges, log_start) or lost.ranges
        offsets = ", ".join(f"{base_offset} to {end_offset}" for base_offset, end_offset in ranges)
        reason = (
            f"{shard.topic.name}-{shard.key.shard}: offsets {offsets} were written and are lost: {path} lacks them, "
            f"and {lost}"
        )
        log.error("local data is lost", error=reason)
        shard.stop = Stop(reason, StopCause.DATA_LOST)

    # One attempt ------------------------------------------------------------------------------------------------------
    async def _bring_back(self, shard: ShardLog, missing: MissingTail) -> None:
        segment = self._context.catalog.segment(missing.segment.key)
        if segment is None:
            return  # deleted meanwhile
        log_start = self._context.catalog.log_start_offset(shard.key)
        if log_start >= missing.known_end > missing.local_end:
            await self._go_on_behind(shard, segment, log_start, missing)
            return
        path = self._context.layout.segment(segment.key)
        committed_end = max(segment.remote.commit_offset, segment.base_offset)
        if committed_end == segment.base_offset and not shard.rules.gives_up_lost and not path.exists():
            # Nothing to begin with: the name stays free for a copy that somebody puts there.
            raise Lost([(missing.local_end, missing.known_end)], "the object store has nothing of the segment")
        file = await self._open(shard, segment)
        file.pin()
        try:
            file.fd()  # writes and their flush go through one descriptor
            refill = Refill(self._context, self._remote, segment, file)
            try:
                lost = await refill.up_to(missing.known_end)
                if lost is not None:
                    shard.stop = self._waiting(shard, missing, str(lost))
                    await self._give_up(shard, segment, refill, file, missing.known_end, lost)
            finally:
                # Also what is not whole yet: the next start takes what it finds for flushed up to the checkpoint.
                if refill.has_written:
                    await self._context.threads.background(lambda: file.sync(with_names=True))
        finally:
            file.unpin()
            file.close()

    async def _go_on_behind(self, shard: ShardLog, segment: Segment, log_start: int, missing: MissingTail) -> None:
        """All that is missing was deleted: end the segment at the log start, and with it its life."""
        if segment.state is SegmentState.ACTIVE:
            await self._meta.perform(RollSegment(segment.key, log_start))
        await self._meta.perform(AdvanceLogStart(shard.key, log_start))
        while not await catalog_shows(lambda: self._context.catalog.segment(segment.key) is None, _SHOWN_WITHIN_MS):
            log.warning("a segment that was ended and deleted is still in the catalog", segment=str(segment.key))
        shard.inherited = missing.producers

    async def _open(self, shard: ShardLog, segment: Segment) -> SegmentFile:
        """The segment's file, made if it is gone."""
        path = self._context.layout.segment(segment.key)
        if path.exists():
            return SegmentFile(path, self._context.descriptors, path.stat().st_size)
        file = SegmentFile(path, self._context.descriptors, 0)
        file.create(encode_segment_header(identity_of(self._context, segment.key, shard.topic.name)))
        return file

    async def _give_up(
        self, shard: ShardLog, segment: Segment, refill: Refill, file: SegmentFile, end_offset: int, lost: Lost
    ) -> None:
        """What is lost, from where `refill` got to, if that may be. Raises: Lost when it may not, with just that named;
        Unavailable when it is there after all."""
        giving_up = GivingUp(self._context, self._remote, segment)
        holes = await giving_up.find_holes(refill.scan.next_offset, end_offset)
        if not holes or holes[0][0] != refill.scan.next_offset:
            raise Unavailable(str(lost))
        if not shard.rules.gives_up_lost:
            raise Lost(holes, str(lost))
        for base_offset, hole_end in holes:
            log.error(
                "offsets given up: they are lost, and uncleanSeal=allow",
                topic=shard.topic.name,
                shard=shard.key.shard,
                base_offset=base_offset,
                end_offset=hole_end,
            )
        await giving_up.fill(file, refill.scan, holes, end_offset)
        await self._recovery.revoke(segment.key)
        self._context.stats.given_up_offsets += sum(hole_end - base_offset for base_offset, hole_end in holes)
