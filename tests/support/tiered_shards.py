"""A node's shards on a bench with a bucket: `ShardRig` plus the real uploader and cold reader over a store in memory,
which outlives crashes and power cuts as a bucket does."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any

from stratalog.formats.bucket.object_names import ObjectNames
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import Segment
from stratalog.objects.obstore_store import open_memory
from stratalog.objects.settings import StoreSettings
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.tier.cold.cold_limits import ColdReadLimits
from stratalog_node.tier.cold.cold_reader import ColdReader
from stratalog_node.tier.store.stats import TierStats
from stratalog_node.tier.uploads.committed_ranges import CommittedRanges
from stratalog_node.tier.uploads.uploader import NodeUploader
from support.faulty_store import FaultyStore
from support.shard_rig import NODE_ID, ShardRig
from support.tier_rig import RIG_LIMITS
from support.waiting import eventually


class TieredShardRig(ShardRig):
    """`uploaded` sends all that is committed; nothing else goes up by itself."""

    def __init__(self, root: Path, **settings: Any) -> None:
        super().__init__(root, **settings)
        self.store = FaultyStore(open_memory(StoreSettings(backoff_ms=1, backoff_cap_ms=2)), self.clock)
        self.uploader: NodeUploader

    async def start(self) -> None:
        cluster_id = self.meta.service.cluster_id
        self.names = names = ObjectNames("", cluster_id)
        self.remote = CommittedRanges(self.store, names, timeout_ms=2_000)

        async def reload(key: SegmentKey) -> Segment | None:
            return self.catalog.segment(key)

        self.cold: ColdReader = ColdReader(self.store, names, ColdReadLimits(), reload)
        await super().start()
        self.uploader = NodeUploader(
            node_id=NODE_ID,
            cluster_id=cluster_id,
            meta=self.meta,  # type: ignore[arg-type]  # passes calls on, and may hold them
            shards=self.shards,
            events=self.events,
            catalog=self.catalog,
            store=self.store,
            limits=RIG_LIMITS,
            clock_ms=lambda: time.monotonic_ns() // 1_000_000,
            rng=random.Random(1),
            holder=f"{NODE_ID}/{self.lives}",
            stats=TierStats(),
            lock_ttl_ms=60,
            doubt_ms=600_000,
            gather_ms=0,
            table_of=self.local.context.tables.find,
        )
        await self.uploader.start()

    async def stop(self) -> None:
        await self.uploader.close()
        await self.cold.close()
        await super().stop()

    async def crash(self) -> None:
        running = [*self.uploader._tasks, *self.uploader._uploads.values()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self.uploader._encoder.close()
        await self.cold.close()
        self.clock.now_ms += 100  # the dead life's lease is over
        await super().crash()

    async def uploaded(self) -> None:
        """Everything that is committed now is in the bucket, and metadata say so."""
        await self.uploader.flush_now(10_000)

    async def healed(self, shard: ShardLog) -> ShardLog:
        """The shard's object of this life, once it serves."""
        shard = self.shard(shard)
        await eventually(lambda: shard.stop is None)
        return shard
