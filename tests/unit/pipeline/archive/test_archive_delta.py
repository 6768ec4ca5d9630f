"""An archive as Delta table: every sealed record is a row once for readers that use the table's log."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)
pytest.importorskip("deltalake", reason=NO_PIPELINE)

import deltalake
import pyarrow as pa

from stratalog.model.errors import Conflict, InvalidRequest, Unavailable
from stratalog.objects import open_store
from stratalog_pipeline.jobs.archive.archive import Archive, Archived, ArchiveOptions
from stratalog_pipeline.jobs.archive.piece import RecordSchema
from stratalog_pipeline.jobs.columns.table_layout import Kind, TableFormat, TimePartition
from stratalog_pipeline.jobs.runners import one_by_one
from stratalog_pipeline.jobs.tables import table_log
from stratalog_pipeline.jobs.tables.table_places import table_place
from support.archived_logs import TWO_SEGMENTS, CatchingLog, LogPlace, flights
from support.archived_tables import json_value
from support.cold_data import ColdShard
from support.s3_servers import moto_server


class Place(LogPlace):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, TableFormat.DELTA)

    def table(self, folder: str = "data") -> Any:
        return deltalake.DeltaTable(f"{self.target}/cold/{folder}")

    def rows(self, folder: str = "data", **asked: Any) -> list[dict[str, Any]]:
        rows = self.table(folder).to_pyarrow_table(**asked).to_pylist()
        return sorted(rows, key=lambda row: int(row.get("_offset", row.get("offset"))))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_what_is_read_by_the_log_equals_what_went_in(place: Place) -> None:
    await place.fill(*TWO_SEGMENTS)
    told = await place.archive()
    assert (told.segments, told.rows, told.dead, told.format) == (2, 30, 0, "delta")
    rows = place.rows()
    assert [(row["_offset"], row["_key"], row["flight"], row["carrier"]) for row in rows] == [
        (n, b"%d" % n, n, "AA" if n % 2 else "UA") for n in range(30)
    ]
    assert {row["by_date"] for row in rows} == {f"2023-11-{day}" for day in (14, 15, 16, 17)}
    assert all(row["by_date"] == row["_timestamp"].strftime("%Y-%m-%d") for row in rows)


async def test_a_reader_of_one_day_opens_that_day_s_files_only(place: Place) -> None:
    await place.fill(*TWO_SEGMENTS)
    await place.archive()
    files = place.table().file_uris(file_pruning_predicate="by_date = '2023-11-15'")
    assert files and all("/by_date=2023-11-15/" in one for one in files)
    assert 0 < len(place.rows(filters=[("by_date", "=", "2023-11-15")])) < 30


async def test_a_second_run_adds_nothing_and_a_new_segment_only_itself(place: Place) -> None:
    cold = await place.fill(*TWO_SEGMENTS)
    await place.archive()
    version = place.table().version()
    told = await place.archive()
    assert (told.segments, told.already, place.table().version()) == (0, 2, version)
    await place.fill([flights(30, 5)], into=cold)
    assert (await place.archive()).segments == 1
    assert [row["flight"] for row in place.rows()] == list(range(35))


# Killed, lost, overtaken ---------------------------------------------------------------------------------------------
@pytest.mark.fault("archive-delta-table-killed")
@pytest.mark.parametrize(("dies_at", "is_before"), [(1, True), (1, False), (2, True), (2, False)])
async def test_a_job_killed_before_or_behind_a_commit_leaves_the_same_table_after_the_next(
    place: Place, dies_at: int, is_before: bool
) -> None:
    """F57: kill -9 of a real process, the data put, the commit not made or not heard of."""
    await place.fill(*TWO_SEGMENTS)
    await place.archive_and_die(dies_at, is_before=is_before)
    assert any(Path(place.target, "cold/data").rglob("*.parquet")), "the data are there"
    committed = dies_at - 1 if is_before else dies_at
    if committed:
        assert len(place.rows()) == (20 if committed == 1 else 30)
    told = await place.archive()
    assert told.already == dies_at - 1, "what was committed and did not count yet is done again"
    assert [row["flight"] for row in place.rows()] == list(range(30))


@pytest.mark.fault("archive-delta-table-killed")
@pytest.mark.parametrize("is_done", [True, False], ids=["answer lost", "refused"])
async def test_commits_without_an_answer_are_found_and_not_made_twice(
    place: Place, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    await place.fill(*TWO_SEGMENTS, [[b"no json"]])
    monkeypatch.setattr(table_log, "_FIRST_PAUSE_S", 0)
    calls = 0
    real = deltalake.DeltaTable.create_write_transaction

    def write(table: Any, *arguments: Any, **more: Any) -> None:
        nonlocal calls
        calls += 1
        is_failing = calls % 2 == 1
        if is_done or not is_failing:
            real(table, *arguments, **more)
        if is_failing:
            raise OSError("the connection was closed before the answer came")

    monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", write)
    await place.archive(commit_segments=1)
    assert calls >= 3
    assert [row["flight"] for row in place.rows()] == list(range(30))
    assert [row["value"] for row in place.rows("dead")] == [b"no json"]


async def test_a_store_that_takes_no_commit_is_reported_and_the_next_run_continues(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.fill(*TWO_SEGMENTS)
    monkeypatch.setattr(table_log, "_FIRST_PAUSE_S", 0)
    with monkeypatch.context() as broken:
        broken.setattr(deltalake.DeltaTable, "create_write_transaction", _refuse)
        with pytest.raises(Unavailable, match=r"slow down.*run the job again"):
            await place.archive()
    assert (await place.archive()).already == 0
    assert [row["flight"] for row in place.rows()] == list(range(30))


def _refuse(*_: Any, **__: Any) -> None:
    raise OSError("\x1b[31mslow\x1b[0m\ndown")


@pytest.mark.fault("archive-delta-table-killed")
async def test_two_jobs_beside_each_other_make_one_table(place: Place) -> None:
    await place.fill(*TWO_SEGMENTS, [flights(30, 10)], [[b"no json"]])
    await asyncio.gather(*(place.archive(piece_bytes=size, commit_segments=1) for size in (1, 1 << 20, 1 << 10)))
    assert [row["flight"] for row in place.rows()] == list(range(40))
    assert [row["offset"] for row in place.rows("dead")] == [40]


@pytest.mark.fault("archive-delta-table-killed")
async def test_a_job_that_looked_before_another_committed_does_not_commit_the_same(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The narrow place: both looked, neither saw the other."""
    await place.fill(*TWO_SEGMENTS)
    catching = CatchingLog()
    await place.archive(catching)
    real = deltalake.DeltaTable.create_write_transaction
    overtaken = False

    def write(table: Any, *arguments: Any, **more: Any) -> None:
        nonlocal overtaken
        if not overtaken:
            overtaken = True
            place.log().commit(catching.caught[0])
        real(table, *arguments, **more)

    monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", write)
    place.log().commit(catching.caught[0])
    assert overtaken and [row["flight"] for row in place.rows()] == list(range(30))


# What others do to the table -----------------------------------------------------------------------------------------
@pytest.mark.fault("archive-delta-table-killed")
async def test_rewritten_files_and_a_cleaned_log_do_not_make_it_forget(place: Place) -> None:
    await place.fill(*TWO_SEGMENTS)
    catching = CatchingLog()
    await place.archive(catching)
    place.log().commit(catching.caught[0])
    table = place.table()
    table.optimize.compact()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    table.create_checkpoint()
    log = Path(place.target, "cold/data/_delta_log")
    for old in log.glob("*.json"):
        if int(old.stem) < table.version():
            old.unlink()
    place.log().commit(catching.caught[0])
    assert [row["flight"] for row in place.rows()] == list(range(30))


@pytest.mark.fault("archive-delta-table-killed")
async def test_a_table_that_is_reported_to_forget_is_refused(place: Place) -> None:
    cold = await place.fill(*TWO_SEGMENTS)
    await place.archive()
    place.table().alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 1 day"})
    await place.fill([flights(30, 1)], into=cold)
    with pytest.raises(InvalidRequest, match="UNSET TBLPROPERTIES"):
        await place.archive()


async def test_another_table_in_its_place_is_refused(place: Place) -> None:
    await place.fill(*TWO_SEGMENTS)
    deltalake.write_deltalake(f"{place.target}/cold/data", pa.table({"a": [1]}))
    with pytest.raises(Conflict, match="another table"):
        await place.archive()


async def test_a_table_keeps_its_format(place: Place) -> None:
    await place.fill(*TWO_SEGMENTS)
    await place.archive()
    parquet = ArchiveOptions(place.bucket, place.target, "cold")
    with pytest.raises(Conflict, match="table 'delta'"):
        await asyncio.to_thread(Archive(parquet, one_by_one).archive)
    facts = json.loads(Path(place.target, "cold/_table.json").read_text())
    assert facts["format"] == 2, "a version that knows no logs refuses it"


# Columns -------------------------------------------------------------------------------------------------------------
async def test_a_schema_grows_with_its_records(place: Place) -> None:
    cold = await place.fill([[json_value(0, gate=None, stops=[], crew={})]])
    await place.archive()
    assert not {"gate", "stops", "crew"} & {one.name for one in place.table().schema().fields}, "no type was seen"
    await place.fill([[json_value(1, gate="B4", stops=["SFO"], crew={"size": 5})]], into=cold)
    await place.archive()
    await place.fill([[json_value(2, gate="B5", crew={"size": 6, "lead": "x"}, at="2013-01-01 05:00:00")]], into=cold)
    await place.archive()
    await place.fill([[json_value(3, gate=7)]], into=cold)
    assert (await place.archive()).dead == 1, "gate is text by now"
    rows = place.rows()
    assert [(row["flight"], row["gate"], row["stops"]) for row in rows] == [
        (0, None, None),
        (1, "B4", ["SFO"]),
        (2, "B5", None),
    ]
    assert rows[1]["crew"] == {"size": 5, "lead": None} and rows[2]["crew"] == {"size": 6, "lead": "x"}
    assert rows[2]["at"] == "2013-01-01 05:00:00"


async def test_dead_letters_are_a_table_with_offsets_and_reasons(place: Place) -> None:
    schema = RecordSchema(Kind.JSON, _packed([("flight", pa.int64()), ("carrier", pa.string())]))
    await place.fill([[*flights(0, 3), b"no json", json_value(4, gate="B4")]], [[b"[]"]])
    told = await place.archive(schema=schema, commit_segments=1)
    assert (told.rows, told.dead) == (3, 3)
    dead = place.rows("dead")
    assert [(row["offset"], row["value"]) for row in dead] == [
        (3, b"no json"),
        (4, json_value(4, gate="B4")),
        (5, b"[]"),
    ]
    assert all(row["error"] for row in dead) and place.table("dead").version() == 2
    assert (await place.archive(schema=schema)).already == 2


async def test_raw_records_keep_everything_and_unknown_times_have_a_place(place: Place) -> None:
    from stratalog.formats.batches.records import Record, encode_batch

    store = open_store(place.bucket)
    records = [Record(n, at, None, json_value(n)) for n, at in enumerate((-1, 9_000_000_000_000_000, 0))]
    await ColdShard(store).add([[encode_batch(records, epoch=0)]])
    await store.close()
    await place.archive(kind=Kind.RAW, by=TimePartition.MONTH)
    rows = place.table().to_pyarrow_table(columns=["offset", "by_month", "value"]).sort_by("offset").to_pylist()
    assert [(row["offset"], row["by_month"]) for row in rows] == [(0, None), (1, None), (2, "1970-01")]
    assert all(row["value"] == json_value(row["offset"]) for row in rows)


def _packed(fields: list[tuple[str, Any]]) -> bytes:
    return bytes(pa.schema(fields).serialize().to_pybytes())


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b'{"a b": 1}', "'a b'"),
        (b'{"by_date": 1}', "by_date"),
        (b'{"a": {"b": 1, "B": 2}}', "differ in nothing but case"),
        (b'{"_key": 1}', "_key"),
    ],
)
async def test_names_that_the_format_does_not_take_are_refused_before_anything_is_put(
    place: Place, value: bytes, words: str
) -> None:
    await place.fill([[value]])
    with pytest.raises(InvalidRequest, match=words):
        await place.archive()
    assert not list(Path(place.target).rglob("*.parquet"))


async def test_a_schema_that_turns_a_column_into_another_is_refused(place: Place) -> None:
    cold = await place.fill([[json_value(0)]])

    async def archive(*fields: dict[str, Any]) -> Archived:
        from stratalog_pipeline.jobs.archive.schema_files import schema_of

        told = {"type": "record", "name": "Flight", "fields": list(fields)}
        schema = schema_of(Kind.AVRO, json.dumps(told).encode(), "schema")
        return await place.archive(kind=Kind.AVRO, schema=schema)

    await archive({"name": "flight", "type": "long"})
    await place.fill([[json_value(1)]], into=cold)
    with pytest.raises(InvalidRequest, match=r"flight \(int64 in the table, string now\)"):
        await archive({"name": "flight", "type": "string"})


async def test_a_table_in_s3_is_the_same(place: Place) -> None:
    """Three jobs at once: the commit is a conditional put, and needs no lock beside the bucket."""
    await place.fill(*TWO_SEGMENTS)
    with moto_server() as server:
        place.target = server.url("delta-tables")
        await asyncio.gather(*(place.archive(commit_segments=1) for _ in range(3)))
        where = table_place(place.target)
        table = deltalake.DeltaTable(where.uri("cold/data"), storage_options=dict(where.delta_options))
        assert sorted(table.to_pyarrow_table().column("flight").to_pylist()) == list(range(30))
        assert (await place.archive()).already == 2


async def test_a_table_in_memory_is_refused(place: Place) -> None:
    place.target = "memory:"
    with pytest.raises(InvalidRequest, match="would be lost"):
        await place.archive()
