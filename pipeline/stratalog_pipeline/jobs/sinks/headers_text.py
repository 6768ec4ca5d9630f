"""A record's headers as one JSON text, for targets without a type for bytes inside lists. Pure.

A list of objects in the record's order: `key`, and `value` where it is text, else `value_base64`. A text with a NUL
character counts as bytes, because PostgreSQL has none in its JSON.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any


def headers_text(headers: Iterable[Mapping[str, Any]]) -> str:
    """`headers`: of the column of that name."""
    return json.dumps(
        [{**as_text("key", one["key"].encode()), **as_text("value", one["value"])} for one in headers],
        ensure_ascii=False,
        separators=(",", ":"),
    )


def as_text(name: str, value: bytes | None) -> dict[str, str | None]:
    """`{name: text}`, or `{name_base64: …}` for bytes that are not UTF-8, or contain NUL."""
    if value is None:
        return {name: None}
    if b"\0" not in value:
        try:
            return {name: value.decode()}
        except UnicodeDecodeError:
            pass
    return {f"{name}_base64": base64.b64encode(value).decode()}
