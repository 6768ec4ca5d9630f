"""Chunks are merged by Spark's tasks while Spark reads: no row is missing, changed or there twice."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.pipeline_extra import NO_PIPELINE, needs_spark

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from stratalog.objects import open_store
from stratalog_pipeline.jobs.runners import on_spark
from stratalog_pipeline.source.data_source import register
from support.cold_data import batch_at
from support.compacting import compact_world

pytestmark = needs_spark

SEGMENTS, CHUNKS, RECORDS = 4, 40, 3
EVERYTHING = list(range(SEGMENTS * CHUNKS * RECORDS))


class Rounds:
    """Reads that were made while segments are merged: after each swap the job waits for one that began behind it."""

    def __init__(self, spark: Any) -> None:
        self.spark = spark
        self.swaps = 0
        self.seen: list[int] = []
        """Of each read: how many segments were swapped when it began."""
        self._ended = threading.Condition()

    def run(self, work: Callable[[Any], Any], pieces: Sequence[Any]) -> Iterator[Any]:
        """A runner. What it yields is swapped in before it is asked for more."""
        for done in on_spark(self.spark)(work, pieces):
            yield done
            with self._ended:
                self.swaps += 1
                assert self._ended.wait_for(lambda: self.swaps in self.seen, 120), "nobody read"

    def read(self, read: Callable[[], Any]) -> Any:
        began = self.swaps
        found = read()
        with self._ended:
            self.seen.append(began)
            self._ended.notify_all()
        return found


Rows = list[tuple[int, bytes]]


def collected(frame: Any) -> tuple[Rows, int]:
    """The rows, and the number of tasks that had some of them. A frame that is collected a second time is not planned
    again."""
    found = frame.collect()
    return sorted((row.offset, bytes(row.value)) for row in found), len({row.task for row in found})


@pytest.mark.fault("chunks-merged-readers-hold")
@pytest.mark.parametrize("is_packing", [False, True])
async def test_rows_are_the_same_before_while_and_after(
    spark: Any, bucket_url: str, tmp_path: Path, is_packing: bool
) -> None:
    store = open_store(bucket_url)
    try:
        async with compact_world(store, bucket_url, tmp_path, has_key_index=True) as place:
            for epoch in range(SEGMENTS):
                base = CHUNKS * RECORDS * epoch
                await place.add([[batch_at(base + RECORDS * one, RECORDS, epoch=epoch)] for one in range(CHUNKS)])

            def frame() -> Any:
                from pyspark.sql.functions import spark_partition_id

                options = {"topics": "cold", "meta": place.meta_url, "partitionBytes": "16384"}
                records = spark.read.format("stratalog").options(**options).load(bucket_url)
                return records.select("offset", "value", spark_partition_id().alias("task"))

            await asyncio.to_thread(register, spark)
            old = await asyncio.to_thread(frame)
            before, tasks = await asyncio.to_thread(collected, old)
            assert [offset for offset, _ in before] == EVERYTHING
            assert tasks > SEGMENTS
            rounds = Rounds(spark)
            merging = asyncio.create_task(place.compact(run=rounds.run, is_packing=is_packing, lease_ms=20_000))
            while not merging.done():
                assert (await asyncio.to_thread(rounds.read, lambda: collected(frame())))[0] == before
            told = await merging
            assert (told.merged, told.objects_before, told.not_merged) == (SEGMENTS, SEGMENTS * CHUNKS, [])
            assert bool(told.packed) is is_packing
            assert {1, 2, 3} <= set(rounds.seen), "reads between all the swaps"
            assert await asyncio.to_thread(collected, old) == (before, tasks), "planned before, old objects are there"
            assert await place.delete_what_metadata_do_not_name()
            assert await asyncio.to_thread(collected, old) == (before, tasks), "planned before, old objects are gone"
            new, few = await asyncio.to_thread(lambda: collected(frame()))
            assert (new, few) == (before, SEGMENTS), "that one is planned anew"
            assert (await place.verify()).findings == []
    finally:
        await store.close()
