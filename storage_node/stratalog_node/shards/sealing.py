"""What follows a roll, off the hot path: the meta service confirms it, then the ended segment is flushed, scanned and
sealed.

Order per shard: rolls are confirmed in order, seals written in order. The next segment's high watermark moves only
when its roll is confirmed *and* every batch of the ended one is committed (docs/design.md section 10).
An end is confirmed only once everything below it is on the disk: what the meta service knows, no power cut takes back.
Lives on the event loop; scans run on the seal threads, two segments at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from stratalog.formats.index_block import IndexBlock, encode_index_block
from stratalog.machines.producer_table import ProducerTable
from stratalog.machines.segment_leader import FenceRaised, IsrCommitted, OpeningConfirmed, ProposeIsr
from stratalog.model import commands
from stratalog.model.commands import AdvanceLogStart, RollSegment, SealSegment
from stratalog.model.errors import Conflict, Corrupt, Fenced, NotFound, Rejected, StratalogError, Unavailable
from stratalog.model.ids import ShardKey
from stratalog.model.segment import SealRecord
from stratalog.telemetry.logs import logger
from stratalog_node.backoff import Backoff
from stratalog_node.disk.files import FlushLost, sync_names_of, write_durably
from stratalog_node.disk.segment_scan import SegmentScan
from stratalog_node.shards.active import ActiveSegment
from stratalog_node.shards.context import ShardContext
from stratalog_node.shards.flusher import FlushedShard, Flusher
from stratalog_node.shards.local_copy import LocalCopy
from stratalog_node.shards.sealed import SealedCopy

log = logger(__name__)

_PARALLEL_SEALS = 2


class SealedShard(FlushedShard, Protocol):
    """A shard as its rolls and seals see it: what becomes of them is told to it."""

    key: ShardKey

    @property
    def log_start_offset(self) -> int: ...

    def confirmed(self, active: ActiveSegment, event: Any, now_ms: int) -> None:
        """The meta service answered something about this segment: step its leader with it."""
        ...

    def sealed(self, ended: ActiveSegment, copy: LocalCopy) -> None:
        """Its seal record is written."""
        ...

    def let_go(self, ended: ActiveSegment) -> None:
        """Deleted before it was sealed."""
        ...

    def stop_leading(self, reason: str) -> None: ...


@dataclass(slots=True)
class _Ended:
    shard: SealedShard
    old: ActiveSegment
    committed: asyncio.Event


class Sealing:
    def __init__(self, context: ShardContext, flusher: Flusher) -> None:
        self._context = context
        self._meta = context.meta
        self._flusher = flusher
        self._confirm_lines: dict[ShardKey, deque[tuple[_Ended, ActiveSegment]]] = {}
        self._seal_lines: dict[ShardKey, deque[_Ended]] = {}
        self._ended: dict[ActiveSegment, _Ended] = {}
        self._slots = asyncio.Semaphore(_PARALLEL_SEALS)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closing = False

    @property
    def unsealed_count(self) -> int:
        return len(self._ended)

    async def close(self) -> None:
        """Stop; what is not sealed yet is sealed by the next start."""
        self._is_closing = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Rolls --------------------------------------------------------------------------------------------------------
    def rolled(self, shard: SealedShard, old: ActiveSegment, new: ActiveSegment) -> None:
        ended = _Ended(shard, old, asyncio.Event())
        self._ended[old] = ended
        if old.is_wholly_committed:
            ended.committed.set()
        line = self._confirm_lines.get(shard.key)
        if line is None:
            self._confirm_lines[shard.key] = deque([(ended, new)])
            self._start(self._confirm_in_order(shard))
        else:
            line.append((ended, new))

    def ended_advanced(self, shard: SealedShard, active: ActiveSegment) -> None:
        ended = self._ended.get(active)
        if ended is not None and active.is_wholly_committed:
            ended.committed.set()

    def detached(self, shard: SealedShard, unsealed: Iterable[ActiveSegment]) -> None:
        """The shard's topic was deleted: what waits for it learns that from the meta service."""
        for ended, _ in self._confirm_lines.get(shard.key, ()):
            ended.committed.set()
        for active in unsealed:
            self._ended.pop(active, None)
            self._flusher.forget(active)

    async def _confirm_in_order(self, shard: SealedShard) -> None:
        line = self._confirm_lines[shard.key]
        try:
            while line:
                ended, new = line[0]
                # First committed and durable, then told: no power cut may take back an end that meta knows.
                await ended.committed.wait()
                if not await self._flush(ended) or not await self._confirm(ended):
                    return
                shard.confirmed(new, OpeningConfirmed(), self._context.clock_ms())
                line.popleft()
                if await self._is_given_up(ended):
                    self._let_go(ended)
                else:
                    self.seal_later(ended)
        except Exception as fault:
            # Nothing behind this roll can be confirmed any more: whoever waits for that must hear of it.
            log.error("rolls stopped by a fault", topic=shard.topic.name, shard=shard.key.shard, exc_info=True)
            shard.stop_after_fault(f"a fault in the node, see its log: {fault}")
        finally:
            self._confirm_lines.pop(shard.key, None)

    async def _flush(self, ended: _Ended) -> bool:
        """Put what has ended on the disk. False: it cannot be, so its end is never confirmed."""
        backoff = Backoff()
        while True:
            try:
                await self._flusher.make_durable(ended.old)
                return True
            except (FlushLost, NotFound) as error:
                log.error("roll not confirmed: what it ends cannot be flushed", error=str(error))
                ended.shard.flush_failed(ended.old, str(error), self._context.clock_ms())
                return False
            except StratalogError as error:
                log.warning("ended segment not flushed yet", segment=str(ended.old.key), error=str(error))
                await backoff.pause()

    async def _is_given_up(self, ended: _Ended) -> bool:
        """Whether an ended segment without records was deleted at once: an unclean start leaves one of each shard that
        is written to for the first time after it, and a seal, an index and a manifest of nothing help nobody."""
        key = ended.old.key
        if ended.old.leader.end_offset > key.base_offset or ended.shard.log_start_offset < key.base_offset:
            return False
        try:
            await self._meta.perform(AdvanceLogStart(key.shard_key, key.base_offset))
            return True
        except StratalogError as error:
            log.warning("segment without records stays", segment=str(key), error=str(error))
            return False

    async def _confirm(self, ended: _Ended) -> bool:
        """Tell the meta service where the segment ended, until it answers. False: this node leads no more."""
        old = ended.old
        backoff = Backoff()
        while True:
            try:
                await self._meta.perform(RollSegment(old.key, old.leader.end_offset))
                return True
            except (Fenced, Conflict, NotFound, Rejected) as error:
                log.warning("roll refused: this node leads the shard no more", segment=str(old.key), error=str(error))
                ended.shard.stop_leading(f"roll refused: {error}")
                return False
            except StratalogError as error:
                # Unavailable or unknown: rolling is idempotent for the same end, so ask again.
                log.warning("roll not confirmed yet", segment=str(old.key), retry_s=backoff.next_s, error=str(error))
                await backoff.pause()

    def propose_isr(self, shard: SealedShard, active: ActiveSegment, effect: ProposeIsr) -> None:
        self._start(self._propose_isr(shard, active, effect))

    async def _propose_isr(self, shard: SealedShard, active: ActiveSegment, effect: ProposeIsr) -> None:
        try:
            segment = await self._meta.perform(commands.ProposeIsr(active.key, tuple(effect.isr), effect.version))
        except Fenced:
            shard.confirmed(active, FenceRaised(active.key.epoch), self._context.clock_ms())
        except StratalogError as error:
            log.warning("ISR proposal failed", segment=str(active.key), error=str(error))
            shard.confirmed(
                active, IsrCommitted(active.leader.isr, active.leader.isr_version), self._context.clock_ms()
            )
        else:
            shard.confirmed(active, IsrCommitted(segment.isr, segment.isr_version), self._context.clock_ms())

    # Seals --------------------------------------------------------------------------------------------------------
    def recovered(self, shard: SealedShard, old: ActiveSegment) -> None:
        """A segment that meta knows as SEALING: found on the disk at start."""
        ended = _Ended(shard, old, asyncio.Event())
        ended.committed.set()
        self._ended[old] = ended
        self.seal_later(ended)

    def seal_later(self, ended: _Ended) -> None:
        line = self._seal_lines.get(ended.shard.key)
        if line is None:
            self._seal_lines[ended.shard.key] = deque([ended])
            self._start(self._seal_in_order(ended.shard))
        else:
            line.append(ended)

    async def _seal_in_order(self, shard: SealedShard) -> None:
        line = self._seal_lines[shard.key]
        try:
            while line:
                try:
                    await self._seal(line[0])
                except Exception:  # those behind it are sealed all the same; this one by the next start
                    self._context.stats.seal_failures += 1
                    log.error("segment not sealed: a fault", segment=str(line[0].old.key), exc_info=True)
                line.popleft()
        finally:
            self._seal_lines.pop(shard.key, None)

    async def _seal(self, ended: _Ended) -> None:
        old, shard = ended.old, ended.shard
        backoff = Backoff()
        block: IndexBlock | None = None
        while True:
            try:
                if block is None:
                    # A slot for the work, not for the waiting: two segments in trouble must not keep all others out.
                    async with self._slots:
                        block = await self._context.threads.seal_file(old.file, lambda: self._make_seal(old))
                # The same record each time: after a lost answer another one (another time) would be a conflict.
                await self._meta.perform(SealSegment(old.key, block.seal))
                break
            except FlushLost as error:
                self._context.stats.seal_failures += 1
                log.error("segment cannot be sealed: its flush failed", error=str(error))
                shard.flush_failed(old, str(error), self._context.clock_ms())
                return
            except (Corrupt, Rejected) as error:
                if self._context.catalog.segment(old.key) is None:
                    self._let_go(ended)  # deleted meanwhile, by retention or with its topic
                    return
                self._context.stats.seal_failures += 1
                log.error("segment cannot be sealed; it stays readable where it is whole", error=str(error))
                return
            except StratalogError as error:
                log.warning("seal not written yet", segment=str(old.key), retry_s=backoff.next_s, error=str(error))
                await backoff.pause()
        self._context.stats.sealed += 1
        index_path = self._context.layout.index(old.key)
        copy = SealedCopy(old.key, old.file, index_path, block.seal, checked_from=0)  # the seal has checked it
        copy.damage = old.damage
        if old in shard.ended:
            self._context.sealed_points.hold(copy, block.points)
            shard.sealed(old, copy)
        self._drop(ended)

    def _let_go(self, ended: _Ended) -> None:
        """The deletion worker takes the file away; nobody reads the segment any more."""
        ended.shard.let_go(ended.old)
        self._drop(ended)

    def _drop(self, ended: _Ended) -> None:
        self._ended.pop(ended.old, None)
        self._flusher.forget(ended.old)

    def _make_seal(self, old: ActiveSegment) -> IndexBlock:
        """Blocking: cut the room ahead, flush, read every batch back, check, digest, and write the index block beside
        the file."""
        old.file.cut_room()
        old.file.sync()
        scan = SegmentScan.begin(old.key, ProducerTable())
        scan.advance(old.window_reader(), old.size_bytes, lambda: self._is_closing)
        if self._is_closing:
            raise Unavailable("the node is stopping")
        if scan.stopped is not None or scan.next_offset != old.leader.end_offset:
            raise Corrupt(
                f"segment should end at offset {old.leader.end_offset}, its batches end at {scan.next_offset}: "
                f"{scan.stopped or 'nothing follows'}",
                source=str(old.file.path),
                position=scan.position,
            )
        assert old.producers_at_end is not None
        record = SealRecord(
            epoch=old.key.epoch,
            base_offset=old.key.base_offset,
            end_offset=scan.next_offset,
            first_timestamp_ms=scan.index.first_timestamp_ms,
            max_timestamp_ms=scan.index.max_timestamp_ms,
            size_bytes=scan.position,
            digest=scan.digest,
            producers=old.producers_at_end,
            replicas=(self._context.node_id,),
            sealed_ms=self._context.clock_ms(),
        )
        points = scan.index.freeze()
        path = self._context.layout.index(old.key)
        write_durably(path, [encode_index_block(old.identity, record, points)])
        sync_names_of([path])
        return IndexBlock(old.identity, record, points)
