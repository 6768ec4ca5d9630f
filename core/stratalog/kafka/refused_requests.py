"""The answer to a request of any API that is refused as a whole, by one code. Pure.

An answer has its code at the top, or, in APIs without one there, in each of the things that its request names. Which
things those are follows from the two schemas: each list with codes in an answer repeats a list of its request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, Field, fields
from functools import cache
from typing import Any, Final

from stratalog.kafka import messages
from stratalog.kafka.error_codes import ErrorCode
from stratalog.kafka.messages import Entity
from stratalog.kafka.schema import Schema, shape_of

_FETCH, _DESCRIBE_LOG_DIRS = 1, 35
_NAMES: Final = frozenset({
    "entity", "entity_name", "entity_type", "group_id", "index", "key", "name", "partition", "partition_index",
    "resource_name", "resource_type", "session_id", "topic", "topic_id", "user",
})  # fmt: skip
"""What names a thing, in an answer as in its request. All other fields have the value for "none"."""
_OTHERWISE_NAMED: Final = {"partition_index": "partition", "user": "name"}
"""Names that differ in the request."""
_MINUS_ONE: Final = frozenset({
    "base_offset", "committed_offset", "controller_id", "high_watermark", "low_watermark", "node_id", "port",
    "producer_epoch",
})  # fmt: skip
"""Numbers that are -1 where there is none, without a default in their schema that says so."""


def refused(api_key: int, api_version: int, request: Entity, code: ErrorCode, words: str) -> Entity:
    """The response entity. `words`: what its fields for an error's text hold."""
    schema = messages.response_type(api_key, api_version)
    # Older clients look for Fetch's code in the partitions. DescribeLogDirs lists directories, which no request names.
    is_listed = api_key == _FETCH or (api_key != _DESCRIBE_LOG_DIRS and not _has_code(schema))
    return _answer(schema, request, code, words, is_listed=is_listed)


def _answer(schema: Schema, asked: Any, code: ErrorCode, words: str, *, is_listed: bool) -> Entity:
    """`asked`: the request, or the thing in it that this part of the answer is about. `is_listed`: its lists with codes
    are repeated."""
    values: dict[str, object] = {}
    for field in fields(schema):
        shape = shape_of(field)
        if field.name == "error_code":
            values[field.name] = code
        elif field.name == "error_message":
            values[field.name] = words
        elif shape.is_array:
            is_repeated = field.name in _NAMES or (is_listed and shape.nested and _holds_codes(shape.nested))
            repeated = _lists(asked, field.name) if is_repeated else ()
            is_below_listed = not _has_code(shape.nested) if repeated else False
            values[field.name] = [
                _answer(shape.nested, one, code, words, is_listed=is_below_listed) for one in repeated
            ]
        else:
            values[field.name] = _told(field, asked)
    return messages.build(schema, **values)


def _told(field: Field[Any], asked: Any) -> Any:
    """A field other than a list: a name as the request has it, or the value for "none"."""
    shape = shape_of(field)
    if field.name in _NAMES:
        told = asked if isinstance(asked, str | int) else getattr(asked, _name_in(asked, field.name), None)
        if told is not None:
            return told
    if field.default is not MISSING:
        return field.default
    if shape.kafka_type in ("bytes", "records"):
        return b""
    if shape.is_nullable and field.name not in _NAMES:
        return None
    if shape.kafka_type == "string":
        return ""
    return -1 if field.name in _MINUS_ONE else None if shape.is_nullable else 0


def _name_in(asked: Any, name: str) -> str:
    return name if hasattr(asked, name) else _OTHERWISE_NAMED.get(name, name)


def _lists(asked: Any, name: str) -> Sequence[Any]:
    """The list of the request that a list of the answer repeats: of the same name, or else its first one."""
    arrays = [field.name for field in fields(type(asked)) if shape_of(field).is_array]
    if not arrays:
        return ()
    return getattr(asked, name if name in arrays else arrays[0]) or ()


@cache
def _has_code(schema: Schema) -> bool:
    return any(field.name == "error_code" for field in fields(schema))


@cache
def _holds_codes(schema: Schema) -> bool:
    """Whether it has a code, or something in it has."""
    nested = (shape_of(field).nested for field in fields(schema))
    return _has_code(schema) or any(_holds_codes(one) for one in nested if one is not None)
