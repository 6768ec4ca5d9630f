"""verify, export and cost over a bucket: what they find, put and add up."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

import pyarrow.parquet as pq

from stratalog.model.errors import InvalidRequest
from stratalog.model.segment import RemoteState
from stratalog.objects import ObjectStore, open_store
from stratalog.telemetry.plots import bar_chart
from stratalog_pipeline.cold.cutting import Asked
from stratalog_pipeline.jobs.cost import Cost, Prices, TopicCost, cost_of, parse_prices, with_local
from stratalog_pipeline.jobs.export.export import Exported, ExportOptions, Shape, export
from stratalog_pipeline.jobs.repair.verify import Verified, verify
from stratalog_pipeline.jobs.runners import one_by_one
from support.archived_tables import add_segment
from support.cold_data import ColdShard, batches_from
from support.cold_reading import put_shard


async def build(folder: Path, fill: Callable[[ObjectStore], Awaitable[Any]]) -> Any:
    store = open_store(str(folder))
    try:
        return await fill(store)
    finally:
        await store.close()


async def mixed(store: ObjectStore) -> ColdShard:
    """Two complete segments, a third with one committed bundle, and an attempt that no manifest names."""
    cold = ColdShard(store)
    await cold.add([batches_from(0, 5), batches_from(15, 5)])
    await cold.add([batches_from(30, 5, epoch=1)])
    await cold.add([batches_from(45, 5, epoch=2)], state=RemoteState.PARTIAL, is_bundled=True)
    await put_shard(cold)
    stray = ColdShard(store, shard=9, topic_id=cold.topic_id, attempts=70)
    await stray.add([batches_from(0, 2)], state=RemoteState.PARTIAL)
    return cold


def check(folder: Path, **options: Any) -> Verified:
    return verify(str(folder), one_by_one, **options)


# verify -------------------------------------------------------------------------------------------------------------
async def test_a_sound_bucket_has_no_findings_and_what_no_one_names_is_reported(tmp_path: Path) -> None:
    await build(tmp_path, mixed)
    told = await asyncio.to_thread(check, tmp_path)
    assert (told.segments, told.parts, told.batches, told.findings) == (3, 4, 20, [])
    assert told.unnamed_objects == 1
    alone = await asyncio.to_thread(check, tmp_path, topics=["cold"])
    assert (alone.segments, alone.unnamed_objects) == (3, 0)


@pytest.mark.fault("bit-flips-anywhere-bucket")
@pytest.mark.parametrize("ending", ["chunk", "index", "manifest", "bundle"])
async def test_a_flipped_bit_anywhere_in_any_object_is_found(tmp_path: Path, ending: str) -> None:
    await build(tmp_path, mixed)
    named = [path for path in tmp_path.rglob(f"*.{ending}") if "/9/" not in str(path)]
    size = named[0].stat().st_size
    last = size - 200 if ending == "bundle" else size - 1  # a reader that knows where a part is needs no directory
    for place in sorted({130, size // 3, size // 2, last}):
        body = bytearray(named[0].read_bytes())
        body[place] ^= 4
        named[0].write_bytes(body)
        told = await asyncio.to_thread(check, tmp_path)
        assert len(told.findings) == 1, f"byte {place} of {named[0].name}"
        assert named[0].name in told.findings[0].place
        body[place] ^= 4
        named[0].write_bytes(body)
    assert not (await asyncio.to_thread(check, tmp_path)).findings


async def keyed(store: ObjectStore) -> ColdShard:
    cold = ColdShard(store, has_key_index=True)
    await cold.add([batches_from(0, 5), batches_from(15, 5, codec=4)])
    await put_shard(cold)
    return cold


async def test_a_key_index_is_compared_with_the_batches(tmp_path: Path) -> None:
    await build(tmp_path, keyed)
    told = await asyncio.to_thread(check, tmp_path)
    assert (told.findings, told.unnamed_objects) == ([], 0)
    (named,) = tmp_path.rglob("*.keys")
    body = bytearray(named.read_bytes())
    body[200] ^= 4
    named.write_bytes(body)
    (found,) = (await asyncio.to_thread(check, tmp_path)).findings
    assert named.name in found.place


async def test_a_key_index_of_other_keys_is_found_though_its_digest_is_right(tmp_path: Path) -> None:
    """A writer that was wrong: everything is sealed, and not true."""

    async def build_wrong(store: ObjectStore) -> None:
        cold = ColdShard(store, has_key_index=True, indexed_keys=[b"3", b"5"])
        await cold.add([batches_from(0, 5)])
        await put_shard(cold)

    await build(tmp_path, build_wrong)
    (found,) = (await asyncio.to_thread(check, tmp_path)).findings
    assert "not the key index of the segment's batches" in found.what


@pytest.mark.fault("bit-flips-anywhere-bucket")
async def test_an_object_that_is_gone_is_a_finding(tmp_path: Path) -> None:
    await build(tmp_path, mixed)
    next(path for path in tmp_path.rglob("*.chunk") if "/3/" in str(path)).unlink()
    (found,) = (await asyncio.to_thread(check, tmp_path)).findings
    assert "gone" in found.what and found.is_damage


# export -------------------------------------------------------------------------------------------------------------
async def put_out(folder: Path, **options: Any) -> Exported:
    asked = ExportOptions(str(folder / "bucket"), str(folder / "out"), **options)
    return await asyncio.to_thread(export, asked, one_by_one)


async def test_json_lines_hold_every_record_and_every_byte(tmp_path: Path) -> None:
    values = [b'{"a": "\xc3\xbc"}', None, b"", b"\xff\x00"]
    await build(tmp_path / "bucket", lambda store: add_segment(ColdShard(store), [values]))
    told = await put_out(tmp_path)
    (file,) = (tmp_path / "out").rglob("*.jsonl")
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert (told.records, [line["offset"] for line in lines]) == (4, [0, 1, 2, 3])
    assert [line.get("value", "?") for line in lines] == ['{"a": "ü"}', None, "", "?"]
    assert lines[3]["value_base64"] == "/wA="
    assert lines[0]["timestamp_ms"] == 1_700_000_000_000


async def test_an_export_that_is_run_again_has_the_same_files(tmp_path: Path) -> None:
    await build(tmp_path / "bucket", mixed)
    first, second = [await put_out(tmp_path, shape=Shape.PARQUET, topics=("cold",), piece_bytes=1) for _ in range(2)]
    assert (first.pieces, first.pieces_there) == (4, 0)
    assert first.bytes_put == sum(file.stat().st_size for file in (tmp_path / "out").rglob("*.parquet"))
    assert (second.pieces, second.pieces_there, second.bytes_put) == (4, 4, 0), "nothing was written again"
    assert (first.records, second.records) == (60, 0)
    tables = [pq.read_table(io.BytesIO(file.read_bytes())) for file in (tmp_path / "out").rglob("*.parquet")]
    assert sorted(n for table in tables for n in table.column("offset").to_pylist()) == list(range(60))


async def test_an_export_may_be_of_a_range_and_a_dry_run_puts_nothing(tmp_path: Path) -> None:
    await build(tmp_path / "bucket", mixed)
    asked = Asked(from_offset=20, to_offset=33)
    assert (await put_out(tmp_path, asked=asked, is_dry_run=True)).bytes_read > 1_000
    assert not (tmp_path / "out").exists()
    assert (await put_out(tmp_path, asked=asked)).records == 13


# cost ---------------------------------------------------------------------------------------------------------------
async def test_every_byte_of_the_bucket_is_somebodys(tmp_path: Path) -> None:
    await build(tmp_path, mixed)
    prices = Prices(bucket_gib_month=1 << 30, put_per_1000=5_000, get_per_1000=1_000)
    steps: list[tuple[str, int, int]] = []
    step = lambda *told: steps.append(told)  # noqa: E731
    found = await build(tmp_path, lambda store: cost_of(store, prices, on_progress=step))
    everything = [path for path in tmp_path.rglob("*") if path.is_file()]
    in_bucket = [row for row in found.rows if row.tier == "bucket"]
    assert sum(row.bytes for row in in_bucket) == sum(path.stat().st_size for path in everything)
    assert sum(row.objects for row in in_bucket) == len(everything)
    cold = next(row for row in in_bucket if row.topic == "cold")
    assert cold.storage_price == cold.bytes
    assert cold.request_price == 5 * cold.put_requests + cold.get_requests
    assert steps[-1] == ("segments looked at", 3, 3)


def test_what_is_on_disks_has_its_own_rows_and_price() -> None:
    prices = Prices(local_gib_month=1 << 30, copies=2)
    cost = Cost("c", "USD", [TopicCost("cold", bytes=7, storage_price=1.0)])
    found = with_local(cost, {"cold": 100, "hot": 300, "nothing": 0}, prices)
    told = [(row.topic, row.tier, row.bytes, row.storage_price, row.request_price) for row in found.rows]
    assert told[1:] == [("hot", "local", 300, 600.0, 0.0), ("cold", "local", 100, 200.0, 0.0)]
    assert (found.rows[0], found.price, cost.price) == (cost.rows[0], 801.0, 1.0)


def test_a_price_table_is_checked() -> None:
    assert parse_prices('{"bucket_gib_month": 0.023, "currency": "EUR"}', "p").currency == "EUR"
    for wrong in ("[]", '{"per_gib": 1}', '{"put_per_1000": -1}', '{"copies": -1}', '{"put_per_1000": "x"}', "no"):
        with pytest.raises(InvalidRequest, match="p: "):
            parse_prices(wrong, "p")


def test_a_chart_shows_each_row_and_no_name_can_steer_it() -> None:
    chart = bar_chart("cost", [("<b>&", [1.0, 3.0]), ("none", [0.0, -1.0])], ("storage", "requests"), "{:.1f}".format)
    assert "&lt;b&gt;&amp;: 4.0" in chart and "<b>" not in chart and "<script" not in chart
    assert chart.count('<g class="bar">') == 4
    import xml.etree.ElementTree as ET

    ET.fromstring(chart)
