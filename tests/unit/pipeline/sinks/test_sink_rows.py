"""What a sink makes of records, without a target: rows, headers, and the order of its pieces."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

import pyarrow as pa

from stratalog_pipeline.decode.columns import SCHEMA
from stratalog_pipeline.jobs.runners import in_rounds
from stratalog_pipeline.jobs.sinks.headers_text import headers_text
from stratalog_pipeline.jobs.sinks.postgres_rows import encode_rows

_COLUMNS = ("topic", "shard", "offset", "timestamp", "key", "value", "headers")
_EPOCH_MICROS = 946_684_800_000_000
_HEADER = st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5) | st.text(max_size=5).map(str.encode))
_RECORD = st.tuples(
    st.none() | st.integers(0, (1 << 63) // 1_000 - 1).map(lambda ms: ms * 1_000),
    st.none() | st.binary(max_size=9),
    st.none() | st.binary(max_size=9),
    st.lists(_HEADER, max_size=3),
)


def table_of(records: list[Any]) -> Any:
    count = len(records)
    columns = [
        pa.array(["flüge"] * count, pa.string()),
        pa.array([3] * count, pa.int32()),
        pa.array(range(count), pa.int64()),
        pa.array([one[0] for one in records], pa.int64()).cast(pa.timestamp("us", "UTC")),
        pa.array([one[1] for one in records], pa.binary()),
        pa.array([one[2] for one in records], pa.binary()),
        pa.array([[{"key": k, "value": v} for k, v in one[3]] for one in records], SCHEMA.field("headers").type),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([SCHEMA.field(name) for name in _COLUMNS]))


def fields_of(data: bytes) -> list[list[bytes | None]]:
    """As PostgreSQL's documentation of COPY says."""
    rows, at = [], 0
    while at < len(data):
        (count,) = struct.unpack_from(">h", data, at)
        at += 2
        row: list[bytes | None] = []
        for _ in range(count):
            (size,) = struct.unpack_from(">i", data, at)
            at += 4
            row.append(None if size < 0 else data[at : at + size])
            at += max(size, 0)
        rows.append(row)
    assert at == len(data)
    return rows


@given(st.lists(_RECORD, max_size=8))
def test_rows_have_every_field_of_their_records(records: list[Any]) -> None:
    rows = fields_of(encode_rows(table_of(records)))
    assert len(rows) == len(records)
    for offset, (row, (micros, key, value, headers)) in enumerate(zip(rows, records, strict=True)):
        assert row[:3] == ["flüge".encode(), struct.pack(">i", 3), struct.pack(">q", offset)]
        assert row[3] == (None if micros is None else struct.pack(">q", micros - _EPOCH_MICROS))
        assert row[4:6] == [key, value]
        assert row[6] is not None
        assert row[6][:1] == b"\x01"
        assert len(json.loads(row[6][1:])) == len(headers)


@given(st.lists(_HEADER, max_size=4))
def test_headers_keep_their_order_their_duplicates_and_their_bytes(headers: list[tuple[str, bytes | None]]) -> None:
    import base64

    def back(one: dict[str, str | None], name: str) -> bytes | None:
        if f"{name}_base64" in one:
            return base64.b64decode(one[f"{name}_base64"] or "")
        text = one[name]
        return None if text is None else text.encode()

    text = headers_text({"key": key, "value": value} for key, value in headers)
    assert "\\u0000" not in text, "PostgreSQL has no such character"
    found = [(back(one, "key"), back(one, "value")) for one in json.loads(text)]
    assert found == [(key.encode(), value) for key, value in headers]


@given(st.lists(st.integers(0, 3), max_size=20))
def test_a_round_has_one_piece_of_each_line_and_lines_keep_their_order(lines: list[int]) -> None:
    pieces = list(enumerate(lines))
    rounds = in_rounds(pieces, lambda piece: piece[1])
    assert all(len({line for _, line in some}) == len(some) for some in rounds)
    for line in set(lines):
        assert [one for some in rounds for one in some if one[1] == line] == [one for one in pieces if one[1] == line]
