"""Chunks are merged by Spark's tasks while Spark reads: no row is missing, changed or there twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from support.pipeline_extra import NO_PIPELINE, needs_spark

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from stratalog.objects import open_store
from stratalog_pipeline.jobs.runners import on_spark
from support.cold_data import batch_at
from support.compacting import compact_world

pytestmark = needs_spark


def rows(frame: Any) -> list[tuple[int, bytes]]:
    return sorted((row.offset, bytes(row.value)) for row in frame.select("offset", "value").collect())


@pytest.mark.parametrize("is_packing", [False, True])
async def test_rows_are_the_same_before_while_and_after(spark: Any, tmp_path: Path, is_packing: bool) -> None:
    bucket = str(tmp_path / "bucket")
    store = open_store(bucket)
    try:
        async with compact_world(store, bucket, tmp_path, has_key_index=True) as place:
            for number in range(4):
                base = 120 * number
                await place.add([[batch_at(base + 3 * one, 3, epoch=number)] for one in range(40)])

            def frame() -> Any:
                options = {"topics": "cold", "meta": place.meta_url, "partitionBytes": "4096"}
                return spark.read.format("stratalog").options(**options).load(bucket)

            from stratalog_pipeline.source.data_source import register

            await asyncio.to_thread(register, spark)
            planned_before = await asyncio.to_thread(frame)
            before = await asyncio.to_thread(rows, planned_before)
            assert [offset for offset, _ in before] == list(range(480))
            merging = asyncio.create_task(place.compact(run=on_spark(spark), is_packing=is_packing))
            while not merging.done():
                assert await asyncio.to_thread(lambda: rows(frame())) == before
            told = await merging
            assert (told.merged, told.objects_before, told.not_merged) == (4, 160, [])
            assert bool(told.packed) is is_packing
            assert await place.delete_what_metadata_do_not_name()
            assert await asyncio.to_thread(lambda: rows(frame())) == before
            assert (await place.verify()).findings == []
    finally:
        await store.close()
