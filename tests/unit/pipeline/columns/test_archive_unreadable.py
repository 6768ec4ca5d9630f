"""Batches that a node stored and that contain no records: the archive puts them aside and continues behind them."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)
pytest.importorskip("deltalake", reason=NO_PIPELINE)

from stratalog.formats.batches.compression import Codec
from stratalog.formats.batches.offered_batch import assign
from stratalog.objects import open_store
from stratalog_pipeline.jobs.columns.table_layout import Kind, TableFormat
from support.archived_logs import LogPlace, flights
from support.archived_tables import batch_of
from support.hostile_batches import GARBAGE, claiming


@pytest.fixture(params=list(TableFormat))
def place(tmp_path: Path, request: pytest.FixtureRequest) -> LogPlace:
    return LogPlace(tmp_path, request.param)


def stored(batch: bytes, base_offset: int) -> bytes:
    """In the second segment."""
    data = bytearray(batch)
    assign(memoryview(data), base_offset, 1)
    return bytes(data)


@pytest.mark.fault("archive-batch-holds-records")
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("kind", [Kind.JSON, Kind.RAW])
async def test_a_batch_that_holds_no_records_is_a_dead_letter_and_its_neighbours_are_rows(
    place: LogPlace, kind: Kind, codec: Codec
) -> None:
    """A node does not check what is inside a batch. Every run of the job ended at such a batch."""
    cold = await place.fill([flights(0, 10)])
    store = open_store(place.bucket)
    cold.store = store
    values = [flights(10 + 2 * number, 2) for number in range(70)]
    batches = [batch_of(10 + 2 * number, two, epoch=1) for number, two in enumerate(values)]
    for number, count in ((3, 2), (69, 2)):
        batches[number] = stored(claiming(GARBAGE, count, 0, codec), 10 + 2 * number)
    await cold.add([batches])
    await store.close()
    told = await place.archive(kind=kind)
    assert (told.rows, told.dead) == (146, 2)
    dead = place.read(is_dead=True)
    assert [row["offset"] for row in dead] == [16, 148]
    ranges = ["offsets 16 to 18", "offsets 148 to 150"]
    assert [row["error"].partition(": the batch cannot be read")[0] for row in dead] == ranges
    names = "_offset" if kind is Kind.JSON else "offset"
    assert [row[names] for row in place.read()] == [n for n in range(150) if n not in (16, 17, 148, 149)]
    again = await place.archive(kind=kind)
    assert (again.rows, again.dead) == (0, 0)
