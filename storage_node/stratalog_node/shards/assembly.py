"""Assembles the shards of one node: the disk, the workers, the shards themselves, restart and healing.

Each part gets what it needs when it is made, and nothing is bound later: turn and catalog (the caller's) > disk >
context > workers > directory > guards. A node or a test that runs shards opens them here.

`open_shards` reads what the disk holds, before the node serves any client; then call `start`; `healing.start` begins
the work that needs the object store. `close` flushes, so that the next start scans nothing. This module holds the order
of start and stop, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stratalog.meta_api.client import MetaClient
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.settings.process import ProcessSettings
from stratalog.telemetry.logs import logger
from stratalog.telemetry.metrics import MetricRegistry
from stratalog_node.buffers import BufferPool
from stratalog_node.disk.checkpoints import Checkpoints
from stratalog_node.disk.clean_stop import note_clean_stop, take_clean_stop
from stratalog_node.disk.descriptors import Descriptors
from stratalog_node.disk.durable_files import make_directories
from stratalog_node.disk.ends_in_memory import EndsInMemory
from stratalog_node.disk.further_directories import OpenedDirectory
from stratalog_node.disk.journal_file import list_journals, remove_journal
from stratalog_node.disk.layout import NodeLayout
from stratalog_node.disk.life_record import NOT_KNOWN, Origin
from stratalog_node.disk.lost_flushes import LostFlushes
from stratalog_node.disk.spare_files import clear_spare_files
from stratalog_node.disk.threads import DiskThreads
from stratalog_node.disk.write_behind import WriteBehind
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.copies.cold_reads import ColdReads, RemoteBatches
from stratalog_node.shards.copies.context import ShardContext
from stratalog_node.shards.copies.peer_reads import PeerReads
from stratalog_node.shards.copies.stopped import add_stopped_metric
from stratalog_node.shards.flush.disk_watch import DiskWatch
from stratalog_node.shards.flush.flusher import Flusher
from stratalog_node.shards.flush.space import SpaceGuard
from stratalog_node.shards.log.directory import ShardDirectory
from stratalog_node.shards.log.disk_usage import LocalDisk
from stratalog_node.shards.log.workers import ShardWorkers
from stratalog_node.shards.moves.copy_mover import NO_MOVES, MovePolicy
from stratalog_node.shards.moves.copy_places import choose_places
from stratalog_node.shards.moves.several_directories import SeveralDirectories
from stratalog_node.shards.read.other_sources import OtherSources
from stratalog_node.shards.read.reading import ShardReader
from stratalog_node.shards.read.time_lookups import TimeLookups
from stratalog_node.shards.restart.copy_files import CopyFiles
from stratalog_node.shards.restart.healed_file import restore_ended
from stratalog_node.shards.restart.healing import Healing
from stratalog_node.shards.restart.recovery import Recovery
from stratalog_node.shards.seal.sealing import Sealing
from stratalog_node.turn import Turn

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class LocalShards:
    """What was made, for who runs it. Invariant: all that was taken is given back by `close`."""

    context: ShardContext
    directory: ShardDirectory
    reader: ShardReader
    copies: CopyFiles
    disk: LocalDisk
    space: SpaceGuard
    watch: DiskWatch
    flusher: Flusher
    sealing: Sealing
    healing: Healing
    checkpoints: Checkpoints
    several: SeveralDirectories
    taken: AsyncExitStack
    """What must be given back, in the order in which it was taken."""

    def start(self) -> None:
        """Background flushes, and the guards of the space and of the disk."""
        self.space.start()
        self.watch.start()
        self.flusher.start()
        self.several.start()

    async def close(self) -> None:
        """In order. A step that fails keeps none of the others from being done."""
        await self.taken.aclose()

    def add_metrics(self, metrics: MetricRegistry) -> None:
        metrics.add("stratalog_log", self.context.stats)
        metrics.add("stratalog_index", self.context.sealed_points.stats)
        add_stopped_metric(metrics, self.directory)
        metrics.add("stratalog_flush", self.flusher.stats)
        metrics.add("stratalog_disk", self.space.stats)
        metrics.survey_with(self.space.count)
        metrics.add("stratalog_disk_health", self.watch.stats)
        self.several.add_metrics(metrics)


async def open_shards(
    *,
    node_id: int,
    node_epoch: int,
    cluster_id: str,
    settings: ProcessSettings,
    layout: NodeLayout,
    catalog: Catalog,
    meta: MetaClient,
    turn: Turn,
    pool: BufferPool,
    clock_ms: Callable[[], int],
    descriptor_limit: int,
    answer_bytes: int,
    cold: ColdReads | None,
    remote: RemoteBatches | None,
    peers: PeerReads | None = None,
    service_heard_ms: Callable[[], int],
    why_short: Callable[[], str | None] = lambda: None,
    origin: Origin = NOT_KNOWN,
    note_examined: Callable[[Iterable[ShardKey]], None] = lambda _: None,
    ends: EndsInMemory | None = None,
    opened: Sequence[OpenedDirectory] = (),
    moves: MovePolicy = NO_MOVES,
) -> LocalShards:
    """Every shard as the last life left it; from here on they follow the catalog.

    `answer_bytes` is what all answers together may hold; `cold` and `remote` are None on a node without an object
    store, `peers` on one that is alone; `service_heard_ms` says up to when the meta service is known to have heard this
    node. `opened`: the further directories (`open_directories`), whose locks the caller gives back. All of it or
    nothing: half a recovery leaves the disk as it found it, and what was taken is given back.

    Raises: Unavailable, DiskFull, Corrupt.
    """
    async with AsyncExitStack() as taken:
        make_directories(layout.segments, layout.journal, layout.checkpoints)
        await asyncio.to_thread(clear_spare_files, layout.spares)
        checkpoints = Checkpoints(layout.checkpoints)
        taken.callback(checkpoints.close)
        seconds = await asyncio.to_thread(choose_places, layout, opened, catalog.segment)
        threads = _threads_of(layout)
        journals = list_journals(layout.journal)
        flusher = Flusher(
            layout,
            threads,
            checkpoints,
            cluster_id=cluster_id,
            node_id=node_id,
            first_journal=int(journals[-1].stem) + 1 if journals else 1,
            interval_ms=settings.flush_interval_ms,
            clock_ms=clock_ms,
        )
        lost_flushes = LostFlushes(layout.lost_flushes, layout.root)
        descriptors = Descriptors(
            descriptor_limit,
            flush_lost=lost_flushes.note,
            on_crowded=flusher.flush_soon,
            write_behind=WriteBehind(threads).begin,
            calls=threads.calls,
        )
        taken.callback(descriptors.close)
        taken.callback(threads.close)
        context = ShardContext.of(
            node_id=node_id,
            cluster_id=cluster_id,
            settings=settings,
            catalog=catalog,
            meta=meta,
            layout=layout,
            threads=threads,
            descriptors=descriptors,
            clock_ms=clock_ms,
            turn=turn,
            cold=cold,
            peers=peers,
            ends=ends,
        )
        taken.callback(context.ends.close)
        await asyncio.to_thread(context.ends.begin, _is_unsealed(catalog, node_id))
        taken.push_async_callback(context.spares.close)
        taken.push_async_callback(context.tables.close)
        sealing = Sealing(context, flusher, service_heard_ms, partial(restore_ended, context, remote))
        other_sources = OtherSources(cold, peers)
        reader = ShardReader(pool, answer_bytes, descriptor_limit // 4, other_sources)
        directory = ShardDirectory(context, ShardWorkers(flusher, sealing, reader, TimeLookups(other_sources)))
        copies = CopyFiles(context, directory)
        disk = LocalDisk(layout.root, directory, layout.further)
        await asyncio.to_thread(lost_flushes.rewrite_files)
        doubted = take_clean_stop(layout.clean_file, node_epoch)
        recovery = Recovery(context, directory, copies, flusher, checkpoints, doubted, origin, note_examined)
        await _recover(recovery, journals)
        catalog.on_change(directory.follow)
        # Only now do these have anything to end.
        space = SpaceGuard(context.gate, disk, reserve_bytes=settings.disk_reserve_bytes, why_short=why_short)
        watch = DiskWatch(context.gate, threads, layout, settings.disk_stall_ms)
        healing = Healing(context, directory, recovery, remote)
        several = SeveralDirectories(context, directory, seconds, moves)
        taken.push_async_callback(_stop, context, node_epoch, flusher, directory)
        for part in (directory.news, space, watch, context.removal, several, sealing, healing):
            taken.push_async_callback(part.close)
        parts = (context, directory, reader, copies, disk, space, watch, flusher, sealing, healing, checkpoints)
        return LocalShards(*parts, several, taken.pop_all())


def _threads_of(layout: NodeLayout) -> DiskThreads:
    threads = DiskThreads()
    for further in layout.roots[1:]:
        threads.add_directory(further)
    return threads


def _is_unsealed(catalog: Catalog, node_id: int) -> Callable[[SegmentKey], bool]:
    """Whether batches of it may lie here that no seal record counts."""

    def is_unsealed(key: SegmentKey) -> bool:
        segment = catalog.segment(key)
        return segment is not None and segment.seal is None and node_id in segment.replicas

    return is_unsealed


async def _stop(context: ShardContext, node_epoch: int, flusher: Flusher, directory: ShardDirectory) -> None:
    """The last flush; if it took all, the next start scans nothing."""
    if await flusher.close():
        note_clean_stop(context.layout.clean_file, node_epoch, directory.doubted())


async def _recover(recovery: Recovery, journals: list[Path]) -> None:
    if journals:
        entries = await asyncio.to_thread(recovery.replay_journal)
        log.info("journal replayed", entries=entries)
    await recovery.recover_all()
    await recovery.revoke_stale()
    for path in journals:
        remove_journal(path)
    recovery.hand_over()
    await recovery.note_examined()
