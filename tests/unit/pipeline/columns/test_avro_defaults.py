"""A missing field gets the default of the newest Avro schema: the value, not its JSON form."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from typing import Any

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

import fastavro
import pyarrow as pa

from stratalog.model.errors import InvalidRequest
from stratalog_pipeline.jobs.columns.avro_records import avro_reader
from stratalog_pipeline.jobs.columns.record_kinds import Definitions

DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
CREW = {"type": "record", "name": "Crew", "fields": [{"name": "size", "type": "int", "default": 3}]}
PRICED = {
    "type": "record",
    "name": "Priced",
    "fields": [{"name": "mark", "type": "bytes", "default": "\u00fe"}, {"name": "crew", "type": CREW, "default": {}}],
}
FIXED = {"type": "fixed", "name": "Pair", "size": 2}


def flight(*more: Any) -> Any:
    return {"type": "record", "name": "Flight", "fields": [{"name": "number", "type": "int"}, *more]}


def written(schema: Any, record: Any) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), record)
    return body.getvalue()


@pytest.mark.fault("newer-avro-schema-default")
@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        ("bytes", "\u00ff\u0000", b"\xff\x00"),
        (FIXED, "\u00ff\u0001", b"\xff\x01"),
        (["bytes", "null"], "\u00ff", b"\xff"),
        (DECIMAL, "\u0001\u0000", Decimal("2.56")),
        (DECIMAL, "\u00ff", Decimal("-0.01")),
        ([DECIMAL, "null"], "\u0001\u0000", Decimal("2.56")),
        (PRICED, {}, {"mark": b"\xfe", "crew": {"size": 3}}),
        (PRICED, {"crew": {"size": 7}}, {"mark": b"\xfe", "crew": {"size": 7}}),
        ({"type": "array", "items": "bytes"}, ["\u00ff"], [b"\xff"]),
        ({"type": "map", "values": "bytes"}, {"a": "\u00ff"}, [("a", b"\xff")]),
        (["null", "string"], None, None),
        ({"type": "enum", "name": "Gate", "symbols": ["A", "B"]}, "B", "B"),
    ],
)
def test_a_default_is_the_value_that_would_have_been_written(kind: Any, default: Any, value: Any) -> None:
    old, new = flight(), flight({"name": "extra", "type": kind, "default": default})
    schema, read = avro_reader(Definitions(json.dumps(new), (json.dumps(old),)))
    asked = dict(value) if pa.types.is_map(schema.field("extra").type) else value
    found = read([written(old, {"number": 7}), written(new, {"number": 7, "extra": asked})])
    assert found.bad == []
    assert found.table.to_pylist() == [{"number": 7, "extra": value}] * 2, "a default and a written value are alike"


@pytest.mark.fault("newer-avro-schema-default")
def test_a_type_that_is_named_again_has_its_default_once() -> None:
    new = flight(
        {"name": "first", "type": PRICED, "default": {}},
        {"name": "second", "type": "Priced", "default": {"mark": "\u00fd"}},
    )
    _, read = avro_reader(Definitions(json.dumps(new), (json.dumps(flight()),)))
    (row,) = read([written(flight(), {"number": 7})]).table.to_pylist()
    assert row["first"] == {"mark": b"\xfe", "crew": {"size": 3}}
    assert row["second"] == {"mark": b"\xfd", "crew": {"size": 3}}


@pytest.mark.fault("newer-avro-schema-default")
def test_a_field_without_a_default_takes_no_default_from_another() -> None:
    new = flight({"name": "gate", "type": "string", "default": "none"}, {"name": "seats", "type": "int"})
    _, read = avro_reader(Definitions(json.dumps(new), (json.dumps(flight()),)))
    (row,) = read([written(flight(), {"number": 7})]).table.to_pylist()
    assert row == {"number": 7, "gate": "none", "seats": None}


@pytest.mark.fault("newer-avro-schema-default")
def test_a_default_that_does_not_fit_is_refused_with_the_schema() -> None:
    new = flight({"name": "extra", "type": "bytes", "default": "\u0100"})
    with pytest.raises(InvalidRequest, match="the Avro schema cannot be read"):
        avro_reader(Definitions(json.dumps(new)))
