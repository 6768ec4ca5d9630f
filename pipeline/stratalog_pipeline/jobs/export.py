"""Exports committed records: as JSON lines or Parquet files into a folder of an object store, or into another Kafka.

Files are named after the offsets that they hold, and are put once: an export that is run again puts what is missing. A
Kafka has no such names: there a record may come twice when the job is run again, and its place is told in headers
(`stratalog.topic`, `.shard`, `.offset`), by which a reader can tell.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stratalog.formats.object_names import ObjectNames
from stratalog.model.errors import Unavailable
from stratalog.objects import ObjectStore, open_store
from stratalog_pipeline.cold.catalog import Catalog
from stratalog_pipeline.cold.cutting import Asked, PartRange, cut
from stratalog_pipeline.cold.part_records import PartFetcher, tables_of
from stratalog_pipeline.decode.columns import SCHEMA, Wanted
from stratalog_pipeline.jobs.put_once import put_once
from stratalog_pipeline.jobs.runners import Runner

PIECE_BYTES: Final = 32 << 20
_FLUSH_S: Final = 120
OpenStore = Callable[[], ObjectStore]
OnProgress = Callable[[str, int, int], None]


class Shape(StrEnum):
    JSONL = "jsonl"
    PARQUET = "parquet"
    KAFKA = "kafka"


@dataclass(frozen=True, slots=True)
class ExportOptions:
    bucket: str = field(repr=False)
    target: str = field(repr=False)
    """An object store's URL; of a Kafka its bootstrap servers."""
    shape: Shape = Shape.JSONL
    topics: tuple[str, ...] = ()
    asked: Asked = field(default_factory=Asked)
    cluster_id: str | None = None
    meta_url: str | None = None
    snapshot: str | None = None
    piece_bytes: int = PIECE_BYTES
    kafka_settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    is_dry_run: bool = False


@dataclass(frozen=True, slots=True)
class ExportWork:
    cluster_id: str
    ranges: Sequence[PartRange]
    shape: Shape
    wanted: Wanted
    target: str = field(repr=False)
    kafka_settings: tuple[tuple[str, str], ...] = field(repr=False)
    open_bucket: OpenStore = field(repr=False)


@dataclass(slots=True)
class Exported:
    """What came of it. `pieces_there` were put by an earlier run; `bytes_put` are those of this run alone."""

    cluster_id: str = ""
    pieces: int = 0
    pieces_there: int = 0
    records: int = 0
    bytes_read: int = 0
    bytes_put: int = 0
    is_dry_run: bool = False


def export(options: ExportOptions, run: Runner, on_progress: OnProgress = lambda *_: None) -> Exported:
    """Raises: what reading, the store and the Kafka raise."""
    cluster_id, works = asyncio.run(_plan(options))
    told = Exported(cluster_id, len(works), is_dry_run=options.is_dry_run)
    told.bytes_read = sum(one.part.size_bytes for work in works for one in work.ranges)
    if options.is_dry_run:
        return told
    for number, done in enumerate(run(export_piece, works), 1):
        told.records += done.records
        told.bytes_put += done.bytes_put
        told.pieces_there += done.was_there
        on_progress("exported", number, len(works))
    return told


async def _plan(options: ExportOptions) -> tuple[str, list[ExportWork]]:
    open_bucket = partial(open_store, options.bucket)
    store = open_bucket()
    try:
        catalog = await Catalog.open(
            store, cluster_id=options.cluster_id, meta_url=options.meta_url, snapshot_name=options.snapshot
        )
        shards = await catalog.shards(_or_none(options.topics))
        works = []
        for shard in shards:  # a file holds records of one shard
            ranges = await catalog.ranges([shard], options.asked)
            works += cut(ranges, options.piece_bytes)
    finally:
        await store.close()
    wanted = Wanted(from_ms=options.asked.from_ms, to_ms=options.asked.to_ms)
    same = (options.shape, wanted, options.target, options.kafka_settings, open_bucket)
    cluster_id = catalog.names.cluster_id
    return cluster_id, [ExportWork(cluster_id, work.ranges, *same) for work in works]


def _or_none(topics: Collection[str]) -> Collection[str] | None:
    return topics or None


# A piece ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class PieceExported:
    records: int
    bytes_put: int
    was_there: bool = False


def export_piece(work: ExportWork) -> PieceExported:
    """For a task."""
    if work.shape is Shape.KAFKA:
        return _send(work, _tables(work))
    body = io.BytesIO()
    records = 0
    if work.shape is Shape.PARQUET:
        with pq.ParquetWriter(body, SCHEMA, compression="zstd") as writer:
            for table in _tables(work):
                writer.write_batch(table)
                records += table.num_rows
    else:
        for table in _tables(work):
            for row in _rows(table):
                body.write(as_json_line(row))
            records += table.num_rows
    first, last = work.ranges[0], work.ranges[-1]
    places = f"{first.from_offset:020d}-{last.to_offset:020d}"
    key = f"{first.topic}/{first.segment.shard}/{places}.{work.shape}"
    is_put = asyncio.run(_put(work.target, key, body.getvalue()))
    return PieceExported(records, body.tell() if is_put else 0, not is_put)


def _tables(work: ExportWork) -> Iterator[Any]:
    with PartFetcher(work.open_bucket, ObjectNames("", work.cluster_id)) as fetcher:
        for part in fetcher.fetch(work.ranges):
            yield from tables_of(part, work.wanted)


def _rows(table: Any) -> list[dict[str, Any]]:
    """Timestamps as milliseconds: a time of the year 200,000 has no other form in Python."""
    at = table.schema.get_field_index("timestamp")
    milliseconds = pc.divide(table.column(at).cast(pa.int64()), 1_000)
    found: list[dict[str, Any]] = table.set_column(at, "timestamp", milliseconds).to_pylist()
    return found


async def _put(target: str, key: str, body: bytes) -> bool:
    store = open_store(target)
    try:
        return await put_once(store, key, body)
    finally:
        await store.close()


def as_json_line(row: dict[str, Any]) -> bytes:
    """A record as one line. Key and value as text where they are text, else in base64 under `key_base64`,
    `value_base64`: what was written is never changed on its way."""
    told: dict[str, Any] = {
        "topic": row["topic"],
        "shard": row["shard"],
        "offset": row["offset"],
        "timestamp_ms": row["timestamp"],
        "timestamp_type": row["timestamp_type"],
    }
    for name in ("key", "value"):
        told.update(_text(name, row[name]))
    told["headers"] = [{"key": one["key"], **_text("value", one["value"])} for one in row["headers"]]
    return json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _text(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def _send(work: ExportWork, tables: Iterator[Any]) -> PieceExported:
    """Into the topics of the same names. All are acknowledged by all replicas before the piece counts as done."""
    from stratalog_pipeline.sending.producer import Sender

    sender = Sender(work.target, dict(work.kafka_settings))
    records = size = 0
    for table in tables:
        for row in _rows(table):
            place = {"topic": row["topic"], "shard": str(row["shard"]), "offset": str(row["offset"])}
            headers = [(one["key"], one["value"]) for one in row["headers"]]
            headers += [(f"stratalog.{name}", word.encode()) for name, word in place.items()]
            sender.send(row["topic"], row["key"], row["value"], headers, row["timestamp"], None)
            size += len(row["key"] or b"") + len(row["value"] or b"")
        records += table.num_rows
    if not sender.flush(_FLUSH_S):
        raise Unavailable(f"the Kafka did not acknowledge all records in {_FLUSH_S} s: run the job again")
    return PieceExported(records, size)
