"""kafka-python's protocol classes as an oracle: messages of every key and version, filled from their schemas.

A filled message has a different value in each field, so that two fields mixed up never encode to equal bytes.
"""

from __future__ import annotations

import importlib
import itertools
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal
from uuid import UUID

import kafka.protocol
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.schemas.fields.codecs.tagged_fields import TaggedFields

Fill = Literal["full", "empty", "null"]
FILLS: tuple[Fill, ...] = ("full", "empty", "null")

SERVED: dict[int, tuple[int, int]] = {
    0: (3, 11), 1: (4, 12), 2: (1, 9), 3: (0, 12), 8: (2, 9), 9: (1, 9), 10: (0, 6), 11: (0, 9), 12: (0, 4), 13: (0, 5),
    14: (0, 5), 15: (0, 5), 16: (0, 5), 18: (0, 3), 19: (2, 7), 20: (1, 6), 21: (0, 2), 22: (0, 4), 23: (2, 4),
    29: (1, 3), 30: (1, 3), 31: (1, 3), 32: (1, 4), 33: (0, 2), 35: (1, 4), 37: (0, 3), 42: (0, 2), 44: (0, 1),
    47: (0, 0), 48: (0, 1), 49: (0, 1), 50: (0, 0), 51: (0, 0), 60: (0, 1),
}  # fmt: skip
"""API key -> versions that the codec must speak."""

UNKNOWN_TO_IT: dict[int, tuple[int, int]] = {68: (0, 1), 69: (0, 1)}
"""Served as well. kafka-python has no classes for them: kio's reader and clients themselves say what is right."""

HAND_MADE = (0, 1)


def versions(*, hand_made: bool) -> Iterator[tuple[int, int]]:
    """Every (key, version) that has a decoder of its own, or that kio decodes."""
    for key, (low, high) in SERVED.items():
        if (key in HAND_MADE) is hand_made:
            yield from ((key, version) for version in range(low, high + 1))


@cache
def _classes() -> dict[tuple[int, str], Any]:
    for module in pkgutil.walk_packages(kafka.protocol.__path__, "kafka.protocol."):
        if ".old" not in module.name and "generate" not in module.name:
            importlib.import_module(module.name)
    found: dict[tuple[int, str], Any] = {}
    for cls in ApiMessage.__subclasses__():
        if cls._class_version is None:
            found[cls.API_KEY, cls.type] = cls
    return found


def request_class(key: int) -> Any:
    return _classes()[key, "request"]


def response_class(key: int) -> Any:
    return _classes()[key, "response"]


def filled(cls: Any, version: int, fill: Fill) -> Any:
    """A message with values in all fields; "empty": empty arrays, no tags; "null": null wherever the version allows."""
    counter = itertools.count(1)
    return cls(version=version, **_values(cls._struct, version, fill, counter))


def frame_of(message: Any, correlation_id: int = 77, client_id: str = "oracle") -> bytes:
    """The bytes on the wire, size prefix first."""
    if message.is_request():
        message.with_header(correlation_id=correlation_id, client_id=client_id)
    else:
        message.with_header(correlation_id=correlation_id)
    return bytes(message.encode(header=True, framed=True))


def decode_response(key: int, version: int, data: bytes) -> Any:
    """What kafka-python makes of a reply."""
    return response_class(key).decode(data, version=version, header=True, framed=True)


UNKNOWN_TAGS = b"\x63\x08unknown!" + b"\xa0\x9c\x01\xac\x02" + bytes(300)
"""Two tagged fields that no schema knows: tag 99 with 8 bytes, tag 20000 with 300."""


@contextmanager
def unknown_tags() -> Iterator[None]:
    """Within, kafka-python adds two unknown tagged fields to the header and to every structure it encodes."""
    encode, encode_into = TaggedFields.encode, TaggedFields.encode_into

    def with_unknown(self: Any, item: Any, version: int | None = None) -> bytes:
        known = encode(self, item, version=version)
        return bytes((known[0] + 2,)) + known[1:] + UNKNOWN_TAGS

    def with_unknown_into(self: Any, item: Any, out: Any, version: int | None = None) -> None:
        data = with_unknown(self, item, version)
        out.ensure(len(data))
        out.buf[out.pos : out.pos + len(data)] = data
        out.pos += len(data)

    TaggedFields.encode, TaggedFields.encode_into = with_unknown, with_unknown_into
    try:
        yield
    finally:
        TaggedFields.encode, TaggedFields.encode_into = encode, encode_into


def _values(struct: Any, version: int, fill: Fill, counter: Iterator[int]) -> dict[str, Any]:
    fields = struct.fields.values() if isinstance(struct.fields, dict) else struct.fields
    values = {}
    for field in fields:
        if field.for_version_q(version):
            if field.tagged_field_q(version) and fill != "full":
                continue
            values[field.name] = _value(field, version, fill, counter)
    return values


def _value(field: Any, version: int, fill: Fill, counter: Iterator[int]) -> Any:
    if fill == "null" and field.nullable_for_version_q(version):
        return None
    if field.is_struct_array():
        count = 0 if fill == "empty" else 2
        return [field(version=version, **_values(field, version, fill, counter)) for _ in range(count)]
    if field.is_struct():
        return field(version=version, **_values(field, version, fill, counter))
    if field.is_array():
        count = 0 if fill == "empty" else 3
        return [_primitive(field.array_of, counter) for _ in range(count)]
    return _primitive(field, counter)


def _primitive(field: Any, counter: Iterator[int]) -> Any:
    number = next(counter)
    if field.name.endswith("error_code"):
        return number % 100 + 1
    kind = field._type_str.removeprefix("[]")
    if field.name.endswith("authorized_operations") or kind == "bitfield":
        return {number % 30}  # kafka-python shows the bits of this int32 as a set
    match kind:
        case "string":
            return f"s{number}-{'é' * (number % 3)}"
        case "bytes" | "records":
            return f"bytes {number}".encode() * (number % 5 + 1)
        case "bool":
            return True
        case "uuid":
            return UUID(int=number << 64 | number)
        case "int8":
            return number % 100 + 1
        case "int16":
            return 3_000 + number
        case "float64":
            return float(number)
        case "int64":
            return 5_000_000_000 + number
        case _:
            return 100_000 + number
