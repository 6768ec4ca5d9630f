"""An archive as Iceberg table: every sealed record is a row once for readers that use the table's metadata."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)
pytest.importorskip("pyiceberg", reason=NO_PIPELINE)

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import StaticTable

from stratalog.model.errors import Conflict, InvalidRequest, OutcomeUnknown, Unavailable
from stratalog.objects import open_store
from stratalog_pipeline.jobs.archive.piece import RecordSchema
from stratalog_pipeline.jobs.columns.table_layout import Kind, TableFormat, TimePartition
from stratalog_pipeline.jobs.tables import table_log
from stratalog_pipeline.jobs.tables.iceberg_store import FolderCatalog, StoreIO
from stratalog_pipeline.jobs.tables.table_places import table_place
from support.archived_logs import TWO_SEGMENTS, CatchingLog, LogPlace, flights
from support.archived_tables import json_value
from support.s3_servers import moto_server


class Place(LogPlace):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, TableFormat.ICEBERG)

    def newest(self, root: str = "cold") -> Path:
        files = Path(self.target, root, "metadata").glob("v*.metadata.json")
        return max(files, key=lambda file: int(file.name[1:].partition(".")[0]))

    def table(self, root: str = "cold") -> Any:
        """By a file of metadata, with pyiceberg's own reading of files."""
        return StaticTable.from_metadata(f"file://{self.newest(root)}")

    def loaded(self) -> Any:
        base = f"file://{self.target}"
        return FolderCatalog(StoreIO(lambda: open_store(self.target), base), base, "cold").load_table()

    def set_properties(self, properties: dict[str, str]) -> None:
        with self.loaded().transaction() as change:
            change.set_properties(properties)

    def rows(self, root: str = "cold", **asked: Any) -> list[dict[str, Any]]:
        rows = self.table(root).scan(**asked).to_arrow().to_pylist()
        return sorted(rows, key=lambda row: int(row.get("_offset", row.get("offset"))))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_what_is_read_by_the_metadata_equals_what_went_in(place: Place) -> None:
    await place.fill(*TWO_SEGMENTS)
    told = await place.archive()
    assert (told.segments, told.rows, told.dead, told.format) == (2, 30, 0, "iceberg")
    rows = place.rows()
    assert [(row["_offset"], row["_key"], row["flight"], row["carrier"]) for row in rows] == [
        (n, b"%d" % n, n, "AA" if n % 2 else "UA") for n in range(30)
    ]


async def test_a_reader_of_one_day_opens_that_day_s_files_only(place: Place) -> None:
    await place.fill(*TWO_SEGMENTS)
    await place.archive()
    day = "_timestamp >= '2023-11-15T00:00:00+00:00' and _timestamp < '2023-11-16T00:00:00+00:00'"
    files = [task.file.file_path for task in place.table().scan(row_filter=day).plan_files()]
    assert files and all("/by_date=2023-11-15/" in one for one in files)
    assert 0 < len(place.rows(row_filter=day)) < 30
    assert [field.name for field in place.table().spec().fields] == ["_timestamp_day"]


async def test_a_second_run_adds_nothing_and_a_new_segment_only_itself(place: Place) -> None:
    cold = await place.fill(*TWO_SEGMENTS)
    await place.archive()
    newest = place.newest()
    told = await place.archive()
    assert (told.segments, told.already, place.newest()) == (0, 2, newest)
    await place.fill([flights(30, 5)], into=cold)
    assert (await place.archive()).segments == 1
    assert [row["flight"] for row in place.rows()] == list(range(35))


# Killed, lost, overtaken ---------------------------------------------------------------------------------------------
@pytest.mark.fault("iceberg-table-snapshots-expire")
@pytest.mark.parametrize(("dies_at", "is_before"), [(1, True), (2, False)])
async def test_a_job_killed_before_or_behind_a_commit_leaves_the_same_table_after_the_next(
    place: Place, dies_at: int, is_before: bool
) -> None:
    """F57: kill -9 of a real process, the data put, the commit not made or not heard of."""
    await place.fill(*TWO_SEGMENTS)
    await place.archive_and_die(dies_at, is_before=is_before)
    assert any(Path(place.target, "cold/data").rglob("*.parquet")), "the data are there"
    if not is_before:
        assert [row["flight"] for row in place.rows()] == list(range(30))
    told = await place.archive()
    assert told.already == dies_at - 1, "what was committed and did not count yet is done again"
    assert [row["flight"] for row in place.rows()] == list(range(30))


class _Failing:
    """Each put of a table's metadata fails at first: done, but not answered, or not done."""

    def __init__(self, place: Place, *, is_done: bool, always: bool = False) -> None:
        self._store = open_store(place.target)
        self._is_done, self._always = is_done, always

    async def put(self, key: str, body: Any, storage_class: str = "") -> None:
        is_commit = key.endswith(".metadata.json") and (self._always or key not in _FAILED)
        if is_commit:
            _FAILED.add(key)
        if not is_commit or self._is_done:
            await self._store.put(key, body, storage_class)
        if is_commit:
            raise OutcomeUnknown(f"{key}: the answer was lost") if self._is_done else Unavailable(f"{key}: slow down")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


_FAILED: set[str] = set()


@pytest.mark.fault("iceberg-table-snapshots-expire")
@pytest.mark.parametrize("is_done", [True, False], ids=["answer lost", "refused"])
async def test_commits_without_an_answer_are_found_and_not_made_twice(
    place: Place, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    await place.fill(*TWO_SEGMENTS, [[b"no json"]])
    monkeypatch.setattr(table_log, "_FIRST_PAUSE_S", 0)
    _FAILED.clear()
    await place.archive(open_target=lambda: _Failing(place, is_done=is_done), commit_segments=1)
    assert len(_FAILED) >= 5, "two tables were made, and four commits"
    assert [row["flight"] for row in place.rows()] == list(range(30))
    assert [row["value"] for row in place.rows("cold/dead")] == [b"no json"]


async def test_a_store_that_takes_no_commit_is_reported_and_the_next_run_continues(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.fill(*TWO_SEGMENTS)
    monkeypatch.setattr(table_log, "_FIRST_PAUSE_S", 0)
    with pytest.raises(Unavailable, match=r"slow down.*run the job again"):
        await place.archive(open_target=lambda: _Failing(place, is_done=False, always=True))
    assert (await place.archive()).already == 0
    assert [row["flight"] for row in place.rows()] == list(range(30))


@pytest.mark.fault("iceberg-table-snapshots-expire")
async def test_two_jobs_beside_each_other_make_one_table(place: Place) -> None:
    await place.fill(*TWO_SEGMENTS, [flights(30, 10)], [[b"no json"]])
    await asyncio.gather(*(place.archive(piece_bytes=size, commit_segments=1) for size in (1, 1 << 20, 1 << 10)))
    assert [row["flight"] for row in place.rows()] == list(range(40))
    assert [row["offset"] for row in place.rows("cold/dead")] == [40]


@pytest.mark.fault("iceberg-table-snapshots-expire")
@pytest.mark.parametrize("retries", ["0", "4"])
async def test_a_job_that_looked_before_another_committed_does_not_commit_the_same(
    place: Place, monkeypatch: pytest.MonkeyPatch, retries: str
) -> None:
    """The narrow place: both looked, neither saw the other. Nor does pyiceberg put the files behind the other's."""
    cold = await place.fill([flights(0, 20)])
    await place.archive()
    await asyncio.to_thread(place.set_properties, {"commit.retry.num-retries": retries})
    await place.fill([flights(20, 10)], into=cold)
    catching = CatchingLog()
    await place.archive(catching)
    real = FolderCatalog.commit_table
    is_overtaken = False

    def commit(self: FolderCatalog, table: Any, requirements: Any, updates: Any) -> Any:
        nonlocal is_overtaken
        if not is_overtaken and any("archived" in str(update) for update in updates):
            is_overtaken = True
            place.log().commit(catching.caught[0])
        return real(self, table, requirements, updates)

    monkeypatch.setattr(FolderCatalog, "commit_table", commit)
    await asyncio.to_thread(place.log().commit, catching.caught[0])
    assert is_overtaken and [row["flight"] for row in place.rows()] == list(range(30))


# What others do to the table -----------------------------------------------------------------------------------------
@pytest.mark.fault("iceberg-table-snapshots-expire")
async def test_expired_snapshots_do_not_make_it_forget(place: Place) -> None:
    cold = await place.fill(*TWO_SEGMENTS)
    catching = CatchingLog()
    await place.archive(catching)
    await asyncio.to_thread(place.log().commit, catching.caught[0])
    await place.fill([flights(30, 1)], into=cold)
    await place.archive()

    def expire() -> None:
        table = place.loaded()
        old = [one.snapshot_id for one in table.snapshots()][:-1]
        assert old
        table.maintenance.expire_snapshots().by_ids(old).commit()

    await asyncio.to_thread(expire)
    assert len(place.table().snapshots()) == 1
    await asyncio.to_thread(place.log().commit, catching.caught[0])
    assert [row["flight"] for row in place.rows()] == list(range(31))


@pytest.mark.parametrize("is_there", [True, False])
async def test_compressed_metadata_are_refused_for_they_have_other_names(place: Place, is_there: bool) -> None:
    cold = await place.fill(*TWO_SEGMENTS)
    await place.archive()
    if is_there:
        Path(place.target, "cold/metadata/v9.gz.metadata.json").write_bytes(b"")
    else:
        await asyncio.to_thread(place.set_properties, {"write.metadata.compression-codec": "gzip"})
    await place.fill([flights(30, 1)], into=cold)
    with pytest.raises(Conflict, match="SET TBLPROPERTIES"):
        await place.archive()


async def test_a_table_keeps_its_format(place: Place) -> None:
    await place.fill(*TWO_SEGMENTS)
    await place.archive()
    place.format = TableFormat.PARQUET
    with pytest.raises(Conflict, match="table 'iceberg'"):
        await place.archive()


# Columns -------------------------------------------------------------------------------------------------------------
async def test_a_schema_grows_with_its_records(place: Place) -> None:
    cold = await place.fill([[json_value(0, gate=None, stops=[], crew={})]])
    await place.archive()
    assert not {"gate", "stops", "crew"} & {*place.table().schema().column_names}, "no type was seen"
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
    schema = RecordSchema(Kind.JSON, bytes(pa.schema([("flight", pa.int64())]).serialize().to_pybytes()))
    await place.fill([[b'{"flight": 0}', b"no json", json_value(2)]], [[b"[]"]])
    told = await place.archive(schema=schema, commit_segments=1)
    assert (told.rows, told.dead) == (1, 3)
    dead = place.rows("cold/dead")
    assert [(row["offset"], row["value"]) for row in dead] == [(1, b"no json"), (2, json_value(2)), (3, b"[]")]
    assert all(row["error"] for row in dead)


@pytest.mark.parametrize("by", list(TimePartition))
async def test_raw_records_keep_everything_but_times_beyond_the_calendar(place: Place, by: TimePartition) -> None:
    from stratalog.formats.batches.records import Record, encode_batch
    from support.cold_data import ColdShard

    store = open_store(place.bucket)
    times = (-1, 9_000_000_000_000_000, 8_000_000_000_000_000, 0)
    records = [Record(n, at, None, json_value(n)) for n, at in enumerate(times)]
    await ColdShard(store).add([[encode_batch(records, epoch=0)]])
    await store.close()
    await place.archive(kind=Kind.RAW, by=by)
    rows = place.table().scan(selected_fields=("offset", "value", "timestamp")).to_arrow().sort_by("offset").to_pylist()
    assert [(row["offset"], row["value"]) for row in rows] == [(n, json_value(n)) for n in range(4)]
    assert [row["timestamp"] is None for row in rows] == [True, True, True, False]


@pytest.mark.parametrize(("value", "words"), [(b'{"a.b": 1}', r"'a\.b'"), (b'{"a": 1, "A": 2}', "nothing but case")])
async def test_names_that_the_format_does_not_take_are_refused_before_anything_is_put(
    place: Place, value: bytes, words: str
) -> None:
    await place.fill([[value]])
    with pytest.raises(InvalidRequest, match=words):
        await place.archive()
    assert not list(Path(place.target).rglob("*.parquet"))


async def test_a_table_in_s3_is_the_same(place: Place) -> None:
    """Three jobs at once: the commit is a conditional put, and needs no lock and no catalog beside the bucket."""
    await place.fill(*TWO_SEGMENTS)
    with moto_server() as server:
        place.target = server.url("iceberg-tables")
        await asyncio.gather(*(place.archive(commit_segments=1) for _ in range(3)))
        base = table_place(place.target).iceberg_base
        catalog = FolderCatalog(StoreIO(lambda: open_store(place.target), base), base, "cold")
        table = await asyncio.to_thread(catalog.load_table)
        files = [task.file for task in await asyncio.to_thread(lambda: list(table.scan().plan_files()))]
        assert sum(file.record_count for file in files) == 30
        assert all(file.file_path.startswith("s3://stratalog/iceberg-tables/cold/data/") for file in files)
        assert (await place.archive()).already == 2


@pytest.mark.fault("strict-reader-opens-iceberg")
async def test_files_have_the_ids_of_the_table_s_fields(place: Place) -> None:
    """Readers find columns by their ids: a file without them is refused by strict ones."""
    crew = {"size": 5, "names": ["x"], "by": [{"seat": 1}]}
    cold = await place.fill([[json_value(0, crew=crew), b"no json"]])
    await place.archive()
    await place.fill([[json_value(1, gate="B4", crew={**crew, "lead": "y", "by": [{"row": 2}]})]], into=cold)
    await place.archive()
    for root in ("cold", "cold/dead"):
        files = [Path(file.file.file_path.removeprefix("file://")) for file in place.table(root).scan().plan_files()]
        known = schema_to_pyarrow(place.table(root).schema())
        assert files
        for file in files:
            found = pq.ParquetFile(file).schema_arrow
            assert ids_of(found).items() <= ids_of(known).items(), "each field that the file has, at each depth"
            assert len(ids_of(found)) > len(found), "those within others, too"
    for file in Path(place.target).rglob("*.metadata.json"):  # as a reader without a name mapping
        told = json.loads(file.read_text())
        told["properties"].pop("schema.name-mapping.default", None)
        file.write_text(json.dumps(told))
    assert [(row["flight"], row["gate"], row["crew"]["by"]) for row in place.rows()] == [
        (0, None, [{"seat": 1, "row": None}]),
        (1, "B4", [{"seat": None, "row": 2}]),
    ]
    assert [row["value"] for row in place.rows("cold/dead")] == [b"no json"]


def ids_of(fields: Any, where: str = "") -> dict[str, int]:
    found: dict[str, int] = {}
    for one in fields:
        name = f"{where}{one.name}"
        found[name] = int(one.metadata[b"PARQUET:field_id"])
        kind = one.type
        if pa.types.is_struct(kind):
            found.update(ids_of(list(kind), f"{name}."))
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            found.update(ids_of([kind.value_field], f"{name}."))
    return found


@pytest.mark.fault("strict-reader-opens-iceberg")
async def test_a_table_whose_older_files_have_no_ids_is_continued(place: Place) -> None:
    """Of an earlier version: they are read by the name mapping, which stays."""
    cold = await place.fill([flights(0, 3)])
    log = place.log()
    log.prepare = lambda fields: None  # type: ignore[method-assign]
    await place.archive(log)
    await place.fill([[json_value(3, gate="B4")]], into=cold)
    await place.archive()
    assert [(row["flight"], row["gate"]) for row in place.rows()] == [(0, None), (1, None), (2, None), (3, "B4")]


@pytest.mark.fault("strict-reader-opens-iceberg")
async def test_a_hint_names_the_newest_version_and_may_be_missing_or_wrong(place: Place) -> None:
    hint = Path(place.target, "cold", "metadata", "version-hint.text")
    cold = await place.fill([flights(0, 3)])
    for number, broken in enumerate((None, "unlink", "2", "not a number")):
        if broken == "unlink":
            hint.unlink()
        elif broken is not None:
            hint.write_text(broken)
        await place.fill([flights(10 * number, 3)], into=cold)
        await place.archive()
        assert hint.read_text() == place.newest().name.removeprefix("v").removesuffix(".metadata.json")


async def test_files_name_the_table_as_others_read_it(place: Place) -> None:
    await place.fill(*TWO_SEGMENTS)
    await place.archive()
    told = json.loads(place.newest().read_text())
    assert told["location"] == f"file://{place.target}/cold"
