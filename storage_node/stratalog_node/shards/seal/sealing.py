"""Performs what follows a roll, off the hot path: flushes the ended segment, reports to the meta service
(`shards/seal/rolls.py`), scans and seals the segment.

`machines.leading.roll_order` decides when each of these is due; this performs it, with retries, and reports the result.
Seals of a shard are written in the order of the requests.
Lives on the event loop; scans run on the seal threads, two segments at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Protocol, assert_never

from stratalog.event_loop.task_set import TaskSet
from stratalog.formats.segments.index_block import IndexBlock, encode_index_block
from stratalog.formats.segments.producers import encode_table, tally_of
from stratalog.machines.following.copies_to_report import has_others
from stratalog.machines.leading import chain_events
from stratalog.machines.leading.leader_events import (
    FenceRaised,
    IsrCommitted,
    ProposalReadBack,
    ProposeIsr,
)
from stratalog.machines.leading.sealed_producers import Producers, sealed_table
from stratalog.model.commands import table_commands as commands
from stratalog.model.commands.table_commands import AdvanceLogStart
from stratalog.model.errors import Conflict, Corrupt, Fenced, NotFound, Rejected, StratalogError, Unavailable
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.segment import RemoteState, SealRecord, Segment, SegmentState
from stratalog.telemetry.logs import logger
from stratalog_node.backoff import Backoff
from stratalog_node.disk.durable_files import sync_names_of, write_durably
from stratalog_node.disk.files import FlushLost
from stratalog_node.shards.copies.active import ActiveSegment
from stratalog_node.shards.copies.context import ShardContext
from stratalog_node.shards.copies.local_copy import LocalCopy
from stratalog_node.shards.copies.sealed import SealedCopy
from stratalog_node.shards.flush.flusher import Flusher
from stratalog_node.shards.seal.leadership_check import LeadershipCheck
from stratalog_node.shards.seal.producers_before import producers_before_seal
from stratalog_node.shards.seal.rolls import RolledShard, Rolls
from stratalog_node.shards.seal.successors import Successors

log = logger(__name__)

_PARALLEL_SEALS = 2
_FAULT_S, _LONGEST_FAULT_S = 0.1, 60.0
_DAMAGE_S, _LONGEST_DAMAGE_S = 1.0, 600.0
"""Pauses between the attempts to seal a damaged copy: each attempt reads the file."""
_USUAL_S = 1.0
"""Other replicas take so long at each seal: a pause below it is not worth a line in the log."""


class _NotYet(Unavailable):
    """Nothing failed here: others have still to do their part."""


class SealedShard(RolledShard, Protocol):
    """A shard as its rolls and seals see it. They report their results to it."""

    key: ShardKey

    def sealed(self, ended: ActiveSegment, copy: LocalCopy) -> None:
        """Its seal record is written."""
        ...

    def let_go(self, ended: ActiveSegment) -> None:
        """Deleted before it was sealed."""
        ...

    def take_out(self, segment: SegmentKey) -> LocalCopy | None:
        """This copy is no longer read from here."""
        ...


class Sealing:
    def __init__(
        self,
        context: ShardContext,
        flusher: Flusher,
        service_heard_ms: Callable[[], int],
        restore: Callable[[SegmentKey, int], Awaitable[str | None]],
    ) -> None:
        """`restore` puts back from the object store what the file of an ended segment lacks below an offset, and
        returns why it is not whole, or None."""
        self._context = context
        self._restore = restore
        self._meta = context.meta
        self._flusher = flusher
        self.successors = Successors(context, service_heard_ms)
        self.leadership_check = LeadershipCheck(context)
        self._seal_lines: dict[ShardKey, deque[ActiveSegment]] = {}
        self._unsealed: set[ActiveSegment] = set()
        self._rolls = Rolls(context, flusher, lambda ended: ended in self._unsealed)
        self._damaged: dict[ActiveSegment, str] = {}
        """Ended segments that cannot be sealed from what is here, and why."""
        self._faults: dict[ActiveSegment, Backoff] = {}
        """Ended segments whose seals met faults of the node, or damage."""
        self._slots = asyncio.Semaphore(_PARALLEL_SEALS)
        self._tasks = TaskSet()
        self._is_closing = False

    @property
    def unsealed_count(self) -> int:
        """Segments that ended and are neither sealed nor gone."""
        return len(self._unsealed)

    @property
    def damaged(self) -> list[SegmentKey]:
        """Segments that ended here and that this node cannot seal: their copy went bad."""
        return [active.key for active in self._damaged]

    @property
    def damage_lines(self) -> list[str]:
        """For people: each of them, what is wrong, and what to do next."""
        return [
            f"{active.identity.topic}-{key.shard}: segment {key.base_offset}-{key.epoch} ended and is not sealed: {why}"
            for active, why in self._damaged.items()
            for key in (active.key,)
        ]

    async def close(self) -> None:
        """Stop; what is not sealed yet is sealed by the next start."""
        self._is_closing = True
        await self.successors.close()
        await self.leadership_check.close()
        await self._tasks.cancel()

    # Rolls --------------------------------------------------------------------------------------------------------
    def ended(self, old: ActiveSegment, new: ActiveSegment | None = None) -> None:
        """`new`: what was rolled into just now."""
        self.successors.forget(old.key)
        self._context.rolls_in_progress.note_roll()
        self._unsealed.add(old)
        self._rolls.ended(old, new)

    async def name_behind(self, shard: SealedShard, key: SegmentKey) -> None:
        """Before one that ended is taken out, see `Rolls.name_behind`."""
        await self._rolls.name_behind(shard, key)

    def left(self, old: ActiveSegment) -> None:
        """It was deleted before it was sealed, and its file goes."""
        self._drop(old)

    def detached(self, unsealed: Iterable[ActiveSegment], *, is_replica: bool = False) -> None:
        """Their topic was deleted, or another node leads the shard now, perhaps with this one as its replica: the work
        under way for them learns that from the meta service. The service does not know segments whose opening was not
        confirmed, so their files are removed here."""
        for active in unsealed:
            self._drop(active, is_replica=is_replica and active.leader.is_confirmed)
            if not active.leader.is_confirmed:
                self._context.removal.begin(active.key, active.file)

    def perform(self, shard: SealedShard, segment: ActiveSegment, effect: chain_events.RollEffect) -> None:
        """Begin it; the result is reported to the shard."""
        match effect:
            case chain_events.FlushSegment():
                self._start_roll(shard, lambda: self._rolls.flush(shard, segment))
            case chain_events.ConfirmRoll(_, end_offset):
                self._start_roll(shard, lambda: self._rolls.confirm(shard, segment, end_offset))
            case chain_events.DropEmptySegment(_, log_start_offset):
                self._start_roll(shard, lambda: self._drop_empty(shard, segment, log_start_offset))
            case chain_events.SealSegment():
                self._seal_later(shard, segment)
            case chain_events.PrepareSuccessorOf():
                self.successors.prepare(shard, segment.key)
            case chain_events.ProposeIsrOf(_, proposal):
                self._tasks.start(self._propose_isr(shard, segment, proposal))
            case _:
                assert_never(effect)

    def _start_roll(self, shard: SealedShard, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def work_or_stop() -> None:
            try:
                await work()
            except Exception as fault:
                # Rolls behind this one can no longer be confirmed: the batches that wait for them must be answered.
                log.error("rolls stopped by a fault", topic=shard.topic.name, shard=shard.key.shard, exc_info=True)
                shard.stop_after_fault(f"a fault in the node, see its log: {fault}")

        self._tasks.start(work_or_stop())

    async def _drop_empty(self, shard: SealedShard, old: ActiveSegment, log_start_offset: int) -> None:
        try:
            await self._meta.perform(AdvanceLogStart(shard.key, log_start_offset))
        except StratalogError as error:
            log.warning("segment without records is kept for now", segment=str(old.key), error=str(error))
            shard.handle(chain_events.EmptySegmentKept(old.key.epoch))
        else:
            self._let_go(shard, old)

    async def _propose_isr(self, shard: SealedShard, active: ActiveSegment, proposal: ProposeIsr) -> None:
        epoch, was_refused = active.key.epoch, False
        try:
            segment = await self._meta.perform(commands.ProposeIsr(active.key, proposal.isr, proposal.version))
        except Fenced:
            shard.handle(chain_events.SegmentEventReceived(epoch, FenceRaised(epoch)))
            return
        except StratalogError as error:
            log.warning(
                "the outcome of an ISR change is unknown: reading it back", segment=str(active.key), error=str(error)
            )
            was_refused = isinstance(error, Rejected)
        else:
            shard.handle(chain_events.SegmentEventReceived(epoch, IsrCommitted(segment.isr, segment.isr_version)))
            return
        read = await self._read_back(active.key)
        if read is not None:
            shard.handle(
                chain_events.SegmentEventReceived(
                    epoch, ProposalReadBack(proposal, read.isr, read.isr_version, was_refused)
                )
            )

    async def _read_back(self, key: SegmentKey) -> Segment | None:
        """The segment as it is now or was after this call began, however often it takes; None when it is gone. When a
        node dies, thousands of segments are read back at once: they share one request."""
        backoff = Backoff()
        while True:
            await backoff.pause()  # before the first request, too: it repeats one that failed just now
            if await self._context.lag.catch_up():
                return self._context.catalog.segment(key)
            log.debug("segment not read back yet", segment=str(key), retry_s=backoff.next_s)

    # Seals --------------------------------------------------------------------------------------------------------
    def _seal_later(self, shard: SealedShard, old: ActiveSegment) -> None:
        """Behind those asked for before."""
        line = self._seal_lines.get(shard.key)
        if line is None:
            self._seal_lines[shard.key] = deque([old])
            self._tasks.start(self._seal_in_order(shard))
        else:
            line.append(old)

    async def _seal_in_order(self, shard: SealedShard) -> None:
        line = self._seal_lines[shard.key]
        try:
            while line:
                try:
                    await self._seal(shard, line[0])
                except Exception:  # the segments behind it must still be sealed
                    self._context.stats.seal_failures += 1
                    log.error("segment not sealed yet: a fault", segment=str(line[0].key), exc_info=True)
                    self._tasks.start(self._seal_again(shard, line[0]))
                line.popleft()
        finally:
            self._seal_lines.pop(shard.key, None)

    async def _seal_again(
        self, shard: SealedShard, old: ActiveSegment, first_s: float = _FAULT_S, longest_s: float = _LONGEST_FAULT_S
    ) -> None:
        """After a pause: behind what was asked for meanwhile."""
        await self._faults.setdefault(old, Backoff(first_s, longest_s)).pause()
        if old in self._unsealed:
            self._seal_later(shard, old)

    async def _seal(self, shard: SealedShard, old: ActiveSegment) -> None:
        backoff = Backoff()
        block: IndexBlock | None = None
        if len(old.leader.replicas) > 1:
            await self._context.rolls_in_progress.wait_until_none()
        while True:
            if old not in self._unsealed:
                return  # others seal it, or it is gone
            if self._is_needless(old):
                if old in shard.ended:
                    shard.take_out(old.key)
                    old.file.close_when_unused()
                    self._context.removal.begin(old.key, old.file)
                return
            try:
                if block is None:
                    self._require_heard(old.key)
                    block = await self._make_block(old)
                block = await self._ask_seal(old, block)
                break
            except FlushLost as error:
                self._context.stats.seal_failures += 1
                log.error("segment cannot be sealed: its flush failed", error=str(error))
                if old in self._unsealed:  # else it says nothing of the shard, which may lead again
                    shard.handle(chain_events.SegmentFlushFailed(old.key.epoch, str(error)))
                return
            except (Corrupt, Rejected) as error:
                if await self._is_gone(old.key, error):
                    self._let_go(shard, old)  # deleted meanwhile, by retention or with its topic
                    return
                self._context.stats.seal_failures += 1
                log.error("segment cannot be sealed; it stays readable where it is whole", error=str(error))
                if isinstance(error, Corrupt) and old in self._unsealed:
                    self._damaged.setdefault(old, str(error))
                    if not self._has_others(old.key):
                        self._tasks.start(self._seal_again(shard, old, _DAMAGE_S, _LONGEST_DAMAGE_S))
                return
            except StratalogError as error:
                is_usual = isinstance(error, _NotYet) and backoff.next_s < _USUAL_S
                tell = log.debug if is_usual else log.warning
                tell("seal not written yet", segment=str(old.key), retry_s=backoff.next_s, error=str(error))
                await backoff.pause()
        self._context.stats.sealed += 1
        self._context.tables.sealed_here(old.key, block.seal, block.table)
        index_path = self._context.layout.index(old.key)
        copy = SealedCopy(old.key, old.file, index_path, block.seal, checked_from=0)  # the seal has checked it
        copy.damage = old.damage
        if old in shard.ended:
            self._context.sealed_points.hold(copy, block.points)
            shard.sealed(old, copy)
        self._drop(old)

    async def _make_block(self, old: ActiveSegment) -> IndexBlock:
        """Raises: Corrupt: the file is damaged, and the object store does not help."""
        make = partial(self._make_seal, old, await producers_before_seal(self._context, old))
        try:
            # A slot for the work, not for the waiting: two segments in trouble must not keep all others out.
            async with self._slots:
                return await self._context.threads.seal_file(old.file, make)
        except Corrupt as error:
            if not await self._is_restored(old, error):
                raise
        async with self._slots:
            block = await self._context.threads.seal_file(old.file, make)
        old.damage = None  # all of it was read again
        return block

    async def _is_restored(self, old: ActiveSegment, error: Corrupt) -> bool:
        """Whether the only copy is whole again. Other nodes of the ISR continue without a damaged one. Raises:
        FlushLost."""
        if self._has_others(old.key) or self._context.catalog.segment(old.key) is None:
            return False
        if old.damage is None:
            old.damage = str(error)
            self._context.stats.damaged_copies += 1
        log.error("segment to be sealed is damaged: asking the object store", segment=str(old.key), error=str(error))
        try:
            why_not = await self._restore(old.key, old.leader.end_offset)
        except FlushLost:
            raise
        except (StratalogError, OSError, TimeoutError) as failed:
            why_not = str(failed) or repr(failed)
        if why_not is None:
            log.info("damaged segment restored from the object store", segment=str(old.key))
            return True
        self._damaged[old] = (
            f"{error}; it is the only copy, and the damage cannot be repaired from the object store: {why_not}; next: "
            "put a good copy of the file back, or run `stratalog pipeline verify --repair` for the object; the node "
            "tries again by itself"
        )
        return False

    def _has_others(self, key: SegmentKey) -> bool:
        segment = self._context.catalog.segment(key)
        return segment is not None and has_others(segment, self._context.node_id)

    def _require_heard(self, key: SegmentKey) -> None:
        """Its table follows from when it was opened, and the watch may lag behind the answer to its roll. Raises:
        Unavailable."""
        listed = self._context.catalog.segments(key.shard_key)
        if listed and listed[-1].epoch < key.epoch:
            raise _NotYet(f"{key}: this node's metadata do not have it yet")

    async def _ask_seal(self, old: ActiveSegment, block: IndexBlock) -> IndexBlock:
        """Returns the block as it was sealed. Raises: Unavailable while others have still to report their copies."""
        if old.leader.followers is None:
            # The same record each time: after a lost answer another one (another time) would be a conflict.
            try:
                await self._meta.perform(commands.SealSegment(old.key, block.seal))
            except Conflict:
                log.info(
                    "the segment got another replica: its copy is reported instead of sealed", segment=str(old.key)
                )
            else:
                return block
        listed = self._context.catalog.segment(old.key)
        version = listed.isr_version if listed is not None else -1
        segment = await self._meta.perform(commands.ReportReplica(old.key, block.seal, version))
        if segment.state is SegmentState.DELETED:
            is_known = self._context.catalog.segment(old.key) is None
            raise (Conflict if is_known else Unavailable)(f"{old.key} was deleted meanwhile")
        if segment.seal is None:
            raise _NotYet("other replicas have not reported their copies yet")
        if self._context.node_id in segment.replicas and self._context.node_id not in segment.local_nodes:
            raise _NotYet("this node's metadata do not have all reports of its copies yet")
        table = block.table
        if segment.seal.producers != block.seal.producers:
            table = await self._context.tables.for_block(segment, None)
        sealed = IndexBlock(block.identity, segment.seal, block.points, table)
        await self._context.threads.background(lambda: self._write_index(sealed))
        return sealed

    async def _is_gone(self, key: SegmentKey, error: StratalogError) -> bool:
        """The catalog may lag behind who says that there is none."""
        if isinstance(error, NotFound):
            return await self._read_back(key) is None
        return self._context.catalog.segment(key) is None

    def _is_needless(self, old: ActiveSegment) -> bool:
        """Others sealed it, and readers use the object store: then a node that is not listed, or that has freed its
        copy, will not be listed again."""
        catalog = self._context.catalog
        segment = catalog.segment(old.key)
        if segment is None or segment.seal is None or segment.remote.state is not RemoteState.COMPLETE:
            return False
        if not catalog.reads_bucket(old.key.topic_id):
            return False
        return self._context.node_id not in segment.local_nodes

    def _write_index(self, block: IndexBlock) -> None:
        """Blocking."""
        path = self._context.layout.index(block.identity.key)
        write_durably(path, [encode_index_block(block.identity, block.seal, block.points, block.table)])
        sync_names_of([path])
        if not self._context.layout.segment(block.identity.key).exists():  # freed meanwhile, or deleted
            path.unlink(missing_ok=True)

    def _let_go(self, shard: SealedShard, old: ActiveSegment) -> None:
        """The deletion worker removes the file; the segment is no longer read."""
        shard.let_go(old)
        self._drop(old)

    def _drop(self, old: ActiveSegment, *, is_replica: bool = False) -> None:
        self._unsealed.discard(old)
        self._damaged.pop(old, None)
        self._faults.pop(old, None)
        self._rolls.forget(old)
        self.successors.forget(old.key)
        self._flusher.forget(old, keeps_checkpoint=is_replica)

    def _make_seal(self, old: ActiveSegment, before: Producers) -> IndexBlock:
        """Blocking: cut the room ahead, flush, read back and check every batch that no upload has read back yet (all of
        them where damage was found since), and write the index block beside the file."""
        old.file.cut_room()
        old.file.sync()
        again = old.damage is not None
        scan = old.read_back.finish(old.window_reader(), old.size_bytes, lambda: self._is_closing, again=again)
        if self._is_closing:
            raise Unavailable("the node is stopping")
        if scan.stopped is not None or scan.next_offset != old.leader.end_offset:
            raise Corrupt(
                f"segment should end at offset {old.leader.end_offset}, its batches end at {scan.next_offset}: "
                f"{scan.stopped or 'nothing follows'}",
                source=str(old.file.path),
                position=scan.position,
            )
        listed, rule = self._context.catalog.segment(old.key), self._context.producer_rule
        producers = sealed_table(
            before,
            scan.producers.snapshot(),
            base_offset=old.key.base_offset,
            opened_ms=listed.opened_ms if listed is not None else 0,
            rule=rule,
        )
        table = encode_table(producers)
        record = SealRecord(
            epoch=old.key.epoch,
            base_offset=old.key.base_offset,
            end_offset=scan.next_offset,
            first_timestamp_ms=scan.index.first_timestamp_ms,
            max_timestamp_ms=scan.index.max_timestamp_ms,
            size_bytes=scan.position,
            digest=scan.digest,
            producers=tally_of(producers, table, rule),
            replicas=(self._context.node_id,),
            sealed_ms=self._context.clock_ms(),
            times_known=scan.index.times_known,
        )
        points = scan.index.freeze()
        block = IndexBlock(old.identity, record, points, table)
        self._write_index(block)
        return block
