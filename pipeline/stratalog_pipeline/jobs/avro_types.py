"""Arrow types of Avro schemas. Raises: InvalidRequest for what no column can hold."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from stratalog.model.errors import InvalidRequest

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
    "date": pa.date32(),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
    "uuid": pa.string(),
}


def arrow_schema_of(schema: Any) -> Any:
    """Of a record's schema, as JSON reads it."""
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise InvalidRequest("the Avro schema is not that of a record: its fields become the columns")
    return pa.schema(_fields(schema, {}))


def _fields(record: dict[str, Any], named: dict[str, Any]) -> list[Any]:
    return [pa.field(field["name"], _type(field["type"], named)) for field in record["fields"]]


def _type(told: Any, named: dict[str, Any]) -> Any:
    if isinstance(told, list):
        others = [one for one in told if one != "null"]
        if len(others) > 1:
            raise InvalidRequest(f"a union of {len(others)} types has no column: {others}")
        return _type(others[0], named) if others else pa.null()
    if isinstance(told, str):
        if told in named:
            return named[told]
        return _known(told)
    if told.get("logicalType") == "decimal":
        return pa.decimal128(told["precision"], told.get("scale", 0))
    if told.get("logicalType") in _LOGICAL:
        return _LOGICAL[told["logicalType"]]
    match told["type"]:
        case "record":
            found = pa.struct(_fields(told, named))
        case "array":
            return pa.list_(_type(told["items"], named))
        case "map":
            return pa.map_(pa.string(), _type(told["values"], named))
        case str() as name:
            found = _known(name)
        case other:
            return _type(other, named)
    if "name" in told:
        named[told["name"]] = found
    return found


def _known(name: str) -> Any:
    if name not in _PLAIN:
        raise InvalidRequest(f"the Avro type {name!r} has no column: a record that holds itself, or a name of nothing")
    return _PLAIN[name]
