"""All APIs but Produce and Fetch: requests and responses as kio's entities. The only module that imports kio.

kio (pinned) gives the schemas, as dataclasses, and the encoder, in Python, 4-8 us per entry: nothing here belongs on
the hot path. Its reader is not used, because it trusts counts (`kafka.reader` says more). Entities of one message
differ by version: `build` makes one from plain values and drops the fields that its version lacks.
"""

from __future__ import annotations

import datetime
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, fields, replace
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from kio.index import KioIndexError, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_writer

from stratalog.kafka.errors import MalformedFrame
from stratalog.kafka.frames import encode_response_head
from stratalog.kafka.reader import read_entity
from stratalog.kafka.schema import Schema, shape_of

Entity: TypeAlias = Any
"""One of kio's generated dataclasses. They have no common base that says anything about their fields."""


class EncodedBody(NamedTuple):
    """A response body in its wire form, for handlers that keep encoded pieces."""

    data: bytes


MAX_REQUEST_BYTES = 16 * 1024 * 1024
"""Decoded entities are up to fifty times their bytes, so control requests are bounded well below data frames."""


def decode_request(api_key: int, api_version: int, frame: memoryview, body_position: int) -> Entity:
    """Decode a request body into an entity that holds no view of the frame.

    Raises: MalformedFrame, also for a key or version that kio does not know.
    """
    return decode_body(api_key, api_version, body_of(api_key, frame, body_position))


def body_of(api_key: int, frame: memoryview, body_position: int) -> bytes:
    """A copy of the request's body, to be decoded later. Raises: MalformedFrame for one above MAX_REQUEST_BYTES."""
    if len(frame) - body_position > MAX_REQUEST_BYTES:
        raise MalformedFrame(
            f"control request (key {api_key}) of {len(frame)} bytes is above {MAX_REQUEST_BYTES}: split it"
        )
    return bytes(frame[body_position:])


def decode_body(api_key: int, api_version: int, body: bytes) -> Entity:
    """The request entity of a whole body. Raises: MalformedFrame."""
    return read_entity(request_type(api_key, api_version), body)


def decode_answer(api_key: int, api_version: int, body: bytes) -> Entity:
    """The response entity of a whole body. Raises: MalformedFrame."""
    return read_entity(response_type(api_key, api_version), body)


def request_type(api_key: int, api_version: int) -> Schema:
    return _load(load_request_schema, api_key, api_version)


def response_type(api_key: int, api_version: int) -> Schema:
    """The class to `build` a response from."""
    return _load(load_response_schema, api_key, api_version)


def encode_response(api_key: int, api_version: int, correlation_id: int, entity: Entity) -> bytes:
    """The whole reply, size prefix first, of an entity or of a body that is encoded already."""
    body = entity.data if isinstance(entity, EncodedBody) else encode_entity(entity)
    return encode_response_head(api_key, api_version, correlation_id, len(body)) + body


def response_buffers(api_key: int, api_version: int, correlation_id: int, entity: Entity) -> list[bytes]:
    """As `encode_response`, in pieces to be sent one after the other: a body that is encoded already is not copied."""
    if not isinstance(entity, EncodedBody):
        return [encode_response(api_key, api_version, correlation_id, entity)]
    return [encode_response_head(api_key, api_version, correlation_id, len(entity.data)), entity.data]


def encode_entity(entity: Entity) -> bytes:
    """An entity's bytes without any header: for pre-encoded pieces of a response, and for clients."""
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def with_throttle_time(api_key: int, api_version: int, entity: Entity, throttle_ms: int) -> Entity:
    """A response that tells its client to wait, if this version can say so. Of a body that is encoded already only a
    time at its front is set, as nearly all responses have it."""
    schema = response_type(api_key, api_version)
    if not isinstance(entity, EncodedBody):
        has_time = any(field.name == "throttle_time" for field in fields(schema))
        return replace(entity, throttle_time=_to_duration(throttle_ms)) if has_time else entity
    if fields(schema)[0].name != "throttle_time":
        return entity
    return EncodedBody(throttle_ms.to_bytes(4, "big") + entity.data[4:])


def has_more_entries(entity: Entity, limit: int) -> bool:
    """Whether an answer's arrays hold more structures than the limit. Cost: a fraction of encoding them, because
    counting stops at the limit."""
    return not isinstance(entity, EncodedBody) and _entries_left(entity, limit) < 0


def _entries_left(entity: Entity, limit: int) -> int:
    schema: Schema = type(entity)
    for name in _array_names(schema):
        for one in getattr(entity, name) or ():
            limit = _entries_left(one, limit - 1)
            if limit < 0:
                return limit
    return limit


@cache
def _array_names(schema: Schema) -> tuple[str, ...]:
    shapes = ((field.name, shape_of(field)) for field in fields(schema))
    return tuple(name for name, shape in shapes if shape.is_array and shape.nested is not None)


def build(schema: Schema, /, **values: object) -> Entity:
    """Make an entity, dropping fields that its version lacks and converting plain values.

    A mapping becomes the nested entity of its field, an iterable a tuple, an int the field's error code, duration
    or moment (in milliseconds), so that a handler writes one answer for all versions.
    """
    shape = _shape(schema)
    return schema(**{name: shape[name].convert(value) for name, value in values.items() if name in shape})


def element_type(schema: Schema, field_name: str) -> Schema:
    """The class of an array's elements: for handlers that build a long answer piece by piece (`build` takes made
    elements as they are)."""
    nested = next(shape_of(field).nested for field in fields(schema) if field.name == field_name)
    assert nested is not None, f"{schema.__name__}.{field_name} holds no structures"
    return nested


@cache
def _load(loader: Callable[[int, int], Any], api_key: int, api_version: int) -> Schema:
    try:
        loaded: Schema = loader(api_key, api_version)
    except KioIndexError as error:
        raise MalformedFrame(f"API key {api_key} version {api_version} is unknown: {error}") from error
    return loaded


@dataclass(frozen=True, slots=True)
class _Slot:
    """How one field takes a plain value."""

    element: Callable[[Any], Any]
    is_array: bool

    def convert(self, value: Any) -> Any:
        if value is None:
            return None
        if self.is_array:
            return tuple(self.element(one) for one in value)
        return self.element(value)


@cache
def _shape(schema: Schema) -> Mapping[str, _Slot]:
    return {field.name: _slot(field) for field in fields(schema)}


def _slot(field: Field[Any]) -> _Slot:
    shape = shape_of(field)
    if shape.nested is not None:
        return _Slot(_nested(shape.nested), shape.is_array)
    return _Slot(_PLAIN.get(shape.kafka_type, _same), shape.is_array)


def _nested(schema: Schema) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        return build(schema, **value) if isinstance(value, Mapping) else value

    return convert


def _same(value: Any) -> Any:
    return value


def _to_error(value: Any) -> Any:
    return KioErrorCode(int(value))


def _to_duration(value: Any) -> Any:
    return value if isinstance(value, datetime.timedelta) else datetime.timedelta(milliseconds=value)


def _to_moment(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value
    return None if value < 0 else datetime.datetime.fromtimestamp(value / 1000, datetime.UTC)


_PLAIN: Mapping[str, Callable[[Any], Any]] = {
    "error_code": _to_error,
    "timedelta_i32": _to_duration,
    "timedelta_i64": _to_duration,
    "datetime_i64": _to_moment,
}


def milliseconds(duration: datetime.timedelta) -> int:
    """A decoded duration as whole milliseconds."""
    return round(duration.total_seconds() * 1000)


def names(entities: Iterable[Entity]) -> list[str]:
    """The `name` of each entity."""
    return [entity.name for entity in entities]
