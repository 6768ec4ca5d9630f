"""An archived topic: every sealed record once, whatever happens to the job."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

import asyncio
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stratalog.formats.batches.records import Record, encode_batch
from stratalog.model.errors import Conflict, InvalidRequest, OutcomeUnknown, Unavailable
from stratalog.objects import ObjectStore, open_store
from stratalog_pipeline.jobs.archive.archive import Archive, Archived, ArchiveOptions
from stratalog_pipeline.jobs.archive.piece import RecordSchema
from stratalog_pipeline.jobs.columns.record_kinds import DEAD
from stratalog_pipeline.jobs.columns.table_layout import Kind, TimePartition
from stratalog_pipeline.jobs.runners import one_by_one
from support.archived_tables import add_segment, files_of, json_value, rows_of_table
from support.cold_data import ColdShard


class Place:
    """A bucket in a folder with a topic, and an empty folder for its table. Puts into the table may be made to fail."""

    def __init__(self, folder: Any) -> None:
        self.bucket, self.target = str(folder / "bucket"), str(folder / "table")
        self.puts = 0
        self.fails: Callable[[str, int], type[Exception] | None] = lambda key, number: None

    async def fill(self, *segments: Sequence[Sequence[bytes | None]], into: ColdShard | None = None) -> ColdShard:
        store = open_store(self.bucket)
        cold = into or ColdShard(store)
        cold.store = store
        for parts in segments:
            await add_segment(cold, parts)
        await store.close()
        return cold

    async def archive(self, run: Any = one_by_one, **options: Any) -> Archived:
        asked = ArchiveOptions(self.bucket, self.target, "cold", **options)
        return await asyncio.to_thread(Archive(asked, run, open_target=self.open_target).archive)

    def open_target(self) -> Any:
        return _Failing(open_store(self.target), self)

    async def rows(self, folder: str = "data") -> list[dict[str, Any]]:
        store = open_store(self.target)
        try:
            return await rows_of_table(store, f"cold/{folder}/")
        finally:
            await store.close()

    async def files(self) -> dict[str, Any]:
        store = open_store(self.target)
        try:
            return await files_of(store, "cold/data/")
        finally:
            await store.close()


class _Failing:
    def __init__(self, store: ObjectStore, place: Place) -> None:
        self._store, self._place = store, place

    async def put(self, key: str, body: Any, storage_class: str = "") -> None:
        self._place.puts += 1
        failure = self._place.fails(key, self._place.puts)
        if failure is Unavailable:
            raise Unavailable(f"{key}: slow down")
        await self._store.put(key, body, storage_class)
        if failure is OutcomeUnknown:
            raise OutcomeUnknown(f"{key}: the answer was lost")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.fixture
async def place(tmp_path: Any) -> AsyncIterator[Place]:
    yield Place(tmp_path)


def flights(start: int, count: int) -> list[bytes | None]:
    return [json_value(number) for number in range(start, start + count)]


TWO_SEGMENTS = ([flights(0, 10), flights(10, 10)], [flights(20, 10)])


async def test_json_becomes_columns_by_day(place: Place) -> None:
    await place.fill(*TWO_SEGMENTS)
    told = await place.archive()
    assert (told.segments, told.already, told.rows, told.dead) == (2, 0, 30, 0)
    rows = await place.rows()
    assert [(row["_offset"], row["flight"], row["carrier"]) for row in rows[:2]] == [(0, 0, "UA"), (1, 1, "AA")]
    assert [row["flight"] for row in rows] == list(range(30))
    days = {key.split("/")[2] for key in await place.files()}
    assert days == {f"by_date=2023-11-{day}" for day in (14, 15, 16, 17)}


async def test_a_second_run_adds_nothing_and_a_new_segment_only_itself(place: Place) -> None:
    cold = await place.fill(*TWO_SEGMENTS)
    await place.archive()
    before = await place.files()
    told = await place.archive()
    assert (told.segments, told.already) == (0, 2)
    assert (await place.files()).keys() == before.keys()
    await place.fill([flights(30, 5)], into=cold)
    assert (await place.archive()).segments == 1
    assert [row["flight"] for row in await place.rows()] == list(range(35))


class Killed(Exception):
    pass


@pytest.mark.fault("archive-killed-run-twice")
@pytest.mark.parametrize("survives", range(12))
async def test_a_job_killed_at_any_put_leaves_the_same_table_after_the_next(place: Place, survives: int) -> None:
    await place.fill(*TWO_SEGMENTS)
    place.fails = lambda key, number: _raise() if number > survives else None
    with pytest.raises((Killed, ExceptionGroup)):
        await place.archive(piece_bytes=1)
    place.fails = lambda key, number: None
    await place.archive()  # in pieces of another size: the plan that was put first stays
    assert [row["flight"] for row in await place.rows()] == list(range(30))


@pytest.mark.fault("archive-version-killed-two")
@pytest.mark.parametrize("has_dead", [False, True])
async def test_files_of_an_earlier_run_that_read_the_records_otherwise_lose_none(place: Place, has_dead: bool) -> None:
    """An earlier version took record 1 for a dead letter, and was killed before it had put the dead letters."""
    await place.fill([flights(0, 3)])
    await place.archive()
    (file,) = Path(place.target).glob("cold/data/by_date=2023-11-15/*.parquet")
    rows = pq.ParquetFile(file).read()
    pq.write_table(rows.filter(pc.not_equal(rows.column("_offset"), 1)), file)
    (done,) = Path(place.target).rglob("*.done.json")
    done.unlink()
    if not has_dead:
        with pytest.raises(Conflict, match="remove these files and run the job again"):
            await place.archive()
        return
    dead = Path(place.target, "cold", "dead", file.name)
    dead.parent.mkdir()
    letter = pa.Table.from_pylist([dict.fromkeys(DEAD.names) | {"offset": 1, "error": "why"}], schema=DEAD)
    pq.write_table(letter, dead)
    told = await place.archive()
    assert (told.rows, told.dead) == (2, 1), "as it lies there"


def _raise() -> None:
    raise Killed


@pytest.mark.fault("archive-killed-run-twice")
@pytest.mark.parametrize("failure", [OutcomeUnknown, Unavailable])
async def test_lost_answers_and_refusals_leave_the_same_table(place: Place, failure: type[Exception]) -> None:
    """F57: a commit whose answer was lost is found, and not made twice."""
    await place.fill(*TWO_SEGMENTS)
    place.fails = lambda key, number: failure if number % 2 else None
    await place.archive(piece_bytes=1)
    assert [row["flight"] for row in await place.rows()] == list(range(30))
    assert (await place.archive()).already == 2


@pytest.mark.fault("archive-killed-run-twice")
async def test_two_jobs_beside_each_other_make_one_table(place: Place) -> None:
    await place.fill(*TWO_SEGMENTS)
    await asyncio.gather(place.archive(piece_bytes=1), place.archive(piece_bytes=1 << 20))
    assert [row["flight"] for row in await place.rows()] == list(range(30))


async def test_a_piece_that_is_done_twice_counts_once(place: Place) -> None:
    def twice(work: Callable[[Any], Any], pieces: Sequence[Any]) -> Iterator[Any]:
        for piece in pieces:
            work(piece)
            yield work(piece)

    await place.fill(*TWO_SEGMENTS)
    assert (await place.archive(twice)).rows == 30
    assert len(await place.rows()) == 30


@pytest.mark.fault("records-format-archive-expects")
async def test_bad_records_become_dead_letters_with_their_offsets_and_reasons(place: Place) -> None:
    bad = [b"no json", b'{"flight": 1}\n{"flight": 2}', b"", b'{"flight": "many"}', b"[1, 2]"]
    schema = RecordSchema(Kind.JSON, _packed([("flight", pa.int64()), ("carrier", pa.string())]))
    await place.fill([[*flights(0, 5), *bad, None, json_value(11), json_value(12, gate="B4")]])
    told = await place.archive(schema=schema)
    assert (told.rows, told.dead) == (7, 6)
    dead = await place.rows("dead")
    assert [row["offset"] for row in dead] == [5, 6, 7, 8, 9, 12]
    assert [row["value"] for row in dead[:5]] == bad
    assert all(row["error"] for row in dead)
    assert dead[5]["error"] == "field 'gate': the table has no column for it"
    assert [row["flight"] for row in await place.rows()] == [0, 1, 2, 3, 4, None, 11]


@pytest.mark.fault("records-format-archive-expects")
async def test_bad_records_that_would_make_good_ones_together_do_not(place: Place) -> None:
    """Their number, put together, is that of the records."""
    schema = RecordSchema(Kind.JSON, _packed([("a", pa.int64())]))
    pairs = [(b'{"a": 1}{"a":', b"2}"), (b'{"a": 1}\n{"a": 2}', b" "), (b'{"a": 1}{"a": 2', b"}{}")]
    await place.fill([[b'{"a": 0}', *(value for pair in pairs for value in pair), b'{\n"a": 7}']])
    told = await place.archive(schema=schema)
    assert (told.rows, told.dead) == (2, 6)
    assert [row["a"] for row in await place.rows()] == [0, 7]


def _packed(fields: list[tuple[str, Any]]) -> bytes:
    return bytes(pa.schema(fields).serialize().to_pybytes())


async def test_a_schema_grows_with_its_records_and_keeps_what_it_had(place: Place) -> None:
    cold = await place.fill([[json_value(0, gate=None)]])
    await place.archive()
    await place.fill([[json_value(1, gate="B4", crew={"size": 5})]], into=cold)
    await place.archive()
    await place.fill([[json_value(2, gate=7, crew={"size": 6, "lead": "x"})]], into=cold)
    told = await place.archive()
    assert told.dead == 1, "gate is text by now"
    rows = await place.rows()
    assert [(row["flight"], row["gate"]) for row in rows] == [(0, None), (1, "B4")]
    assert "lead" in (await place.rows("dead"))[0]["value"].decode()


@pytest.mark.fault("json-record-empty-object")
async def test_an_empty_object_is_a_field_without_a_type_yet(place: Place) -> None:
    """Parquet has no structure without a field, and numbers for nulls in a list: at any depth."""
    untyped = {"crew": {}, "last": {"seat": {}}, "stops": [], "next": {"gate": None}, "nulls": [[None]]}
    cold = await place.fill([[json_value(0, legs=[{"to": "SFO", "by": {}, "at": []}], **untyped)]])
    assert (await place.archive()).rows == 1
    (row,) = await place.rows()
    assert not untyped.keys() & row.keys() and row["legs"] == [{"to": "SFO"}]
    await place.fill([[json_value(1, crew={"size": 5}, stops=["LAX"], next={"gate": "B4"})]], into=cold)
    await place.archive()
    rows = await place.rows()
    assert [row["crew"] for row in rows] == [None, {"size": 5}]
    assert [(row["stops"], row["next"]) for row in rows] == [(None, None), (["LAX"], {"gate": "B4"})]


@pytest.mark.fault("field-first-appears-late")
async def test_a_field_of_a_late_record_is_a_column(place: Place) -> None:
    """Of many small chunks, and of the last record of a large one: no good record is a dead letter."""
    late = [*flights(300, 10_000), json_value(10_300, gate="B4")]
    await place.fill([*([json_value(n)] for n in range(299)), [json_value(299, crew={"size": 5})], late])
    told = await place.archive(by=TimePartition.MONTH)
    assert (told.rows, told.dead) == (10_301, 0)
    rows = await place.rows()
    assert [row["_offset"] for row in rows] == list(range(10_301))
    assert [row["_offset"] for row in rows if row["crew"]] == [299]
    assert [row["_offset"] for row in rows if row["gate"]] == [10_300]


async def test_a_number_or_a_text_stays_one_whatever_chunk_it_is_in(place: Place) -> None:
    """A text that looks like a time is a time only where all look like one."""
    values = [b'{"a": 1, "b": "2013-01-01 05:00:00"}', b'{"a": 1.5, "b": "noon"}', b'{"a": null, "b": null}', b"{}"]
    await place.fill([[value] for value in values], [values])
    assert (await place.archive()).dead == 0
    found = [(row["a"], row["b"]) for row in await place.rows()]
    assert found == [(1.0, "2013-01-01 05:00:00"), (1.5, "noon"), (None, None), (None, None)] * 2


@pytest.mark.fault("records-contradict-bad-records")
async def test_bad_records_do_not_decide_what_columns_there_are(place: Place) -> None:
    bad = [b'{"x": 1}\n{"y": 2}', b'{"z": ', b"[1]", b'"text"', b"7", b"\xff\xfe"]
    await place.fill([[*flights(0, 3), *bad, *flights(9, 3)]])
    told = await place.archive()
    assert (told.rows, told.dead) == (6, 6)
    assert {*(await place.rows())[0]} == {"_shard", "_offset", "_timestamp", "_key", "flight", "carrier"}


@pytest.mark.fault("records-contradict-bad-records")
@pytest.mark.parametrize("values", [[[b'{"a": 1}'], [b'{"a": {"b": 1}}']], [[b'{"a": 1}', b'{"a": {"b": 1}}']]])
async def test_records_that_contradict_each_other_need_a_schema_for_the_first_run(place: Place, values: Any) -> None:
    """A person decides once what a column is; from then on the table does, and no record stops a job."""
    cold = await place.fill(values)
    with pytest.raises(InvalidRequest, match=r"a \(int64 and struct<b: int64>\): give a --schema"):
        await place.archive()
    assert not await place.files()
    told = await place.archive(schema=RecordSchema(Kind.JSON, _packed([("a", pa.int64())])))
    assert (told.rows, told.dead) == (1, 1)
    more = [b'{"a": {"b": 1}}', b'{"a": 2, "c": 1}', b'{"a": 3, "c": [1]}']
    await place.fill([[value] for value in more], into=cold)
    told = await place.archive()
    assert (told.rows, told.dead) == (1, 2), "of a new field the first type stays"
    assert [(row["a"], row["c"]) for row in await place.rows()] == [(1, None), (2, 1)]


async def test_records_that_are_given_a_schema_are_read_once(place: Place) -> None:
    await place.fill(*TWO_SEGMENTS)
    works: list[str] = []

    def run(work: Callable[[Any], Any], pieces: Sequence[Any]) -> Iterator[Any]:
        works.extend([work.__name__] * len(pieces))
        return one_by_one(work, pieces)

    schema = RecordSchema(Kind.JSON, _packed([("flight", pa.int64()), ("carrier", pa.string())]))
    await place.archive(run, schema=schema)
    assert works == ["archive_piece"] * 2


async def test_raw_records_keep_everything(place: Place) -> None:
    await place.fill([[b"\x00\xff", None]])
    await place.archive(kind=Kind.RAW, by=TimePartition.HOUR)
    rows = await place.rows()
    assert [(row["topic"], row["shard"], row["offset"], row["key"], row["value"]) for row in rows] == [
        ("cold", 3, 0, b"0", b"\x00\xff"),
        ("cold", 3, 1, b"1", None),
    ]


async def test_records_of_no_time_and_of_a_far_one_have_a_place(place: Place) -> None:
    store = open_store(place.bucket)
    records = [Record(n, at, None, json_value(n)) for n, at in enumerate((-1, 9_000_000_000_000_000, 0))]
    await ColdShard(store).add([[encode_batch(records, epoch=0)]])
    await store.close()
    assert (await place.archive()).rows == 3
    folders = {key.split("/")[2]: table.num_rows for key, table in (await place.files()).items()}
    assert folders == {"by_date=1970-01-01": 1, "by_date=__HIVE_DEFAULT_PARTITION__": 2}


@pytest.mark.fault("json-record-field-named")
@pytest.mark.parametrize("value", ["noon", 5])
async def test_a_field_called_timestamp_is_not_the_time_of_the_record(place: Place, value: Any) -> None:
    await place.fill([[json_value(0, timestamp=value)]])
    assert (await place.archive()).rows == 1
    assert {key.split("/")[2] for key in await place.files()} == {"by_date=2023-11-14"}


async def test_a_dry_run_reports_and_writes_nothing(place: Place) -> None:
    await place.fill(*TWO_SEGMENTS)
    told = await place.archive(is_dry_run=True)
    assert (told.segments, told.is_dry_run, place.puts) == (2, True, 0)
    assert told.bytes_read > 1_000


async def test_a_table_of_something_else_is_not_mixed_with(place: Place) -> None:
    await place.fill(*TWO_SEGMENTS)
    await place.archive()
    with pytest.raises(Conflict, match="kind 'json'"):
        await place.archive(kind=Kind.RAW)


async def test_a_field_with_the_name_of_a_column_of_the_table_is_refused(place: Place) -> None:
    await place.fill([[json_value(0, _offset=5)]])
    with pytest.raises(InvalidRequest, match="_offset"):
        await place.archive()


def test_options_are_shown_without_credentials() -> None:
    options = replace(ArchiveOptions("s3://b?secret_access_key=hush", "s3://t?secret_access_key=hush"), topic="t")
    assert "hush" not in repr(options)
