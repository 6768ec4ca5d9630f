"""Archives whose pieces Spark's tasks work on, and tables that grew, as Spark reads them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from support.pipeline_extra import NO_PIPELINE, needs_spark

pytest.importorskip("fastavro", reason=NO_PIPELINE)
pytest.importorskip("deltalake", reason=NO_PIPELINE)

import json

from stratalog_pipeline.jobs.archive.archive import Archive, Archived
from stratalog_pipeline.jobs.archive.schema_files import schema_of
from stratalog_pipeline.jobs.columns.table_layout import Kind, TableFormat
from stratalog_pipeline.jobs.runners import on_spark, one_by_one
from support.archived_logs import LogPlace, flights
from support.archived_tables import json_value
from support.evolving_records import avro_schema, avro_value

pytestmark = needs_spark


class Place(LogPlace):
    async def on(self, spark: Any, **options: Any) -> Archived:
        return await asyncio.to_thread(Archive(self.options(**options), on_spark(spark)).archive)

    def objects(self) -> list[str]:
        """Files of records, and what says how they came to be."""
        root = Path(self.target, "cold")
        found = [file for file in root.rglob("*") if file.suffix == ".parquet" or file.parent.name.startswith("_s")]
        return sorted(str(file.relative_to(root)) for file in found)


@pytest.mark.parametrize("form", list(TableFormat))
async def test_what_tasks_of_spark_archive_is_what_is_archived_one_after_another(
    spark: Any, tmp_path: Path, form: TableFormat
) -> None:
    """Fields are inferred by tasks, too: one is in the last record alone. More pieces than fit into a round."""
    place = Place(tmp_path, form)
    segments = [[flights(20 * n, 10), flights(20 * n + 10, 10)] for n in range(12)]
    cold = await place.fill(*segments, [[b"no json", json_value(241, gate="B4")]])
    told = await place.on(spark, piece_bytes=1)
    assert (told.segments, told.rows, told.dead) == (13, 241, 1)
    rows, dead, objects = place.read(), place.read(is_dead=True), place.objects()
    assert [(row["flight"], row["gate"]) for row in rows] == [*((n, None) for n in range(240)), (241, "B4")]
    assert (await place.on(spark)).already == 13
    place.target = str(tmp_path / "other")
    await asyncio.to_thread(Archive(place.options(piece_bytes=1), one_by_one).archive)
    assert (place.read(), place.read(is_dead=True), place.objects()) == (rows, dead, objects)
    place.target = str(tmp_path / "table")
    await place.fill([[json_value(242, gate="B5")]], into=cold)
    assert (await place.on(spark)).rows == 1
    assert [row["gate"] for row in place.read()][-2:] == ["B4", "B5"]


async def test_spark_reads_a_table_whose_schema_grew(spark: Any, tmp_path: Path) -> None:
    """By `mergeSchema`, as the pages say: the columns of all files, null where a record has none."""
    place = Place(tmp_path, TableFormat.PARQUET)
    cold = await place.fill([[json_value(0, gate=None, stops=[], crew={})]])
    await place.archive()
    await place.fill([[json_value(1, gate="B4", stops=["SFO"], crew={"size": 5})]], into=cold)
    await place.archive()
    await place.fill([[json_value(2, crew={"size": 6, "lead": "x"}, legs=[{"to": "LAX"}])]], into=cold)
    await place.archive()
    await place.fill([[json_value(3, legs=[{"to": "LAX", "by": "bus"}])]], into=cold)
    await place.archive()
    frame = spark.read.option("mergeSchema", "true").parquet(f"{place.target}/cold/data").orderBy("_offset")
    found = await asyncio.to_thread(lambda: [row.asDict(recursive=True) for row in frame.collect()])
    assert [(row["flight"], row["gate"], row["stops"], row["crew"], row["legs"]) for row in found] == [
        (0, None, None, None, None),
        (1, "B4", ["SFO"], {"size": 5, "lead": None}, None),
        (2, None, None, {"size": 6, "lead": "x"}, [{"to": "LAX", "by": None}]),
        (3, None, None, None, [{"to": "LAX", "by": "bus"}]),
    ]
    late = frame.where("crew.lead = 'x'").select("_offset")
    assert await asyncio.to_thread(lambda: [row._offset for row in late.collect()]) == [2]


async def test_spark_reads_a_table_whose_avro_schema_lost_and_got_fields(spark: Any, tmp_path: Path) -> None:
    place = Place(tmp_path, TableFormat.PARQUET)
    first = avro_schema(("flight", "long"), ("carrier", "string"))
    second = avro_schema(("flight", "long"), ("seats", "int", 0), ("gate", "string", "none"))

    async def archive(schema: dict[str, Any]) -> Archived:
        given = schema_of(Kind.AVRO, json.dumps(schema).encode(), "schema")
        return await place.on(spark, kind=Kind.AVRO, schema=given)

    old = avro_value(first, flight=1, carrier="UA")
    cold = await place.fill([[old]])
    await archive(first)
    await place.fill([[old, avro_value(second, flight=2, seats=9, gate="B4")]], into=cold)
    assert (await archive(second)).dead == 0
    frame = spark.read.option("mergeSchema", "true").parquet(f"{place.target}/cold/data").orderBy("_offset")
    rows = await asyncio.to_thread(frame.collect)
    found = [(row.flight, row.carrier, row.gate) for row in rows]
    assert found == [(1, "UA", None), (1, "UA", "none"), (2, None, "B4")]
