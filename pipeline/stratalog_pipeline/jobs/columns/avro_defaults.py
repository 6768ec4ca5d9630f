"""Makes values of the defaults in a parsed Avro schema. Pure.

In a schema a default is JSON: bytes and fixed stand there as a text of a character for each byte, a decimal as the
bytes of its number, a record with the fields that differ from its own defaults. fastavro hands them on as they stand,
so a record that takes a default would get another value than one that was written with it, or none that a column takes.
A field without a default has null for one: Avro could not read the record at all, and so would take no other default.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any


def make_values(parsed: Any) -> None:
    """Of a schema that fastavro has parsed, in place. Raises: whatever a default that does not fit its type makes."""
    if not isinstance(parsed, dict):
        return
    named = parsed.get("__named_schemas", {})
    # fastavro keeps a record in several places, and its fields once: each default is made a value once.
    records = [parsed, *named.values()]
    fields = {id(field): field for record in records for field in record.get("fields", ())}
    values = {key: _value(field["type"], field.get("default"), named) for key, field in fields.items()}
    for key, field in fields.items():
        field["default"] = values[key]


def _value(kind: Any, told: Any, named: Mapping[str, Any]) -> Any:
    if told is None:
        return None
    if isinstance(kind, list):
        others = [one for one in kind if one != "null"]
        return _value(others[0], told, named) if others else None
    if isinstance(kind, str):
        if kind in named:
            return _value(named[kind], told, named)
        return told.encode("latin-1") if kind == "bytes" else told
    if kind.get("logicalType") == "decimal":
        number = int.from_bytes(told.encode("latin-1"), "big", signed=True)
        return Decimal(f"{number}E-{kind.get('scale', 0)}")
    match kind["type"]:
        case "record":
            return {
                one["name"]: _value(one["type"], told.get(one["name"], one.get("default")), named)
                for one in kind["fields"]
            }
        case "array":
            return [_value(kind["items"], one, named) for one in told]
        case "map":
            return {key: _value(kind["values"], one, named) for key, one in told.items()}
        case "fixed":
            return told.encode("latin-1")
        case "enum":
            return told
        case inner:
            return _value(inner, told, named)
