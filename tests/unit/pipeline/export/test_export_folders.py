"""The folder of an export: it holds one export of a topic, each record once, whatever is run into it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from stratalog.model.errors import Conflict
from stratalog.objects import open_store
from stratalog_pipeline.cold.cutting import Asked, GapInLog
from stratalog_pipeline.jobs.columns.table_layout import TableFormat
from stratalog_pipeline.jobs.export.export import Exported, ExportOptions, Shape, export
from stratalog_pipeline.jobs.runners import one_by_one
from support.archived_logs import LogPlace, flights
from support.cold_data import FIRST_TIME_MS, ColdShard
from support.cold_reading import put_shard

STEP_MS = 8_640_000
"""From one record of `flights` to the next."""


class Place(LogPlace):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, TableFormat.PARQUET)
        self.out = folder / "out"

    async def export(self, **options: Any) -> Exported:
        asked = ExportOptions(self.bucket, str(self.out), **{"piece_bytes": 1, **options})
        return await asyncio.to_thread(export, asked, one_by_one)

    def offsets(self) -> list[int]:
        """Of all records in all files, as a reader of the whole folder finds them."""
        lines = [line for file in self.out.rglob("*.jsonl") for line in file.read_text("utf-8").splitlines()]
        return sorted(json.loads(line)["offset"] for line in lines)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.fault("export-runs-folder-export")
async def test_a_filtered_export_is_not_mistaken_for_the_whole_one(place: Place) -> None:
    """Its file kept 10 of 100 records, and the job reported 100."""
    await place.fill([flights(0, 100)])
    some = Asked(from_ms=FIRST_TIME_MS + 90 * STEP_MS)
    assert (await place.export(asked=some)).records == 10
    with pytest.raises(Conflict, match=r"selection.*name another --to"):
        await place.export()
    again = await place.export(asked=some)
    assert (again.records, again.pieces_there, place.offsets()) == (0, 1, list(range(90, 100)))


@pytest.mark.parametrize(
    "other", [{"asked": Asked(to_offset=20)}, {"shape": Shape.PARQUET}, {"asked": Asked(shards=frozenset([3]))}]
)
async def test_a_folder_holds_one_selection_in_one_shape(place: Place, other: dict[str, Any]) -> None:
    await place.fill([flights(0, 10), flights(10, 20)])
    await place.export()
    with pytest.raises(Conflict, match=r"_export\.json"):
        await place.export(**other)
    with pytest.raises(Conflict, match=r"_export\.json"):
        await place.export(**other, is_dry_run=True)
    assert place.offsets() == list(range(30))


@pytest.mark.fault("export-run-records-added")
async def test_records_that_are_new_come_into_new_files_and_no_record_comes_twice(place: Place) -> None:
    """A last piece that had grown lay beside the shorter one."""
    cold = await place.fill([flights(0, 10)])
    await place.export(piece_bytes=1 << 20)
    await place.fill([flights(10, 10)], into=cold)
    told = await place.export(piece_bytes=1 << 20)
    assert (told.records, told.pieces, told.pieces_there) == (10, 2, 1)
    assert place.offsets() == list(range(20))


async def test_pieces_stay_as_they_were_planned_whatever_size_is_asked_for_later(place: Place) -> None:
    await place.fill([flights(0, 10), flights(10, 10)], [flights(20, 10)])
    await place.export()
    for file in sorted(place.out.rglob("*.jsonl"))[1:]:
        file.unlink()
    told = await place.export(piece_bytes=1 << 20)
    assert (told.records, told.pieces, told.pieces_there) == (20, 3, 1)
    assert place.offsets() == list(range(30))


@pytest.mark.fault("export-run-records-added")
async def test_two_jobs_at_the_same_time_make_one_export(place: Place) -> None:
    await place.fill([flights(0, 10), flights(10, 10)], [flights(20, 10)])
    told = await asyncio.gather(*(place.export(piece_bytes=size) for size in (1, 1 << 20, 1 << 20)))
    assert sum(one.records for one in told) == 30
    assert place.offsets() == list(range(30))


@pytest.mark.fault("export-runs-folder-export")
async def test_a_topic_that_was_made_again_is_another_one(place: Place) -> None:
    """Its records were nowhere: under the same offsets there were files already."""
    cold = await place.fill([flights(0, 10)])
    await place.export()
    await place.expire(cold, 1)
    store = open_store(place.bucket)
    again = ColdShard(store, topic_id=uuid4(), attempts=50)
    await place.fill([flights(500, 10)], into=again)
    with pytest.raises(Conflict, match="topic_id"):
        await place.export()


@pytest.mark.fault("bucket-without-metadata-holds")
@pytest.mark.parametrize("job", ["export", "archive"])
async def test_two_topics_of_one_name_are_not_mixed(place: Place, job: str) -> None:
    """A bucket without metadata, where a deleted topic has left objects."""
    await place.fill([flights(0, 10)])
    await place.fill([flights(500, 10)], into=ColdShard(open_store(place.bucket), topic_id=uuid4(), attempts=50))
    with pytest.raises(Conflict, match="2 topics called 'cold'"):
        await getattr(place, job)()


@pytest.mark.fault("export-runs-folder-export")
async def test_a_folder_with_files_of_something_else_is_refused(place: Place) -> None:
    """Of an earlier version, say, whose files say nothing of what was selected."""
    await place.fill([flights(0, 10)])
    (place.out / "cold" / "3").mkdir(parents=True)
    (place.out / "cold" / "3" / f"{0:020d}-{10:020d}.jsonl").write_text("")
    with pytest.raises(Conflict, match=r"no _export\.json"):
        await place.export()


async def test_what_retention_took_before_it_was_exported_is_an_error(place: Place) -> None:
    cold = await place.fill([flights(0, 10)], [flights(10, 10)])
    await place.export(asked=Asked())
    await place.fill([flights(20, 10)], [flights(30, 10)], into=cold)
    store = open_store(place.bucket)
    cold.store = store
    await put_shard(cold, log_start_offset=30)
    await store.close()
    with pytest.raises(GapInLog, match=r"offsets 20 to 30 .* name another --to"):
        await place.export()


async def test_a_lost_file_whose_records_are_gone_is_an_error(place: Place) -> None:
    cold = await place.fill([flights(0, 10)], [flights(10, 10)])
    await place.export()
    await place.expire(cold, 1)
    told = await place.export()
    assert (told.records, told.pieces_there) == (0, 2), "what is exported needs no source"
    min(place.out.rglob("*.jsonl")).unlink()
    with pytest.raises(GapInLog, match="offsets 0 to 10"):
        await place.export()


async def test_a_bucket_that_is_older_than_the_export_is_an_error(place: Place) -> None:
    cold = await place.fill([flights(0, 10)], [flights(10, 10)])
    await place.export()
    cold.segments = cold.segments[1:]
    await place.expire(cold, 1)
    with pytest.raises(GapInLog, match="are older than the export"):
        await place.export()


async def test_a_dry_run_says_what_is_missing(place: Place) -> None:
    cold = await place.fill([flights(0, 10)])
    assert (await place.export(is_dry_run=True)).pieces == 1
    assert not place.out.exists()
    await place.export()
    await place.fill([flights(10, 10)], into=cold)
    told = await place.export(is_dry_run=True)
    assert (told.pieces, told.pieces_there) == (2, 1) and told.bytes_read > 0
    assert place.offsets() == list(range(10))
