"""Reads a bucket as the pipeline does, without Spark; and metadata put into a bucket as a meta service puts them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any
from uuid import uuid4

from stratalog.formats.bucket.cut import encode_cut
from stratalog.formats.bucket.meta_snapshot import MetaSnapshotId
from stratalog.formats.bucket.object_names import CutName, ObjectNames
from stratalog.machines.table.dump import Captured
from stratalog.machines.table.records import TableHeader
from stratalog.model.cut import Cut, CutShard
from stratalog.model.ids import ShardKey
from stratalog.model.segment import Segment
from stratalog.model.topic import Shard, Topic
from stratalog.objects import ObjectStore
from stratalog.stored.snapshots import write_snapshot
from stratalog_pipeline.cold.catalog import Catalog
from stratalog_pipeline.cold.cutting import Asked, PartRange
from stratalog_pipeline.cold.part_records import PartFetcher, tables_of
from stratalog_pipeline.decode.columns import Wanted
from support.cold_data import FIRST_TIME_MS, ColdShard
from support.tier_rig import TierRig

_numbers = iter(range(1, 1 << 30))


async def planned(
    store: ObjectStore, topics: Collection[str] | None = None, asked: Asked | None = None, **options: Any
) -> list[PartRange]:
    catalog = await Catalog.open(store, cluster_id=options.pop("cluster_id", None), **options)
    return await catalog.ranges(await catalog.shards(topics), asked or Asked())


async def rows(store: ObjectStore, cluster_id: str, ranges: Iterable[PartRange], **wanted: Any) -> list[dict[str, Any]]:
    """Of these ranges, through the fetching thread, which must not close the test's store."""
    names = ObjectNames("", cluster_id)

    def read() -> list[dict[str, Any]]:
        with PartFetcher(lambda: Kept(store), names) as fetcher:
            tables = [table for part in fetcher.fetch(ranges) for table in tables_of(part, Wanted(**wanted))]
            return [row for table in tables for row in table.to_pylist()]

    return await asyncio.to_thread(read)


async def offsets(store: ObjectStore, cluster_id: str, ranges: Iterable[PartRange], **wanted: Any) -> list[int]:
    return [row["offset"] for row in await rows(store, cluster_id, ranges, columns=("offset",), **wanted)]


class Kept:
    """A store that its reader may close."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def close(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def put_rig_metadata(rig: TierRig) -> None:
    """A snapshot of the metadata as they are now."""
    view = await rig.meta.snapshot()
    await put_metadata(rig.store, rig.cluster_id, view.topics, view.shards)


async def put_metadata(
    store: ObjectStore,
    cluster_id: str,
    topics: Iterable[Topic],
    shards: Iterable[Shard],
    deleted: Iterable[Segment] = (),
) -> None:
    number = next(_numbers)
    captured = Captured(TableHeader(cluster_id, number, 1), tuple(topics), tuple(shards), tuple(deleted))
    snapshot_id = MetaSnapshotId(cluster_id, number, number, uuid4())
    await write_snapshot(store, ObjectNames("", cluster_id), snapshot_id, captured, 1_700_000_000_000)


async def put_shard(
    cold: ColdShard, *, topic: str = "cold", log_start_offset: int = 0, until: int | None = None
) -> None:
    """Puts metadata that know the shard's segments, or the first `until` of them."""
    known: list[Segment] = cold.segments[:until]
    shards = [Shard(ShardKey(cold.topic_id, number), 0, ()) for number in range(cold.shard)]
    shards.append(Shard(ShardKey(cold.topic_id, cold.shard), log_start_offset, tuple(known)))
    await put_metadata(
        cold.store, cold.names.cluster_id, [Topic(topic, cold.topic_id, cold.shard + 1, 1, {}, 1)], shards
    )


async def put_cut(cold: ColdShard, name: str, start: int, end: int, epoch: int) -> None:
    """A snapshot of the shard by this name: its records `[start, end)`."""
    topic = Topic("cold", cold.topic_id, cold.shard + 1, 1, {}, 1)
    shards = (CutShard(ShardKey(cold.topic_id, cold.shard), start, end, epoch),)
    found = Cut(cold.names.cluster_id, name, FIRST_TIME_MS, (topic,), shards)
    await cold.store.put(cold.names.build(CutName(name)), [encode_cut(found)])


def without_parts(segment: Segment) -> Segment:
    """The segment as in metadata before any of it is in the bucket."""
    return replace(segment, remote=replace(segment.remote, parts=(), commit_offset=-1))
