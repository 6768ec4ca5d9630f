"""Feeds damaged and made-up bytes to each parser in native code that reads foreign bytes in a job's process.

`python -m support.native_parsers NAME SEED COUNT` ends with 0 if the parser survived all of them within 2 GiB of
address space beyond what the libraries take; it dies as the job would otherwise.
"""

from __future__ import annotations

import json
import random
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from stratalog.formats.batches.records import Record, encode_batch
from stratalog.model.errors import StratalogError
from stratalog_pipeline.jobs.archive.piece import RecordSchema
from stratalog_pipeline.jobs.archive.schema_files import schema_of
from stratalog_pipeline.jobs.columns.json_inference import infer_json
from stratalog_pipeline.jobs.columns.json_records import json_reader
from stratalog_pipeline.jobs.columns.table_layout import Kind
from support.decoded_records import rows_of
from support.evolving_records import INT32, INT64, MANY, ONE, STRING, avro_value, descriptor_set, protobuf_value

ROOM_BYTES = 2 << 30
AVRO = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "flight", "type": "long"},
        {"name": "gate", "type": ["null", "string"]},
        {"name": "stops", "type": {"type": "array", "items": "string"}},
        {"name": "sizes", "type": {"type": "map", "values": ["null", "int"]}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "tag", "type": {"type": "fixed", "name": "Tag", "size": 4}},
        {"name": "delay", "type": "double"},
        {"name": "late", "type": "boolean"},
    ],
}
JSON = [
    b'{"flight": 1, "carrier": "UA", "crew": {"size": 4, "lead": null}, "stops": ["A", {"x": [1.5, -2e3]}]}',
    b'{"a": [[[{}]]], "b": true, "c": "\\u00fc\\ud83d\\ude00", "d": 123456789012345678901234567890}',
    b"null",
    b" null ",
    b"null{",
]


def _avro() -> tuple[list[bytes], Callable[[bytes], Any]]:
    from datetime import UTC, date, datetime
    from decimal import Decimal
    from uuid import UUID

    good = avro_value(
        AVRO,
        flight=7,
        gate="B4",
        stops=["SFO", "LAX"],
        sizes={"a": 1, "b": None},
        price=Decimal("12.34"),
        at=datetime(2013, 1, 1, tzinfo=UTC),
        day=date(2013, 1, 1),
        id=UUID(int=7),
        kind="B",
        tag=b"abcd",
        delay=1.5,
        late=True,
    )
    return [good], _reading(schema_of(Kind.AVRO, json.dumps(AVRO).encode(), "schema"))


def _protobuf() -> tuple[list[bytes], Callable[[bytes], Any]]:
    described = descriptor_set(
        ("flight", 1, INT64, ONE), ("carrier", 2, STRING, ONE), ("stops", 3, STRING, MANY), ("sizes", 4, INT32, MANY)
    )
    good = protobuf_value(described, flight=7, carrier="UA", stops=["SFO", "LAX"], sizes=[1, 2, 3], crew={"size": 4})
    return [good], _reading(schema_of(Kind.PROTOBUF, described, "set", "air.Flight"))


def _reading(schema: RecordSchema) -> Callable[[bytes], Any]:
    read = schema.reader()
    return lambda value: read([value])


def _json() -> tuple[list[bytes], Callable[[bytes], Any]]:
    return JSON, lambda value: json_reader(infer_json([value])[0])([value, *JSON])


def _codec(number: int) -> tuple[list[bytes], Callable[[bytes], Any]]:
    """Of batches whose header fits the bytes, as a hostile client sends them; the checksum is not looked at here."""
    records = [Record(at, 1_700_000_000_000 + at, b"key", b"value " * at, (("name", b"x"),)) for at in range(20)]
    good = encode_batch(records, base_offset=0, epoch=0, compression=number)

    def read(value: bytes) -> None:
        batch = bytearray(good[:61]) + value[61:]
        batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
        with suppress(StratalogError):
            rows_of([bytes(batch)])

    return [good], read


PARSERS: dict[str, Callable[[], tuple[list[bytes], Callable[[bytes], Any]]]] = {
    "json": _json,
    "avro": _avro,
    "protobuf": _protobuf,
    "gzip": lambda: _codec(1),
    "snappy": lambda: _codec(2),
    "lz4": lambda: _codec(3),
    "zstd": lambda: _codec(4),
}


def damaged(value: bytes, draw: random.Random) -> bytes:
    found = bytearray(value)
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(found) + 1)
        match draw.randrange(5):
            case 0:
                found[place : place + 1] = bytes([draw.randrange(256)])
            case 1:
                del found[place : place + draw.randint(1, 8)]
            case 2:
                found[place:place] = draw.choice([b"\xff" * 9 + b"\x01", b"\x80" * 10, b"\0" * 4, b"\x7f\xff\xff\xff"])
            case 3:
                found[place:place] = draw.randbytes(draw.randint(1, 8))
            case _:
                found[place:place] = found[: draw.randint(0, 64)]
    return bytes(found)


def main(name: str, seed: int, count: int) -> None:
    values, read = PARSERS[name]()
    for value in values:
        read(value)
    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + ROOM_BYTES, now + ROOM_BYTES))
    draw = random.Random(seed)
    for _ in range(count):
        value = draw.choice(values)
        read(damaged(value, draw) if draw.random() < 0.9 else draw.randbytes(draw.randint(0, 200)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
