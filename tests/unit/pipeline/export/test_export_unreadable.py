"""Batches that a node stored and that contain no records: an export passes over them and names them."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

import pyarrow.parquet as pq

from stratalog.formats.batches.compression import Codec
from stratalog.formats.batches.offered_batch import assign
from stratalog.model.errors import Corrupt
from stratalog.objects import open_store
from stratalog_cli.entry import build_app
from stratalog_pipeline.jobs.columns.table_layout import TableFormat
from stratalog_pipeline.jobs.export.export import ExportOptions, Shape, export
from stratalog_pipeline.jobs.runners import one_by_one
from stratalog_pipeline.source.options import Mode, parse_options
from stratalog_pipeline.source.planning import plan, tables
from support.archived_logs import LogPlace, flights
from support.archived_tables import batch_of
from support.hostile_batches import GARBAGE, claiming

READABLE = [0, 1, 2, 3, 6, 7, 8, 9]


@pytest.fixture(params=[Codec.NONE, Codec.GZIP, Codec.ZSTD])
async def place(tmp_path: Path, request: pytest.FixtureRequest) -> LogPlace:
    """Ten records in five batches, of which the third contains none."""
    place = LogPlace(tmp_path, TableFormat.PARQUET)
    cold = await place.fill()
    cold.store = open_store(place.bucket)
    batches = [batch_of(number, flights(number, 2)) for number in range(0, 10, 2)]
    garbage = bytearray(claiming(GARBAGE, 2, 0, request.param))
    assign(memoryview(garbage), 4, 0)
    batches[2] = bytes(garbage)
    await cold.add([batches])
    await cold.store.close()
    return place


@pytest.mark.fault("export-batch-holds-records")
@pytest.mark.parametrize("shape", [Shape.JSONL, Shape.PARQUET])
async def test_an_export_has_all_other_records_and_names_the_batch(place: LogPlace, shape: Shape) -> None:
    options = ExportOptions(place.bucket, place.target, shape)
    told = await asyncio.to_thread(export, options, one_by_one)
    assert told.records == len(READABLE)
    (why,) = told.unread
    assert "topic cold, shard 3, offsets 4 to 6: the batch cannot be read" in why
    (file,) = Path(place.target).rglob(f"*.{shape}")
    if shape is Shape.JSONL:
        offsets = [json.loads(line)["offset"] for line in file.read_text("utf-8").splitlines()]
    else:
        offsets = pq.ParquetFile(file).read().column("offset").to_pylist()
    assert offsets == READABLE
    again = await asyncio.to_thread(export, options, one_by_one)
    assert (again.records, again.pieces_there, again.unread) == (0, 1, told.unread), "the file lacks it as before"
    shutil.rmtree(next(Path(place.target).rglob("_unread")))
    file.unlink()
    await asyncio.to_thread(export, options, one_by_one)
    file.unlink()  # a run put the note, and was killed before it put the file
    last = await asyncio.to_thread(export, options, one_by_one)
    assert (last.records, last.unread) == (len(READABLE), told.unread)


@pytest.mark.fault("export-batch-holds-records")
async def test_the_command_ends_with_exit_code_1(place: LogPlace) -> None:
    arguments = ["pipeline", "export", "--bucket", place.bucket, "--to", place.target, "--threads", "0"]
    for _ in range(2):
        told = await asyncio.to_thread(CliRunner().invoke, build_app(), arguments)
        assert told.exit_code == 1, told.output
        assert "offsets 4 to 6" in told.output and "not exported" in told.output


@pytest.mark.fault("export-batch-holds-records")
def test_a_query_passes_over_it_only_if_it_may_have_gaps(place: LogPlace) -> None:
    def read(**given: str) -> list[int]:
        options = parse_options({"path": place.bucket, **given}, Mode.BATCH)
        cluster_id, works = plan(options, options.asked)
        found = [table for ranges in works for table in tables(options, cluster_id, ranges, ("offset",), options.asked)]
        return [row["offset"] for table in found for row in table.to_pylist()]

    with pytest.raises(Corrupt):
        read()
    assert read(onGap="report") == READABLE
    assert read(failOnDataLoss="false") == READABLE
