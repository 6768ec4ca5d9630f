"""Arrow types of Avro schemas. Raises: InvalidRequest for what no column can hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa

from stratalog.model.errors import InvalidRequest
from stratalog_pipeline.jobs.columns.table_types import widest

_PLAIN: Final = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_LOGICAL: Final = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
"""Of a type; on another one Avro says that a logical type is to be ignored. A uuid is its text."""
_MOST_DIGITS: Final = 38


@dataclass(frozen=True, slots=True)
class _Named:
    """A type that may be used again by its name."""

    column: Any
    least_bytes: int


_Names: TypeAlias = dict[str, _Named]


def arrow_schema_of(schema: Any) -> Any:
    """Of a record's schema as fastavro parses it: names are full ones, wherever they are used."""
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise InvalidRequest("the Avro schema is not that of a record: its fields become the columns")
    return pa.schema(_fields(schema, {}))


def _fields(record: dict[str, Any], named: _Names) -> list[Any]:
    return [pa.field(field["name"], _type(field["type"], named)) for field in record["fields"]]


def _type(schema: Any, named: _Names) -> Any:
    if isinstance(schema, list):
        return _of_union([one for one in schema if one != "null"], named)
    if isinstance(schema, str):
        return named[schema].column if schema in named else _known(schema)
    if schema.get("logicalType") == "decimal" and schema["type"] in ("bytes", "fixed"):
        if schema["precision"] > _MOST_DIGITS:
            raise InvalidRequest(
                f"a decimal of {schema['precision']} digits has no column: {_MOST_DIGITS} are the most"
            )
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    match schema["type"]:
        case "record":
            found = pa.struct(_fields(schema, named))
        case "array":
            found = pa.list_(_type(schema["items"], named))
            if not _least_bytes(schema["items"], named):
                raise InvalidRequest(
                    "a list whose elements take no bytes has no column: a few bytes could stand for any number of them"
                )
            return found
        case "map":
            return pa.map_(pa.string(), _type(schema["values"], named))
        case str() as name:
            found = _LOGICAL.get((name, str(schema.get("logicalType")))) or _known(name)
        case other:
            return _type(other, named)
    if "name" in schema:
        named[schema["name"]] = _Named(found, _least_bytes(schema, named))
    return found


def _of_union(others: list[Any], named: _Names) -> Any:
    """One type beside null, or several that one column holds as they are."""
    found = pa.null()
    for one in others:
        together = widest(found, _type(one, named))
        if together is None:
            raise InvalidRequest(f"a union of {len(others)} types has no column: {others}"[:300])
        found = together
    return found


def _least_bytes(schema: Any, named: _Names) -> int:
    """The least bytes of a value; 0 for a type whose values may have none."""
    if isinstance(schema, list):
        return 1
    if isinstance(schema, str):
        return named[schema].least_bytes if schema in named else int(schema != "null")
    match schema["type"]:
        case "record":
            return sum(_least_bytes(field["type"], named) for field in schema["fields"])
        case "fixed":
            return int(schema["size"])
        case "array" | "map":
            return 1
        case other:
            return _least_bytes(other, named)


def _known(name: str) -> Any:
    if name not in _PLAIN:
        raise InvalidRequest(f"the Avro type {name!r} has no column: a record that holds itself, or a name of nothing")
    return _PLAIN[name]
