"""Archives one piece of a segment: reads its records, makes rows of them, puts one file for each time partition.

May be done any number of times, by any number of tasks: names and rows follow from the plan. Memory: the piece's
records as rows, some times the size of its chunks.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stratalog.formats.bucket.object_names import ObjectNames
from stratalog.model.errors import Conflict, NotFound
from stratalog_pipeline.cold.cutting import PartRange
from stratalog_pipeline.cold.part_records import CheckedPart, PartFetcher, tables_of
from stratalog_pipeline.decode.columns import SCHEMA, UnreadBatch, Wanted
from stratalog_pipeline.jobs.columns.json_inference import infer_json, remember, unite
from stratalog_pipeline.jobs.columns.json_records import json_reader
from stratalog_pipeline.jobs.columns.record_kinds import (
    DEAD,
    PLACE,
    Definitions,
    ReadValues,
)
from stratalog_pipeline.jobs.columns.table_layout import Kind, PieceDone, TableFormat, TimePartition, data_key, dead_key
from stratalog_pipeline.jobs.columns.table_types import settled, without_untyped
from stratalog_pipeline.jobs.put_once import put_once
from stratalog_pipeline.jobs.runners import OpenStore
from stratalog_pipeline.jobs.tables.table_log import FieldIds, FileMade

NO_TIME: Final = "__HIVE_DEFAULT_PARTITION__"
_YEAR_1_S: Final = -62_135_596_800
_YEAR_10000_S: Final = 253_402_300_800
"""From then on dates have no four digits for the year."""


@dataclass(frozen=True, slots=True)
class RecordSchema:
    """How records become rows: an Arrow schema (serialized), and what it takes to read them."""

    kind: Kind
    arrow: bytes = b""
    definition: str = ""
    """Avro: the schema. Protobuf: JSON of a message's name and its descriptor set. Of several the newest."""
    is_confluent: bool = False
    """Each record begins with a zero byte and the id of its schema."""
    earlier: tuple[str, ...] = ()
    """Definitions that the table had before, newest first."""
    writers: tuple[tuple[int, str], ...] = ()
    """Avro schemas under the ids that records name."""

    @property
    def fields(self) -> Any:
        return pa.ipc.read_schema(pa.py_buffer(self.arrow)) if self.arrow else pa.schema([])

    def reader(self) -> ReadValues:
        definitions = Definitions(self.definition, self.earlier, self.writers, self.is_confluent)
        match self.kind:
            case Kind.AVRO:
                from stratalog_pipeline.jobs.columns.avro_records import avro_reader

                return avro_reader(definitions, self.fields)[1]
            case Kind.PROTOBUF:
                from stratalog_pipeline.jobs.columns.protobuf_types import protobuf_reader

                return protobuf_reader(definitions, self.fields)[1]
            case _:
                return json_reader(self.fields, is_confluent=self.is_confluent)


def packed(fields: Any) -> bytes:
    """As a `RecordSchema` has it."""
    return bytes(fields.remove_metadata().serialize().to_pybytes())


@dataclass(frozen=True, slots=True)
class InferWork:
    """A piece of a new segment whose fields are to be inferred. `number`: its place among all pieces."""

    cluster_id: str
    number: int
    ranges: Sequence[PartRange]
    open_bucket: OpenStore = field(repr=False)
    is_confluent: bool = False


@dataclass(frozen=True, slots=True)
class FieldsFound:
    """`wrong`: fields to which records give types that no column holds together."""

    number: int
    arrow: bytes
    wrong: tuple[str, ...]


def infer_piece(work: InferWork) -> FieldsFound:
    """The fields of all records of a piece, as JSON. Raises: what reading raises."""
    found, wrong = pa.schema([]), dict[str, None]()
    with PartFetcher(work.open_bucket, ObjectNames("", work.cluster_id)) as fetcher:
        for part in fetcher.fetch(work.ranges):
            # A batch that cannot be opened has no fields; it is a dead letter later.
            for batch in tables_of(part, Wanted(("value",)), lambda _: None):
                fields, inside = infer_json(batch.column("value").to_pylist(), is_confluent=work.is_confluent)
                found, between = unite(found, fields)
                remember(wrong, [*inside, *between])
    return FieldsFound(work.number, packed(found), tuple(wrong))


@dataclass(frozen=True, slots=True)
class PieceWork:
    """All that a task needs."""

    cluster_id: str
    topic: str
    seal: str
    piece: int
    ranges: Sequence[PartRange]
    schema: RecordSchema
    by: TimePartition
    table: TableFormat
    open_bucket: OpenStore = field(repr=False)
    open_target: OpenStore = field(repr=False)
    ids: FieldIds | None = None


@dataclass(frozen=True, slots=True)
class PieceMade:
    """What came of a piece, for who commits it to a table's log, too."""

    seal: str
    done: PieceDone
    data: tuple[FileMade, ...]
    dead: tuple[FileMade, ...]


def archive_piece(work: PieceWork) -> PieceMade:
    """Raises: what reading and the stores raise."""
    good, dead = _read(work)
    fields = (without_untyped if work.table is TableFormat.PARQUET else settled)(good.schema)
    if fields != good.schema:
        good = good.select(fields.names).cast(fields)
    if work.table is TableFormat.ICEBERG:
        good, dead = _of_the_calendar(good), _of_the_calendar(dead)
    if work.ids is not None:
        good, dead = _with_ids(good, work.ids.data), _with_ids(dead, work.ids.dead)
    times = {
        data_key(work.topic, work.by, time, work.seal, work.piece): (None if time == NO_TIME else time, table)
        for time, table in _by_time(good, work.by)
    }
    dead_name = dead_key(work.topic, work.seal, work.piece)
    letters = {dead_name: (None, dead)} if dead.num_rows else {}
    found = asyncio.run(_put_all(work.open_target, {**times, **letters}, dead_name))
    if any(one.was_there for one in found):
        _check_offsets(found, _offsets_of(good), _offsets_of(dead))
    made = [one.made for one in found]
    data = tuple(one for one in made if one.key != dead_name)
    put_aside = tuple(one for one in made if one.key == dead_name)
    names = tuple(sorted(one.key for one in made))
    done = PieceDone(work.piece, sum(one.rows for one in data), sum(one.rows for one in put_aside), names)
    return PieceMade(work.seal, done, data, put_aside)


def _read(work: PieceWork) -> tuple[Any, Any]:
    """Rows, and dead letters."""
    good: list[Any] = []
    dead: list[Any] = []
    read = None if work.schema.kind is Kind.RAW else work.schema.reader()
    with PartFetcher(work.open_bucket, ObjectNames("", work.cluster_id)) as fetcher:
        for part in fetcher.fetch(work.ranges):
            unread: list[UnreadBatch] = []
            for batch in tables_of(part, Wanted(), unread.append):
                table = pa.Table.from_batches([batch])
                if read is None:
                    good.append(table)
                    continue
                found = read(table.column("value").to_pylist())
                good.append(_placed(table.take(pa.array(found.good, pa.int64())), found.table))
                if found.bad:
                    rows, reasons = zip(*found.bad, strict=True)
                    letters = table.take(pa.array(rows, pa.int64()))
                    dead.append(letters.append_column(DEAD.field("error"), pa.array(reasons, pa.string())))
            if unread:
                dead.append(_unread_letters(part, unread))
    empty = SCHEMA if read is None else pa.schema([*PLACE, *work.schema.fields])
    return pa.concat_tables(good or [empty.empty_table()]), pa.concat_tables(dead or [DEAD.empty_table()])


def _unread_letters(part: CheckedPart, unread: Sequence[UnreadBatch]) -> Any:
    """One for each batch, at its first offset."""
    planned = part.planned
    place = {"topic": planned.topic, "shard": planned.segment.shard, "leader_epoch": planned.segment.epoch}
    rows = [place | {"offset": one.base_offset, "error": str(one)} for one in unread]
    return pa.Table.from_pylist(rows, schema=DEAD)


def _placed(records: Any, fields: Any) -> Any:
    """Where each record stood, and what was in it."""
    places = [records.column(name.removeprefix("_")) for name in PLACE.names]
    return pa.Table.from_arrays([*places, *fields.columns], schema=pa.schema([*PLACE, *fields.schema]))


def _with_ids(table: Any, ids: bytes) -> Any:
    known = pa.ipc.read_schema(pa.py_buffer(ids))
    return table.cast(pa.schema([known.field(name) for name in table.schema.names]))


def _of_the_calendar(table: Any) -> Any:
    """Without times that no date has: Iceberg's partitions are dates, and those that read them cannot tell others."""
    name = "_timestamp" if "_timestamp" in table.schema.names else "timestamp"
    times = table.column(name)
    seconds = times.cast(pa.timestamp("s", "UTC"), safe=False).cast(pa.int64())
    is_date = pc.and_(pc.greater_equal(seconds, _YEAR_1_S), pc.less(seconds, _YEAR_10000_S))
    known = pc.if_else(is_date, times, pa.scalar(None, times.type))
    return table.set_column(table.schema.get_field_index(name), table.schema.field(name), known)


def _by_time(table: Any, by: TimePartition) -> list[tuple[str, Any]]:
    if not table.num_rows:
        return []
    times = table.column("_timestamp" if "_timestamp" in table.schema.names else "timestamp")
    seconds = times.cast(pa.timestamp("s", "UTC"), safe=False)
    known = pc.if_else(pc.less(seconds.cast(pa.int64()), _YEAR_10000_S), seconds, pa.scalar(None, seconds.type))
    words = pc.fill_null(pc.strftime(known, by.pattern), NO_TIME)
    rows: dict[str, list[int]] = defaultdict(list)
    encoded = pc.dictionary_encode(words).combine_chunks()
    names = encoded.dictionary.to_pylist()
    for row, index in enumerate(encoded.indices.to_pylist()):
        rows[names[index]].append(row)
    return [(name, table.take(pa.array(found, pa.int64()))) for name, found in sorted(rows.items())]


@dataclass(frozen=True, slots=True)
class _FileFound:
    """A file as it lies in the target, and the offsets in it."""

    made: FileMade
    offsets: Any
    was_there: bool = False


async def _put_all(
    open_target: OpenStore, files: Mapping[str, tuple[str | None, Any]], dead_name: str
) -> list[_FileFound]:
    store, found = open_target(), []
    try:
        for key, (time, table) in files.items():
            body = io.BytesIO()
            pq.write_table(table, body, compression="zstd", coerce_timestamps="us", allow_truncated_timestamps=True)
            if await put_once(store, key, body.getvalue()):
                made = FileMade(key, time, table.num_rows, len(body.getvalue()))
                found.append(_FileFound(made, _offsets_of(table)))
            else:
                # Another version may have written it, or some of its records were deleted since: report the file as it
                # is.
                found.append(_as_it_lies(key, time, await store.get(key)))
        if dead_name not in files and any(one.was_there for one in found):
            with contextlib.suppress(NotFound):
                found.append(_as_it_lies(dead_name, None, await store.get(dead_name)))
        return found
    finally:
        await store.close()


def _as_it_lies(key: str, time: str | None, body: bytes) -> _FileFound:
    file = pq.ParquetFile(io.BytesIO(body))
    table = file.read([name for name in ("_offset", "offset") if name in file.schema_arrow.names][:1])
    return _FileFound(FileMade(key, time, table.num_rows, len(body)), _offsets_of(table), was_there=True)


def _offsets_of(table: Any) -> Any:
    return table.column("_offset" if "_offset" in table.schema.names else "offset")


def _check_offsets(found: Sequence[_FileFound], *expected: Any) -> None:
    """Raises: Conflict where files of an earlier run and of this one do not have each record once together: another
    version read some record as a row that is a dead letter now, or the reverse."""
    there = pa.chunked_array([chunk for one in found for chunk in one.offsets.chunks], pa.int64())
    wanted = pa.chunked_array([chunk for one in expected for chunk in one.chunks], pa.int64())
    is_each_once = len(pc.unique(there)) == len(there)
    if is_each_once and pc.all(pc.is_in(wanted, value_set=pc.unique(there)), min_count=0).as_py():
        return
    old = ", ".join(one.made.key for one in found if one.was_there)
    raise Conflict(
        f"{old}: files of an earlier run that did not finish, and read the records differently (another version?): "
        "finish it with that version, or remove these files and run the job again"
    )
