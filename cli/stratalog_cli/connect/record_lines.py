"""Records as lines: plain values, or one JSON object per line. `produce` reads what `consume` writes. Pure.

    {"topic": "t", "shard": 0, "offset": 7, "timestamp_ms": 0, "key": "k", "value": "v", "headers": [["name", "value"]]}

Bytes that are not UTF-8 appear as base64 under `key_base64` and `value_base64`, and as `{"base64": …}` in a header; a
missing key or value is null. `produce` requires a value, and ignores `topic` and `offset`.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from stratalog.model.errors import InvalidRequest

_KNOWN: Final = frozenset(
    {"topic", "shard", "offset", "timestamp_ms", "key", "key_base64", "value", "value_base64", "headers"}
)
Headers = tuple[tuple[str, bytes | None], ...]


class Line(NamedTuple):
    """A record to be written; None: as the producer chooses."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    shard: int | None = None
    timestamp_ms: int | None = None


def text_line(line: bytes, key_separator: bytes | None) -> Line:
    """Without a separator all of it is the value. Raises: InvalidRequest for one that lacks it."""
    if key_separator is None:
        return Line(None, line)
    key, found, value = line.partition(key_separator)
    if not found:
        raise InvalidRequest(f"has no key: {key_separator.decode(errors='replace')!r} is not in it")
    return Line(key, value)


def json_line(line: bytes) -> Line:
    """Raises: InvalidRequest with what is wrong."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise InvalidRequest("is no JSON object")
    if unknown := sorted(fields.keys() - _KNOWN):
        raise InvalidRequest(f"has the unknown field {unknown[0]!r:.80}; known are {', '.join(sorted(_KNOWN))}")
    if "value" not in fields and "value_base64" not in fields:
        raise InvalidRequest("has no value; null is one")
    return Line(
        _bytes_of(fields, "key"),
        _bytes_of(fields, "value"),
        _headers(fields.get("headers")),
        _number(fields, "shard"),
        _number(fields, "timestamp_ms", least=1),  # to librdkafka 0 means the present
    )


def as_json(
    topic: str,
    shard: int,
    offset: int,
    timestamp_ms: int | None,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes | None]],
) -> dict[str, Any]:
    line: dict[str, Any] = {"topic": topic, "shard": shard, "offset": offset, "timestamp_ms": timestamp_ms}
    for name, data in (("key", key), ("value", value)):
        text = _text(data)
        line |= {name: text} if data is None or text is not None else {f"{name}_base64": _base64(data)}
    if headers:
        line["headers"] = [[name, _header_value(data)] for name, data in headers]
    return line


def _header_value(data: bytes | None) -> object:
    text = _text(data)
    return text if data is None or text is not None else {"base64": _base64(data)}


def _text(data: bytes | None) -> str | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes_of(fields: dict[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in fields:
        if name in fields:
            raise InvalidRequest(f"has {name} and {name}_base64: give one of the two")
        return _decoded(fields[f"{name}_base64"], f"{name}_base64")
    value = fields.get(name)
    if value is None or isinstance(value, str):
        return None if value is None else _encoded(value, name)
    # A value that is JSON itself goes in as such: {"value": {"flight": 7}}.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _encoded(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"has a {name} that no UTF-8 can say; write it as {name}_base64") from None


def _decoded(text: object, name: str) -> bytes:
    try:
        if isinstance(text, str):
            return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise InvalidRequest(f"has a {name} that is not valid base64")


def _number(fields: dict[str, Any], name: str, *, least: int = 0) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 1 << 62:
        raise InvalidRequest(f"has a {name} that is not a number of at least {least}")
    return value


def _headers(given: object) -> Headers:
    pairs = list(given.items()) if isinstance(given, dict) else [] if given is None else given
    if not isinstance(pairs, list) or not all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs
    ):
        raise InvalidRequest("has headers that are neither an object nor a list of [name, value]")
    return tuple((name, _header_bytes(value)) for name, value in pairs)


def _header_bytes(value: object) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return _encoded(value, "header")
    if isinstance(value, dict) and value.keys() == {"base64"}:
        return _decoded(value["base64"], "header")
    raise InvalidRequest('has a header whose value is neither text, null, nor {"base64": …}')
