"""Batches and what the pipeline's columns make of them, beside what the product's own decoder says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stratalog.formats.batches.batch_headers import BatchHeaders
from stratalog.formats.batches.record_batch import parse_header
from stratalog.formats.batches.records import decode_records
from stratalog_pipeline.decode.columns import Wanted, batches_to_columns

LARGEST_TIME_MS = (1 << 63) // 1_000 - 1


def headers_of(batches: Sequence[bytes]) -> BatchHeaders:
    """Of batches back to back."""
    positions = [0]
    for batch in batches:
        positions.append(positions[-1] + len(batch))
    return BatchHeaders(b"".join(batches), positions)


def rows_of(batches: Sequence[bytes], wanted: Wanted | None = None, **more: Any) -> list[dict[str, Any]]:
    """Through the columns; timestamps in milliseconds."""
    tables = batches_to_columns(
        b"".join(batches),
        headers_of(batches),
        topic="flights",
        shard=3,
        wanted=wanted or Wanted(),
        source="a part",
        **more,
    )
    rows = [row for table in tables for row in table.to_pylist()]
    for row in rows:
        if row.get("timestamp") is not None:
            row["timestamp"] = round(row["timestamp"].timestamp() * 1_000)
    return rows


def expected_rows(batches: Sequence[bytes]) -> list[dict[str, Any]]:
    """As the record-by-record decoder says."""
    rows = []
    for batch in batches:
        header = parse_header(batch)
        if header.is_control:
            continue
        for record in decode_records(batch):
            rows.append(
                {
                    "topic": "flights",
                    "shard": 3,
                    "offset": record.offset,
                    "timestamp": record.timestamp_ms if 0 <= record.timestamp_ms <= LARGEST_TIME_MS else None,
                    "timestamp_type": int(header.is_log_append_time),
                    "key": record.key,
                    "value": record.value,
                    "headers": [{"key": name, "value": value} for name, value in record.headers],
                    "leader_epoch": header.epoch,
                }
            )
    return rows
