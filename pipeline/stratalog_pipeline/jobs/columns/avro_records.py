"""Decodes Avro records without a container, each by the schema that it was written with.

With ids (Confluent's five bytes before a record, and a schema for each id) that is certain. Records of other ids are
read by the schemas that the table was given without an id, if there were any. Without ids, a record is read
by the newest schema, or else by the earlier ones, newest first; a schema counts only if it takes all bytes to the last.
What a record's own schema lacks gets the default of the newest schema, else null; what only its own schema has stays.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

import fastavro
from fastavro.read import SchemaResolutionError

from stratalog.model.errors import InvalidRequest
from stratalog_pipeline.jobs.columns.avro_bytes import checked_by
from stratalog_pipeline.jobs.columns.avro_types import arrow_schema_of
from stratalog_pipeline.jobs.columns.record_kinds import (
    CONFLUENT_BYTES,
    Definitions,
    ReadValues,
    evolve,
    first_line,
    row_reader,
    without_schema_id,
)
from stratalog_pipeline.jobs.columns.table_types import widest

Decode = Callable[[bytes], dict[str, Any]]


def avro_reader(definitions: Definitions, fields: Any = None) -> tuple[Any, ReadValues]:
    """The Arrow schema and the reader of records. `fields`: of the table, where it has more. Raises: InvalidRequest."""
    schema = _fields(definitions) if fields is None else fields
    return schema, row_reader(schema, _decoder(definitions))


def _fields(definitions: Definitions) -> Any:
    """The newest schema's, then what only others have. Of a number the widest type that any of them gives."""
    found = arrow_schema_of(_parsed(definitions.newest))
    for text in reversed([text for _, text in sorted(definitions.writers)]):
        found = evolve(found, arrow_schema_of(_parsed(text)), lambda known, more: widest(known, more) or known)
    return found


def _decoder(definitions: Definitions) -> Decode:
    """It raises whatever it likes for a bad record."""
    texts = (definitions.newest, *definitions.earlier)
    parsed = {text: _parsed(text) for text in (*texts, *(text for _, text in definitions.writers))}
    newest = parsed[definitions.newest]
    if definitions.writers:
        known = {number: _decoding(parsed[text], newest) for number, text in definitions.writers}
        return partial(_by_id, known, [_decoding(parsed[text], newest) for text in definitions.earlier])
    attempts = [_decoding(parsed[text], newest) for text in texts]
    return partial(_by_trying, attempts, definitions.is_confluent)


def _by_id(known: Mapping[int, Decode], others: Sequence[Decode], value: bytes) -> dict[str, Any]:
    body = without_schema_id(value)
    number = int.from_bytes(value[1:CONFLUENT_BYTES], "big")
    if number not in known and others:
        return _by_trying(others, False, body)
    if number not in known:
        raise ValueError(f"it was written with schema id {number}, which is not known: give --schema {number}=FILE")
    return known[number](body)


def _by_trying(attempts: Sequence[Decode], is_confluent: bool, value: bytes) -> dict[str, Any]:
    body = without_schema_id(value) if is_confluent else value
    first: Exception | None = None
    for attempt in attempts:
        try:
            return attempt(body)
        except Exception as error:  # hostile bytes make the library raise whatever it likes
            first = first or error
    assert first is not None, "there is a newest schema"
    raise first


def _decoding(writer: Any, newest: Any) -> Decode:
    return partial(_decode, checked_by(writer), writer, newest)


def _decode(check: Callable[[bytes], None], writer: Any, newest: Any, value: bytes) -> dict[str, Any]:
    check(value)
    written: dict[str, Any] = fastavro.schemaless_reader(io.BytesIO(value), writer, None)
    if writer is newest:
        return written
    try:
        resolved = fastavro.schemaless_reader(io.BytesIO(value), writer, newest)
    except SchemaResolutionError:  # another type: the column decides whether it takes it
        return written
    both: dict[str, Any] = _both(resolved, written)
    return both


def _both(resolved: Any, written: Any) -> Any:
    """What the newest schema makes of it, and beside it what only the record's own schema knows."""
    if isinstance(resolved, dict) and isinstance(written, dict):
        return {
            **written,
            **{name: _both(one, written[name]) if name in written else one for name, one in resolved.items()},
        }
    if isinstance(resolved, list) and isinstance(written, list) and len(resolved) == len(written):
        return [_both(*pair) for pair in zip(resolved, written, strict=True)]
    return resolved


def _parsed(text: str) -> Any:
    try:
        parsed = fastavro.parse_schema(json.loads(text))
        make_values(parsed)
        return parsed
    except Exception as error:  # fastavro raises many types of errors, and only their messages help
        raise InvalidRequest(f"the Avro schema cannot be read: {first_line(error)}") from error


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


def _value(kind: Any, given: Any, named: Mapping[str, Any]) -> Any:
    if given is None:
        return None
    if isinstance(kind, list):
        others = [one for one in kind if one != "null"]
        return _value(others[0], given, named) if others else None
    if isinstance(kind, str):
        if kind in named:
            return _value(named[kind], given, named)
        return given.encode("latin-1") if kind == "bytes" else given
    if kind.get("logicalType") == "decimal":
        number = int.from_bytes(given.encode("latin-1"), "big", signed=True)
        return Decimal(f"{number}E-{kind.get('scale', 0)}")
    match kind["type"]:
        case "record":
            return {
                one["name"]: _value(one["type"], given.get(one["name"], one.get("default")), named)
                for one in kind["fields"]
            }
        case "array":
            return [_value(kind["items"], one, named) for one in given]
        case "map":
            return {key: _value(kind["values"], one, named) for key, one in given.items()}
        case "fixed":
            return given.encode("latin-1")
        case "enum":
            return given
        case inner:
            return _value(inner, given, named)
