"""What jobs make of the cold tier is the same whether its chunks are packed or not."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

import pyarrow.parquet as pq

from stratalog.formats.batches.records import Record, encode_batch
from stratalog.objects import open_store
from stratalog_pipeline.cold.cutting import Asked
from stratalog_pipeline.jobs.archive.archive import Archive, ArchiveOptions
from stratalog_pipeline.jobs.export.export import ExportOptions, Shape, export
from stratalog_pipeline.jobs.runners import one_by_one
from support.cold_data import FIRST_TIME_MS
from support.compacting import CompactWorld, compact_world

SEGMENTS, PARTS, RECORDS = 3, 30, 4
END = SEGMENTS * PARTS * RECORDS


def orders(base: int, epoch: int) -> bytes:
    """One of each is no JSON."""
    records = [
        Record(at, FIRST_TIME_MS + at, b"%d" % at, json.dumps({"order": at, "note": "a word " * 20}).encode())
        for at in range(base, base + RECORDS - 1)
    ]
    last = base + RECORDS - 1
    return encode_batch([*records, Record(last, FIRST_TIME_MS + last, None, b"broken")], base_offset=base, epoch=epoch)


async def fill(place: CompactWorld) -> None:
    for epoch in range(SEGMENTS):
        base = epoch * PARTS * RECORDS
        await place.add([[orders(base + RECORDS * part, epoch)] for part in range(PARTS)])


async def pack(place: CompactWorld) -> None:
    told = await place.compact(is_packing=True)
    assert (told.merged, told.not_merged) == (SEGMENTS, []) and told.packed == told.objects_after
    await place.delete_what_metadata_do_not_name()


def table_of(target: Path, folder: str) -> list[dict[str, Any]]:
    files = sorted((target / "cold" / folder).rglob("*.parquet"))
    rows = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    return sorted(rows, key=_offset)


def _offset(row: dict[str, Any]) -> int:
    """Dead letters have the source's columns."""
    return int(row["_offset"] if "_offset" in row else row["offset"])


async def archived(place: CompactWorld, target: Path, **more: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    options = ArchiveOptions(place.bucket, str(target), "cold", meta_url=place.meta_url, **more)
    told = await asyncio.to_thread(Archive(options, one_by_one).archive)
    assert (told.rows, told.dead) == (END // RECORDS * (RECORDS - 1), END // RECORDS)
    data, dead = table_of(target, "data"), table_of(target, "dead")
    assert sorted(map(_offset, (*data, *dead))) == list(range(END))
    return data, dead


async def exported(place: CompactWorld, target: Path, asked: Asked) -> list[dict[str, Any]]:
    options = ExportOptions(place.bucket, str(target), Shape.JSONL, ("cold",), asked, meta_url=place.meta_url)
    await asyncio.to_thread(export, options, one_by_one)
    lines = [line for file in sorted(target.rglob("*.jsonl*")) for line in file.read_text().splitlines()]
    return sorted(map(json.loads, lines), key=lambda row: int(row["offset"]))


async def test_archive_and_export_make_the_same_of_packed_chunks(tmp_path: Path) -> None:
    bucket = str(tmp_path / "bucket")
    store = open_store(bucket)
    asked = Asked(from_offset=17, to_offset=END - 5)
    try:
        async with compact_world(store, bucket, tmp_path, has_key_index=True) as place:
            await fill(place)
            table = await archived(place, tmp_path / "table")
            lines = await exported(place, tmp_path / "lines", asked)
            await pack(place)

            assert await archived(place, tmp_path / "table of packed") == table
            assert await exported(place, tmp_path / "lines of packed", asked) == lines
            assert [row["offset"] for row in lines] == list(range(17, END - 5))
    finally:
        await store.close()


async def test_an_archive_that_was_begun_before_chunks_were_packed_takes_each_record_once(tmp_path: Path) -> None:
    bucket = str(tmp_path / "bucket")
    store = open_store(bucket)
    try:
        async with compact_world(store, bucket, tmp_path) as place:
            await fill(place)
            table = await archived(place, tmp_path / "table")
            await pack(place)
            options = ArchiveOptions(place.bucket, str(tmp_path / "table"), "cold", meta_url=place.meta_url)
            again = await asyncio.to_thread(Archive(options, one_by_one).archive)

            assert (again.already, again.rows, again.files) == (SEGMENTS, 0, 0)
            assert (table_of(tmp_path / "table", "data"), table_of(tmp_path / "table", "dead")) == table
    finally:
        await store.close()
