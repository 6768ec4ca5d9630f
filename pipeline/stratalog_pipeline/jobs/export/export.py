"""Exports committed records: as JSON lines or Parquet files into a folder of an object store, or into another Kafka.

A folder holds one export of a topic (`export_folder.py`): another run puts the missing and the new pieces. Another
Kafka has no names for pieces, so a record may appear twice there when the job runs again; headers (`stratalog.topic`,
`.shard`, `.offset`) give its place, so a reader can drop the copy. Order is kept: pieces of one shard are sent one
after another, each acknowledged before the next begins; pieces of several shards are sent at the same time.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stratalog.connect.http_login import HttpLogin
from stratalog.formats.bucket.object_names import ObjectNames
from stratalog.model.errors import Unavailable
from stratalog.model.ids import ShardKey
from stratalog.objects import open_store
from stratalog_pipeline.cold.catalog import Catalog
from stratalog_pipeline.cold.committed import CommittedShard, topic_id_of
from stratalog_pipeline.cold.cutting import Asked, PartRange, cut
from stratalog_pipeline.cold.part_records import PartFetcher, tables_of
from stratalog_pipeline.decode.columns import SCHEMA, UnreadBatch, Wanted
from stratalog_pipeline.jobs.export.folder import (
    ExportFacts,
    ExportFolder,
    FilePlanned,
    encode_unread,
    selection_of,
    unread_key,
)
from stratalog_pipeline.jobs.put_once import put_once
from stratalog_pipeline.jobs.runners import OnProgress, OpenStore, Runner, in_rounds
from stratalog_pipeline.sending.login import NO_LOGIN, KafkaLogin

PIECE_BYTES: Final = 32 << 20
_FLUSH_S: Final = 120
_PARTITIONER: Final = ("partitioner", "murmur2_random")
"""Java's: what other producers send of a key goes where its exported records are."""


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
    meta_login: HttpLogin | None = None
    """How the meta service is asked; None: as the environment says."""
    snapshot: str | None = None
    piece_bytes: int = PIECE_BYTES
    login: KafkaLogin = NO_LOGIN
    """To a Kafka, with further settings of the client."""
    is_dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Placing:
    """Which shard of the target takes a record. Either way those of one key come from one shard and go into one, so
    that they stay in order."""

    shards: int
    """The target topic's."""
    is_same: bool
    """The source has as many: each record keeps its shard's number."""

    def shard_of(self, key: bytes | None, shard: int) -> int | None:
        """None: as the client's partitioner says by the key. Without one, all of a source shard go to one place."""
        if self.is_same:
            return shard
        return None if key else shard % self.shards


@dataclass(frozen=True, slots=True)
class ExportWork:
    cluster_id: str
    ranges: Sequence[PartRange]
    shape: Shape
    wanted: Wanted
    target: str = field(repr=False)
    login: KafkaLogin
    open_bucket: OpenStore = field(repr=False)
    key: str = ""
    """Of a file."""
    placing: Placing | None = None
    """Of a Kafka."""

    @property
    def topic(self) -> str:
        return self.ranges[0].topic


@dataclass(slots=True)
class Exported:
    """What came of it. `pieces_there` were put by an earlier run; records and bytes are those of this run alone. Of a
    Kafka: topics whose records kept their shard, and those whose records were placed by
    their key."""

    cluster_id: str = ""
    pieces: int = 0
    pieces_there: int = 0
    records: int = 0
    bytes_read: int = 0
    bytes_put: int = 0
    same_shards: list[str] = field(default_factory=list)
    by_key: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    """Batches whose records cannot be read, as words: nodes do not check what is inside a batch. Of a folder also those
    that its files of earlier runs lack."""
    is_dry_run: bool = False


def export(options: ExportOptions, run: Runner, on_progress: OnProgress = lambda *_: None) -> Exported:
    """Raises: what reading, the store and the Kafka raise; InvalidRequest for a topic that the Kafka does not have."""
    cluster_id, works, there, shards, unread = asyncio.run(_plan(options))
    exported = Exported(cluster_id, len(works) + there, there, unread=unread, is_dry_run=options.is_dry_run)
    exported.bytes_read = sum(one.part.size_bytes for work in works for one in work.ranges)
    if options.is_dry_run:
        return exported
    is_kafka = options.shape is Shape.KAFKA
    number = 0
    rounds = in_rounds(_placed(options, works, shards, exported), _shard_of) if is_kafka else [works]
    for those in rounds:
        for done in run(export_piece, those):
            number += 1
            exported.records += done.records
            exported.bytes_put += done.bytes_put
            exported.pieces_there += done.was_there
            exported.unread += done.unread
            on_progress("exported", number, len(works))
    return exported


def _placed(
    options: ExportOptions, works: Sequence[ExportWork], shards: Mapping[str, int], exported: Exported
) -> list[ExportWork]:
    """Each with the place of its records in the Kafka, which is asked for its topics."""
    from stratalog_pipeline.sending.target_topics import shards_of_topics

    topics = {work.topic for work in works}
    found = shards_of_topics(options.target, options.login, topics)
    placings = {topic: Placing(found[topic], found[topic] == shards[topic]) for topic in sorted(topics)}
    for topic, placing in placings.items():
        (exported.same_shards if placing.is_same else exported.by_key).append(topic)
    return [replace(work, placing=placings[work.topic]) for work in works]


def _shard_of(work: ExportWork) -> ShardKey:
    return work.ranges[0].segment.shard_key


async def _plan(options: ExportOptions) -> tuple[str, list[ExportWork], int, dict[str, int], list[str]]:
    """The cluster, the pieces, how many more files are there already, of each topic how many shards are known, and the
    batches that the files lack."""
    open_bucket = partial(open_store, options.bucket)
    store = open_bucket()
    try:
        catalog = await Catalog.open(
            store,
            cluster_id=options.cluster_id,
            meta_url=options.meta_url,
            snapshot_name=options.snapshot,
            meta_login=options.meta_login,
        )
        shards = await catalog.shards(_or_none(options.topics))
        if options.shape is Shape.KAFKA:
            planned, there, unread = await _plan_sends(catalog, shards, options), 0, list[str]()
        else:
            planned, there, unread = await _plan_files(catalog, shards, options)
    finally:
        await store.close()
    wanted = Wanted(from_ms=options.asked.from_ms, to_ms=options.asked.to_ms)
    same = (options.shape, wanted, options.target, options.login, open_bucket)
    cluster_id = catalog.names.cluster_id
    known: dict[str, int] = {}
    for shard in shards:
        known[shard.topic] = max(known.get(shard.topic, 0), shard.key.shard + 1)
    return cluster_id, [ExportWork(cluster_id, one.ranges, *same, one.key) for one in planned], there, known, unread


async def _plan_sends(catalog: Catalog, shards: Sequence[CommittedShard], options: ExportOptions) -> list[FilePlanned]:
    works = []
    for shard in shards:  # a piece holds records of one shard
        works += cut(await catalog.ranges([shard], options.asked), options.piece_bytes)
    return [FilePlanned("", work.ranges) for work in works]


async def _plan_files(
    catalog: Catalog, shards: Sequence[CommittedShard], options: ExportOptions
) -> tuple[list[FilePlanned], int, list[str]]:
    asked, target = options.asked, open_store(options.target)
    files, there, unread = list[FilePlanned](), 0, list[str]()
    try:
        for topic in sorted({shard.topic for shard in shards}):
            those = [shard for shard in shards if shard.topic == topic]
            facts = ExportFacts(
                catalog.names.cluster_id,
                topic,
                str(topic_id_of(those)),
                options.shape,
                options.snapshot,
                selection_of(asked),
            )
            folder = ExportFolder(target, facts, options.piece_bytes)
            missing, present, lacked = await folder.plan(catalog, those, asked, is_dry_run=options.is_dry_run)
            files += missing
            there += present
            unread += lacked
    finally:
        await target.close()
    return files, there, unread


def _or_none(topics: Collection[str]) -> Collection[str] | None:
    return topics or None


# A piece ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class PieceExported:
    records: int
    bytes_put: int
    was_there: bool = False
    unread: tuple[str, ...] = ()


def export_piece(work: ExportWork) -> PieceExported:
    """For a task."""
    unread: list[str] = []
    tables = _tables(work, unread)
    if work.shape is Shape.KAFKA:
        return replace(_send(work, tables), unread=tuple(unread))
    body = io.BytesIO()
    records = 0
    if work.shape is Shape.PARQUET:
        with pq.ParquetWriter(body, SCHEMA, compression="zstd") as writer:
            for table in tables:
                writer.write_batch(table)
                records += table.num_rows
    else:
        for table in tables:
            for row in _rows(table):
                body.write(as_json_line(row))
            records += table.num_rows
    if unread:
        asyncio.run(_put(work.target, unread_key(work.key), encode_unread(unread)))
    is_put = asyncio.run(_put(work.target, work.key, body.getvalue()))
    exported = PieceExported(records, body.tell()) if is_put else PieceExported(0, 0, was_there=True)
    return replace(exported, unread=tuple(unread))


def _tables(work: ExportWork, unread: list[str]) -> Iterator[Any]:
    """The batches that cannot be read are added to `unread`: one batch of a client must not stop all exports."""
    with PartFetcher(work.open_bucket, ObjectNames("", work.cluster_id)) as fetcher:
        for part in fetcher.fetch(work.ranges):
            these: list[UnreadBatch] = []
            yield from tables_of(part, work.wanted, these.append)
            unread += (f"topic {part.planned.topic}, shard {part.planned.segment.shard}, {one}" for one in these)


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
    line: dict[str, Any] = {
        "topic": row["topic"],
        "shard": row["shard"],
        "offset": row["offset"],
        "timestamp_ms": row["timestamp"],
        "timestamp_type": row["timestamp_type"],
    }
    for name in ("key", "value"):
        line.update(_text(name, row[name]))
    line["headers"] = [{"key": one["key"], **_text("value", one["value"])} for one in row["headers"]]
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


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

    assert work.placing is not None, "it was planned for a Kafka"
    login = work.login
    if not any(key == _PARTITIONER[0] for key, _ in login.settings):
        login = replace(login, settings=(*login.settings, _PARTITIONER))
    sender = Sender(work.target, login)
    records = size = 0
    for table in tables:
        for row in _rows(table):
            place = {"topic": row["topic"], "shard": str(row["shard"]), "offset": str(row["offset"])}
            headers = [(one["key"], one["value"]) for one in row["headers"]]
            headers += [(f"stratalog.{name}", word.encode()) for name, word in place.items()]
            shard = work.placing.shard_of(row["key"], row["shard"])
            sender.send(row["topic"], row["key"], row["value"], headers, row["timestamp"], shard)
            size += len(row["key"] or b"") + len(row["value"] or b"")
        records += table.num_rows
    if not sender.flush(_FLUSH_S):
        raise Unavailable(f"the Kafka did not acknowledge all records in {_FLUSH_S} s: run the job again")
    return PieceExported(records, size)
