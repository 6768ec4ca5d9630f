"""Arrow types and rows of Protobuf messages, from a descriptor set (`protoc --include_imports --descriptor_set_out`).

Raises: InvalidRequest for what has no column.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from stratalog.model.errors import InvalidRequest
from stratalog_pipeline.jobs.columns.record_kinds import Definitions, ReadValues, row_reader, without_schema_id

_DEPTH = 20
_TYPES = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.uint32(),
    FieldDescriptor.CPPTYPE_UINT64: pa.uint64(),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
    FieldDescriptor.CPPTYPE_STRING: pa.string(),
}


def message_class(descriptors: bytes, message: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
            pool.Add(file)
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(message))
    except (DecodeError, KeyError, TypeError) as error:
        raise InvalidRequest(
            f"there is no message {message!r} in the descriptor set ({error}): make it with protoc --include_imports "
            "--descriptor_set_out, and give the full name"
        ) from error


def definition_of(descriptors: bytes, message: str) -> str:
    """A message and what describes it, as text that a table keeps."""
    return json.dumps({"message": message, "descriptors": base64.b64encode(descriptors).decode()})


def class_of_definition(definition: str) -> Any:
    document = json.loads(definition)
    return message_class(base64.b64decode(document["descriptors"]), document["message"])


def protobuf_reader(definitions: Definitions, fields: Any = None) -> tuple[Any, ReadValues]:
    """The Arrow schema and the reader of messages. `fields`: of the table, where it has more."""
    schema = arrow_schema_of(class_of_definition(definitions.newest).DESCRIPTOR) if fields is None else fields
    texts = [definitions.newest, *definitions.earlier]
    return schema, row_reader(schema, _decoder(texts, is_confluent=definitions.is_confluent))


def _decoder(definitions: Sequence[str], *, is_confluent: bool) -> Callable[[bytes], dict[str, Any]]:
    """Reads a message by the first of these that has all its fields: nothing of it is dropped."""
    kinds = [class_of_definition(one) for one in definitions]
    indexes = _indexes_of(kinds[0].DESCRIPTOR)

    def decode(value: bytes) -> dict[str, Any]:
        body = _without_indexes(without_schema_id(value), indexes) if is_confluent else value
        for kind in kinds:
            found = kind()
            found.ParseFromString(body)
            if _is_known(found):
                return to_row(found)
        raise ValueError("it has a field that the message does not have")

    return decode


def _indexes_of(descriptor: Any) -> list[int]:
    """Where a message is declared in its file, from the outermost message inwards."""
    if descriptor.containing_type is not None:
        outer = descriptor.containing_type
        return [*_indexes_of(outer), [one.name for one in outer.nested_types].index(descriptor.name)]
    file = descriptor_pb2.FileDescriptorProto()
    descriptor.file.CopyToProto(file)
    return [[one.name for one in file.message_type].index(descriptor.name)]


def _without_indexes(value: bytes, expected: list[int]) -> bytes:
    """Behind the id stands which message of the schema's file it is: how many indexes, and each, from the outermost
    message inwards; a single zero stands for the first message. Raises: ValueError for another message."""
    count, at = _zigzag(value, 0)
    indexes = [0] if not count else []
    for _ in range(count):
        if len(indexes) > _DEPTH:
            break
        index, at = _zigzag(value, at)
        indexes.append(index)
    if indexes != expected:
        raise ValueError(f"it is message {indexes} of its schema, asked for is {expected}")
    return value[at:]


def _zigzag(value: bytes, at: int) -> tuple[int, int]:
    """A number, and where the next one begins. Raises: ValueError."""
    number = shift = 0
    while at < len(value) and shift < 35:
        byte = value[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
    raise ValueError("the indexes of its message are cut off")


def _is_known(message: Any) -> bool:
    """Whether each of its fields has a name, at any depth."""
    size = message.ByteSize()
    message.DiscardUnknownFields()
    return bool(message.ByteSize() == size)


def arrow_schema_of(descriptor: Any) -> Any:
    return pa.schema(_fields(descriptor, 0))


def _fields(descriptor: Any, depth: int) -> list[Any]:
    if depth > _DEPTH:
        raise InvalidRequest(f"message {descriptor.full_name} holds itself: that has no column")
    return [pa.field(field.name, _type(field, depth)) for field in descriptor.fields]


def _type(field: Any, depth: int) -> Any:
    if _is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return pa.map_(_type(key, depth), _type(value, depth))
    if field.message_type is not None:
        found = pa.struct(_fields(field.message_type, depth + 1))
    elif field.type == FieldDescriptor.TYPE_BYTES:
        found = pa.binary()
    else:
        found = _TYPES[field.cpp_type]
    return pa.list_(found) if field.is_repeated else found


def to_row(message: Any) -> dict[str, Any]:
    """A field that the message knows to be absent is null."""
    return {field.name: _value(message, field) for field in message.DESCRIPTOR.fields}


def _value(message: Any, field: Any) -> Any:
    if _is_map(field):
        inner = field.message_type.fields_by_name["value"]
        return [(key, _single(value, inner)) for key, value in getattr(message, field.name).items()]
    if field.is_repeated:
        return [_single(value, field) for value in getattr(message, field.name)]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _single(getattr(message, field.name), field)


def _single(value: Any, field: Any) -> Any:
    if field.message_type is not None:
        return to_row(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    return value


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)
