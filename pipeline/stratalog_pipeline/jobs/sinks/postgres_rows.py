"""Records as rows of PostgreSQL's COPY in its binary format. Pure.

Columns in order: topic (text), shard (integer), offset (bigint), time (timestamptz), key, value (bytea), headers
(jsonb). Source: PostgreSQL's documentation of COPY, "Binary Format", and of each type's `send` function: a timestamp is
microseconds since 2000, a jsonb is the byte 1 and its text.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import pyarrow as pa

from stratalog_pipeline.jobs.sinks.headers_text import headers_text

COLUMNS: Final = ("topic", "shard", "offset", "time", "key", "value", "headers")
HEAD: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TAIL: Final = b"\xff\xff"
_EPOCH_MICROS: Final = 946_684_800_000_000
"""2000-01-01, in microseconds since 1970."""
_FIELD: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">iq")
_NULL: Final = _FIELD.pack(-1)
_NO_HEADERS: Final = _FIELD.pack(3) + b"\x01[]"


def encode_rows(table: Any) -> bytes:
    """All rows of an Arrow record batch with the columns of `decode.columns.SCHEMA`, of one shard."""
    if not table.num_rows:
        return b""
    topic = table.column("topic")[0].as_py().encode()
    shard = table.column("shard")[0].as_py()
    first = struct.pack(f">hi{len(topic)}sii", len(COLUMNS), len(topic), topic, 4, shard)
    times = table.column("timestamp").cast(pa.int64()).to_pylist()
    names = ("offset", "key", "value", "headers")
    found: list[bytes] = []
    for offset, key, value, headers, micros in zip(
        *(table.column(name).to_pylist() for name in names), times, strict=True
    ):
        found += (
            first,
            _LONG.pack(8, offset),
            _NULL if micros is None else _LONG.pack(8, micros - _EPOCH_MICROS),
            *((_NULL,) if key is None else (_FIELD.pack(len(key)), key)),
            *((_NULL,) if value is None else (_FIELD.pack(len(value)), value)),
            _headers(headers) if headers else _NO_HEADERS,
        )
    return b"".join(found)


def _headers(headers: Any) -> bytes:
    text = headers_text(headers).encode()
    return _FIELD.pack(len(text) + 1) + b"\x01" + text
