"""Avro and Protobuf records by schemas that follow each other."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

from google.protobuf import descriptor_pb2

FieldShape = tuple[str, int, int, int]
"""Name, number, type and label of a Protobuf field, as in `descriptor.proto`."""
INT64, STRING, INT32, ONE, MANY = 3, 9, 5, 1, 3


def avro_schema(*fields: Any) -> dict[str, Any]:
    """Fields as (name, type) or (name, type, default)."""
    names = ("name", "type", "default")
    return {"type": "record", "name": "Flight", "fields": [dict(zip(names, one, strict=False)) for one in fields]}


def avro_value(schema: dict[str, Any], schema_id: int | None = None, **record: Any) -> bytes:
    """`schema_id`: with Confluent's five bytes before it."""
    import fastavro

    out = io.BytesIO()
    if schema_id is not None:
        out.write(b"\0" + schema_id.to_bytes(4, "big"))
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), record)
    return out.getvalue()


def descriptor_set(*fields: FieldShape) -> bytes:
    """Of message `air.Flight`, with a `crew` of `air.Crew` as field 15."""
    file = descriptor_pb2.FileDescriptorProto(name="flight.proto", package="air", syntax="proto3")
    message = file.message_type.add(name="Flight")
    for name, number, kind, label in fields:
        message.field.add(name=name, number=number, type=kind, label=label)  # type: ignore[arg-type]
    message.field.add(name="crew", number=15, type=11, label=1, type_name=".air.Crew")
    file.message_type.add(name="Crew").field.add(name="size", number=1, type=5, label=1)
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def protobuf_value(descriptors: bytes, **record: Any) -> bytes:
    from stratalog_pipeline.jobs.columns.protobuf_types import message_class

    told: bytes = message_class(descriptors, "air.Flight")(**record).SerializeToString()
    return told


def without_place(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records' own fields alone."""
    return [
        {name: value for name, value in row.items() if not name.startswith("_") and name != "by_date"} for row in rows
    ]
