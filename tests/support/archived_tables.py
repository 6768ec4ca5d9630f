"""A topic of JSON records in a bucket, and the table that an archive wrote from it."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stratalog.formats.batches.records import Record, encode_batch
from stratalog.objects import ObjectStore
from support.cold_data import FIRST_TIME_MS, ColdShard

DAY_MS = 86_400_000


def batch_of(base_offset: int, values: Sequence[bytes | None], *, epoch: int = 0, step_ms: int = DAY_MS // 10) -> bytes:
    """Ten records a day."""
    records = [
        Record(base_offset + n, FIRST_TIME_MS + (base_offset + n) * step_ms, b"%d" % (base_offset + n), value)
        for n, value in enumerate(values)
    ]
    return encode_batch(records, base_offset=base_offset, epoch=epoch)


def json_value(number: int, **more: Any) -> bytes:
    return json.dumps({"flight": number, "carrier": "AA" if number % 2 else "UA", **more}).encode()


async def add_segment(cold: ColdShard, parts: Sequence[Sequence[bytes | None]]) -> None:
    """A sealed segment; each part one batch."""
    epoch, base, batches = len(cold.segments), cold.end_offset, []
    for values in parts:
        batches.append([batch_of(base, values, epoch=epoch)])
        base += len(values)
    await cold.add(batches)


async def files_of(store: ObjectStore, prefix: str) -> dict[str, Any]:
    """Name -> table of each Parquet file."""
    found = {}
    async for info in store.list(prefix):
        if info.key.endswith(".parquet"):
            found[info.key] = pq.read_table(io.BytesIO(await store.get(info.key)))
    return found


async def rows_of_table(store: ObjectStore, prefix: str) -> list[dict[str, Any]]:
    """All rows, by offset, as any reader of the files sees them."""
    tables = list((await files_of(store, prefix)).values())
    rows = pa.concat_tables(tables, promote_options="default").to_pylist() if tables else []
    return sorted(rows, key=lambda row: int(row.get("_offset", row.get("offset"))))
