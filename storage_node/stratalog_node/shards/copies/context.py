"""What every part of `shards/` may use: this node's identity, where its data lies, and what the metadata say about it.

It is created once, before all its users, and never changes. The workers (`shards/log/workers.py`) are built from it,
and the shards (`shards/log/directory.py`) from both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from stratalog.machines.leading.producer_table import ProducerTable
from stratalog.meta_api.client import MetaClient
from stratalog.model.producers import ProducerRule, ProducerSnapshot
from stratalog.settings.process import ProcessSettings
from stratalog_node.disk.descriptors import Descriptors
from stratalog_node.disk.ends_in_memory import EndsInMemory
from stratalog_node.disk.layout import NodeLayout
from stratalog_node.disk.spare_files import SpareFiles
from stratalog_node.disk.threads import DiskThreads
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.catalog.lag import CatalogLag
from stratalog_node.shards.copies.cold_reads import ColdReads
from stratalog_node.shards.copies.direct_room import DirectRoom
from stratalog_node.shards.copies.due_shards import DueShards
from stratalog_node.shards.copies.events import ShardEvents
from stratalog_node.shards.copies.file_creations import FileCreations
from stratalog_node.shards.copies.file_removal import FileRemoval
from stratalog_node.shards.copies.followed_copies import FollowedCopies
from stratalog_node.shards.copies.peer_reads import PeerReads
from stratalog_node.shards.copies.producer_tables import ProducerTables
from stratalog_node.shards.copies.rolls_in_progress import RollsInProgress
from stratalog_node.shards.copies.sealed_points import SealedPoints
from stratalog_node.shards.copies.stats import ShardStats
from stratalog_node.shards.copies.stopped import StoppedShards
from stratalog_node.shards.copies.write_gate import WriteGate
from stratalog_node.turn import Turn


@dataclass(frozen=True, slots=True)
class ShardContext:
    node_id: int
    cluster_id: str
    settings: ProcessSettings
    catalog: Catalog
    meta: MetaClient
    lag: CatalogLag
    """Catches the catalog up with the metadata, for all who ask at the same time by one request."""
    layout: NodeLayout
    threads: DiskThreads
    descriptors: Descriptors
    ends: EndsInMemory
    spares: SpareFiles
    clock_ms: Callable[[], int]
    """Wall clock. What belongs to a turn takes the turn's."""
    turn: Turn
    events: ShardEvents
    stats: ShardStats
    sealed_points: SealedPoints
    gate: WriteGate
    direct_room: DirectRoom
    file_creations: FileCreations
    followed: FollowedCopies
    """What others lead and this node has copies of."""
    rolls_in_progress: RollsInProgress
    due_shards: DueShards
    """At the time, for shards."""
    stopped: StoppedShards
    tables: ProducerTables
    """Producer tables at the ends of sealed segments."""
    removal: FileRemoval
    """Removes the files of dropped segments. Its creator closes it."""

    @classmethod
    def of(
        cls,
        *,
        node_id: int,
        cluster_id: str,
        settings: ProcessSettings,
        catalog: Catalog,
        meta: MetaClient,
        layout: NodeLayout,
        threads: DiskThreads,
        descriptors: Descriptors,
        clock_ms: Callable[[], int],
        turn: Turn,
        cold: ColdReads | None = None,
        peers: PeerReads | None = None,
        ends: EndsInMemory | None = None,
    ) -> ShardContext:
        """With all that needs nothing else to be made."""
        stats = ShardStats()
        return cls(
            node_id,
            cluster_id,
            settings,
            catalog,
            meta,
            CatalogLag(catalog, meta),
            layout,
            threads,
            descriptors,
            ends or EndsInMemory(),
            SpareFiles(layout.spares, threads),
            clock_ms,
            turn,
            ShardEvents(),
            stats,
            SealedPoints(threads, settings.log_index_cache_bytes),
            WriteGate(turn, stats),
            DirectRoom(settings.direct_max_unacknowledged_bytes),
            FileCreations(turn),
            FollowedCopies(),
            RollsInProgress(),
            DueShards(),
            StoppedShards(),
            ProducerTables(node_id, layout, threads, descriptors, catalog, cold, peers),
            FileRemoval(layout, threads, catalog),
        )

    @property
    def producer_rule(self) -> ProducerRule:
        """By which tables of producers are sealed here; of a sealed one its seal says the rule."""
        return ProducerRule(self.settings.producer_id_max_per_shard, self.settings.producer_id_expiration_ms)

    def producer_table(self, snapshots: Iterable[ProducerSnapshot]) -> ProducerTable:
        return ProducerTable(snapshots, self.settings.producer_id_max_per_shard)
