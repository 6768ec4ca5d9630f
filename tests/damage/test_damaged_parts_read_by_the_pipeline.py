"""A part, damaged in every way of the corpus, gives the pipeline its own records or an error, and never others."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Iterable

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from stratalog.formats.bucket.part import PART_HEADER_BYTES
from stratalog.model.errors import Corrupt
from stratalog.objects import open_store
from stratalog_pipeline.cold.cutting import PartRange
from stratalog_pipeline.cold.part_records import check_planned, tables_of
from stratalog_pipeline.decode.columns import Wanted
from support.cold_data import CLUSTER_ID, ColdShard, batches_from
from support.cold_reading import planned
from support.damage_corpus import (
    Damage,
    flipped_bits,
    grown,
    lying_numbers,
    prefix_cuts,
    repeated_pages,
    zeroed_pages,
)

MOST_BYTES = 4 << 20


@pytest.fixture(scope="module")
def part() -> tuple[PartRange, bytes]:
    """Of two batches, one of them compressed."""

    async def build() -> tuple[PartRange, bytes]:
        store = open_store("memory:")
        cold = ColdShard(store)
        await cold.add([[*batches_from(0, 1, value_bytes=1), *batches_from(3, 1, value_bytes=1, codec=4)]])
        (one,) = await planned(store)
        body = await store.get(one.part.object_key)
        await store.close()
        return one, body

    return asyncio.run(build())


def rows(part: PartRange, body: bytes) -> list[dict[str, object]]:
    return [row for table in tables_of(check_planned(body, CLUSTER_ID, part), Wanted()) for row in table.to_pylist()]


def check(part: PartRange, body: bytes, damages: Iterable[Damage]) -> tuple[int, int]:
    """How many were refused, and how many read as what they were."""
    expected = rows(part, body)
    refused = read = 0
    for words, damaged in damages:
        try:
            found = rows(part, damaged)
        except Corrupt as error:
            assert error.reason and error.source == part.part.object_key, words
            refused += 1
        else:
            assert found == expected, f"{words}: other records"
            read += 1
    return refused, read


def test_what_disks_and_networks_do_is_refused_or_does_not_touch_the_records(part: tuple[PartRange, bytes]) -> None:
    planned_part, body = part
    index_bytes = len(body) - body.rindex(b"SLOGPIDX")
    whole = len(body) - index_bytes
    assert check(planned_part, body, prefix_cuts(body)) == (len(body), 0)
    assert check(planned_part, body, grown(body)) == (3, 0)
    # The index at the end of a part is not used here: what is flipped there harms no record.
    assert check(planned_part, body, flipped_bits(body)) == (8 * whole, 8 * index_bytes)
    for damages in (zeroed_pages(body, 64), repeated_pages(body, 64)):
        refused, read = check(planned_part, body, damages)
        assert refused > 5 and read <= 2


def test_what_wrong_programs_write_makes_no_other_records_and_no_large_memory(part: tuple[PartRange, bytes]) -> None:
    planned_part, body = part
    tracemalloc.start()
    try:
        refused, _ = check(planned_part, body, lying_numbers(body, 0, PART_HEADER_BYTES))
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()
    assert refused > 1_000
