"""Bytes that are not a record of an Avro schema become a dead letter, whatever the library would decode."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

import fastavro

from stratalog_pipeline.jobs.archive.schema_files import schema_of
from stratalog_pipeline.jobs.columns.avro_bytes import checked_by
from stratalog_pipeline.jobs.columns.table_layout import Kind
from support.hostile_schemas import LOGICAL, RECURSIVE, TYPES, encoded, logical_value, record, types_value

ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
FEE = {"type": "fixed", "name": "F", "size": 3, "logicalType": "decimal", "precision": 4, "scale": 2}
INTS = {"type": "array", "items": "int"}


def read(kind: Any, value: bytes) -> Any:
    """A record of one field: its value, or why there is none."""
    found = schema_of(Kind.AVRO, json.dumps(record(("a", kind))).encode(), "s").reader()([value])
    return found.bad[0][1] if found.bad else found.table.column("a")[0].as_py()


@pytest.mark.fault("damaged-bytes-schema-look")
@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        (["null", "string"], b"\x01\x04ab", "branch -1 of a union that has 2"),
        (["null", "string"], b"\x04\x04ab", "branch 2 of a union that has 2"),
        (ENUM, b"\x01", "symbol -1 of an enum that has 2"),
        (ENUM, b"\x04", "symbol 2 of an enum that has 2"),
        ("boolean", b"\x02", "a boolean is 2, which is neither 0 nor 1"),
        ("long", b"\xff" * 9 + b"\x7f", "a number has more than 64 bits"),
        ("long", b"\xff" * 20 + b"\x01", "a number has more than 64 bits"),
        ("int", b"\xff" * 4 + b"\x7f", "an int has more than 32 bits"),
        ("string", b"\x03abc", "a value has -2 bytes"),
        ("string", b"\x0aabc", "it ends in the middle of a value"),
        ("double", b"1234567", "it ends in the middle of a value"),
        ("string", b"", "it ends in the middle of a value"),
        ("long", b"\x02\x02", "bytes are left after the record"),
        (INTS, b"\x03\x02\x02\x04\x00", "a block of a list or map has another size than it says"),
        (INTS, b"\xff" * 9 + b"\x01\x02", "it ends in the middle of a value"),
        (PRICE, b"\x06\x01\xe2\x40", "a decimal has more digits than its type"),
        (FEE, b"\x01\xe2\x40", "a decimal has more digits than its type"),
    ],
)
def test_what_only_the_library_takes_is_a_dead_letter(kind: Any, value: bytes, why: str) -> None:
    assert read(kind, value) == why


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (["null", "string"], b"\x02\x04ab", "ab"),
        (INTS, b"\x03\x04\x02\x04\x02\x06\x00", [1, 2, 3]),
        ("long", b"\xff" * 9 + b"\x01", -(2**63)),
        (PRICE, b"\x04\x27\x0f", Decimal("99.99")),
        (PRICE, b"\x00", Decimal("0.00")),
    ],
)
def test_what_the_specification_has_is_read(kind: Any, value: bytes, expected: Any) -> None:
    assert read(kind, value) == expected


@pytest.mark.parametrize(("schema", "make"), [(TYPES, types_value), (LOGICAL, logical_value)])
def test_each_record_that_is_written_is_taken_and_no_part_of_one(schema: dict[str, Any], make: Any) -> None:
    check, draw = checked_by(fastavro.parse_schema(json.loads(json.dumps(schema)))), random.Random(27)
    for _ in range(100):
        value = encoded(schema, make(draw))
        check(value)
        for wrong in (value[: draw.randrange(len(value))], value + b"\0"):
            with pytest.raises(ValueError):
                check(wrong)


def test_a_record_may_hold_itself() -> None:
    check = checked_by(fastavro.parse_schema(json.loads(json.dumps(RECURSIVE))))
    check(encoded(RECURSIVE, {"n": 1, "next": {"n": 2, "next": {"n": 3, "next": None}}}))


def test_a_time_that_no_date_has_costs_its_record_alone() -> None:
    kind = {"type": "long", "logicalType": "timestamp-millis"}
    assert read(kind, b"\xfe" + b"\xff" * 8 + b"\x01").startswith("Python int too large")
    assert read(kind, b"\x00") == datetime(1970, 1, 1, tzinfo=UTC)
