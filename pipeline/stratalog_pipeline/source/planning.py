"""From options to pieces of work, and from a piece of work to tables; shared by batch and stream."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stratalog.connect.contexts import place_of
from stratalog.connect.http_login import HttpLogin, http_login
from stratalog.model.errors import InvalidRequest, NotFound
from stratalog.objects import open_store
from stratalog.telemetry.logs import logger
from stratalog_pipeline.cold.catalog import Catalog
from stratalog_pipeline.cold.committed import CommittedShard
from stratalog_pipeline.cold.cutting import Asked, PartRange, ShardName, cut
from stratalog_pipeline.cold.part_records import fetch_part, read_tables, tables_of
from stratalog_pipeline.decode.columns import SCHEMA, UnreadBatch, Wanted
from stratalog_pipeline.source.options import EARLIEST_OFFSET, LATEST_OFFSET, Point, ReadOptions
from stratalog_pipeline.source.worker_heap import keep_imports_out_of_collections

log = logger(__name__)

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
    meta_url, login = meta_place(options, os.environ)
    store = open_store(options.bucket)
    try:
        return await Catalog.open(
            store,
            cluster_id=options.cluster_id,
            meta_url=meta_url,
            snapshot_name=options.snapshot,
            meta_login=login,
        )
    except BaseException:
        await store.close()
        raise


def meta_place(options: ReadOptions, environment: Mapping[str, str]) -> tuple[str | None, HttpLogin]:
    """The meta service that is asked, if any, and how: options go before the environment, that before the context.
    Raises: NotFound, InvalidRequest for a context."""
    meta_url, context = place_of("meta", options.meta_url, options.context, environment)
    found = http_login(environment, context)
    return meta_url, HttpLogin(
        options.token_file or found.token_file, options.certificate_folder or found.certificate_folder
    )


async def chosen_shards(catalog: Catalog, options: ReadOptions, *, is_beginning: bool = True) -> list[CommittedShard]:
    """Of the topics and shards that the options name. Raises: NotFound for one that is not there; of a stream that has
    begun, only for a topic."""
    found = await catalog.shards(options.topics)
    if options.topic_pattern is not None:
        found = [one for one in found if re.fullmatch(options.topic_pattern, one.topic)]
    asked = options.asked
    if is_beginning:
        _check_known("assign", asked.only or (), found)
        _check_known("fromOffset", asked.starts, found)
        _check_known("toOffset", asked.ends, found)
        missing = (asked.shards or frozenset()) - {one.key.shard for one in found}
        if missing:
            raise NotFound(f"option shards: no topic that is read has a shard {min(missing)}")
    found = [one for one in found if asked.wants_shard(one.topic, one.key.shard)]
    if is_beginning:
        for point in (options.start, options.end):
            _check_named(point, found)
    return found


def _check_named(point: Point, shards: Sequence[CommittedShard]) -> None:
    """That a point by shard names each shard, and no other. Raises: NotFound, InvalidRequest, naming the option."""
    named = point.offsets if point.offsets is not None else point.times_ms
    if named is None:
        return
    _check_known(point.option, named, shards)
    missing = sorted({(one.topic, one.key.shard) for one in shards} - {*named})
    if missing:
        raise InvalidRequest(
            f"option {point.option} does not name shard {missing[0][1]} of topic {missing[0][0]}: name each shard that "
            "is read"
        )


def _check_known(option: str, names: Iterable[ShardName], shards: Iterable[CommittedShard]) -> None:
    """Raises: NotFound, naming the option."""
    unknown = sorted({*names} - {(one.topic, one.key.shard) for one in shards})
    if unknown:
        topic, shard = unknown[0]
        raise NotFound(f"option {option}: there is no shard {shard} of topic {topic} among what is read")


async def offsets_of(catalog: Catalog, shards: Iterable[CommittedShard], point: Point) -> dict[ShardName, int]:
    """Where each of these shards, which `chosen_shards` gave, begins or ends. Raises: InvalidRequest."""
    return {(one.topic, one.key.shard): await _offset_of(catalog, one, point) for one in shards}


async def _offset_of(catalog: Catalog, shard: CommittedShard, point: Point) -> int:
    name = (shard.topic, shard.key.shard)
    at_ms = point.at_ms if point.times_ms is None else point.times_ms[name]
    if at_ms is not None:
        found = await first_offset_at(catalog, shard, at_ms)
        if found is None and not point.is_latest_without_record:
            raise InvalidRequest(
                f"option {point.option}: no record of shard {shard.key.shard} of topic {shard.topic} is of "
                f"{at_ms} ms or later; startingOffsetsByTimestampStrategy=latest begins behind the last one"
            )
        return shard.end_offset if found is None else found
    offset = (LATEST_OFFSET if point.is_latest else EARLIEST_OFFSET) if point.offsets is None else point.offsets[name]
    return {LATEST_OFFSET: shard.end_offset, EARLIEST_OFFSET: shard.log_start_offset}.get(offset, offset)


async def first_offset_at(catalog: Catalog, shard: CommittedShard, at_ms: int) -> int | None:
    """Of the first record of that time or later. Cost: at most about one segment is read, that which may hold it."""
    ranges = await catalog.ranges([shard], Asked(from_ms=at_ms))
    for one in ranges:
        part = await fetch_part(catalog.store, catalog.names, one)
        # A batch that cannot be opened has no times, as in the node's lookups.
        for table in tables_of(part, Wanted(("offset",), from_ms=at_ms), lambda _: None):
            if table.num_rows:
                return int(table.column("offset")[0].as_py())
    return None


def plan(options: ReadOptions, asked: Asked) -> tuple[str, list[list[PartRange]]]:
    """The cluster, and pieces of work for a batch."""

    async def run() -> tuple[str, list[list[PartRange]]]:
        catalog = await open_catalog(options)
        try:
            shards = [
                one
                for one in await chosen_shards(catalog, options)
                if asked.wants_shard(one.topic, one.key.shard)  # a filter of the query may leave out some
            ]
            placed = asked
            if options.start != Point("startingOffsets"):
                placed = replace(placed, starts=await offsets_of(catalog, shards, options.start))
            if options.end != Point("endingOffsets", is_latest=True):
                placed = replace(placed, ends=await offsets_of(catalog, shards, options.end))
            works = cut(await catalog.ranges(shards, placed), options.partition_bytes)
            return catalog.names.cluster_id, [work.ranges for work in works]
        finally:
            await catalog.store.close()

    return asyncio.run(run())


def tables(
    options: ReadOptions, cluster_id: str, ranges: Sequence[PartRange], columns: tuple[str, ...], asked: Asked
) -> Iterator[Any]:
    keep_imports_out_of_collections()
    wanted = Wanted(columns, from_ms=asked.from_ms, to_ms=asked.to_ms)
    is_reporting = options.asked.is_gap_allowed
    yield from read_tables(options.bucket, cluster_id, ranges, wanted, _report if is_reporting else None)


def _report(unread: UnreadBatch) -> None:
    log.warning("records are passed over", why=str(unread))
