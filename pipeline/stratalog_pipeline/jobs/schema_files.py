"""Schemas that people give in files. Raises: InvalidRequest, naming the file and what is wrong.

JSON records: an object of field and Arrow type, `{"flight": "int64", "carrier": "string", "stops": ["string"],
"crew": {"size": "int32"}}`; a list in brackets, an object in braces. Avro: its schema. Protobuf: a descriptor set.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa

from stratalog.model.errors import InvalidRequest
from stratalog_pipeline.jobs.archive_piece import RecordSchema
from stratalog_pipeline.jobs.archive_table import Kind
from stratalog_pipeline.jobs.record_kinds import avro_reader, protobuf_reader


def schema_of(kind: Kind, body: bytes, source: str, message: str = "", is_confluent: bool = False) -> RecordSchema:
    match kind:
        case Kind.RAW:
            raise InvalidRequest(f"{source}: raw records are not looked into, so they have no schema")
        case Kind.JSON:
            return RecordSchema(kind, _packed(_json_fields(_parsed(body, source), source)))
        case Kind.AVRO:
            text = json.dumps(_parsed(body, source))
            fields, _ = avro_reader(text, is_confluent=is_confluent)
            return RecordSchema(kind, _packed(fields), text, is_confluent)
        case Kind.PROTOBUF:
            fields, _ = protobuf_reader(body, message)
            told = {"message": message, "descriptors": base64.b64encode(body).decode()}
            return RecordSchema(kind, _packed(fields), json.dumps(told))


def _parsed(body: bytes, source: str) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise InvalidRequest(f"{source}: it is no JSON: {error}") from error


def _json_fields(told: Any, source: str) -> Any:
    if not isinstance(told, dict) or not told:
        raise InvalidRequest(f'{source}: it is not an object of fields and types, such as {{"flight": "int64"}}')
    return pa.schema([pa.field(name, _type(one, f"{source}: {name}")) for name, one in told.items()])


def _type(told: Any, where: str) -> Any:
    if isinstance(told, dict):
        return pa.struct([pa.field(name, _type(one, f"{where}.{name}")) for name, one in told.items()])
    if isinstance(told, list) and len(told) == 1:
        return pa.list_(_type(told[0], where))
    try:
        return pa.type_for_alias(told)
    except (ValueError, TypeError) as error:
        raise InvalidRequest(
            f"{where}: {told!r} is not a type: string, bool, int32, int64, double, date32, timestamp[ms], binary, "
            f"a list "
            "of one, or an object"
        ) from error


def _packed(schema: Any) -> bytes:
    return bytes(schema.remove_metadata().serialize().to_pybytes())
