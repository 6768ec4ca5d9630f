"""From options to pieces of work, and from a piece of work to tables; shared by batch and stream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from stratalog.objects import open_store
from stratalog_pipeline.cold.catalog import Catalog
from stratalog_pipeline.cold.cutting import Asked, PartRange, cut
from stratalog_pipeline.cold.part_records import read_tables
from stratalog_pipeline.decode.columns import SCHEMA, Wanted
from stratalog_pipeline.source.options import ReadOptions
from stratalog_pipeline.source.worker_heap import keep_imports_out_of_collections

ROW_TYPES = (
    "topic string, shard int, offset long, timestamp timestamp, timestamp_type int, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>, leader_epoch int"
)
"""docs/pipeline.md section 2."""


def columns_of(names: Sequence[str]) -> tuple[str, ...]:
    """Raises: ValueError for a column that no row has."""
    unknown = [name for name in names if name not in SCHEMA.names]
    if unknown:
        raise ValueError(f"there is no column {unknown[0]}: a row has {', '.join(SCHEMA.names)}")
    return tuple(names)


async def open_catalog(options: ReadOptions) -> Catalog:
    """The caller closes its store."""
    store = open_store(options.bucket)
    try:
        return await Catalog.open(
            store, cluster_id=options.cluster_id, meta_url=options.meta_url, snapshot_name=options.snapshot
        )
    except BaseException:
        await store.close()
        raise


def plan(options: ReadOptions, asked: Asked) -> tuple[str, list[list[PartRange]]]:
    """The cluster, and pieces of work for a batch."""

    async def run() -> tuple[str, list[list[PartRange]]]:
        catalog = await open_catalog(options)
        try:
            shards = await catalog.shards(options.topics)
            works = cut(await catalog.ranges(shards, asked), options.partition_bytes)
            return catalog.names.cluster_id, [work.ranges for work in works]
        finally:
            await catalog.store.close()

    return asyncio.run(run())


def tables(
    options: ReadOptions, cluster_id: str, ranges: Sequence[PartRange], columns: tuple[str, ...], asked: Asked
) -> Iterator[Any]:
    keep_imports_out_of_collections()
    wanted = Wanted(columns, from_ms=asked.from_ms, to_ms=asked.to_ms)
    yield from read_tables(options.bucket, cluster_id, ranges, wanted)
