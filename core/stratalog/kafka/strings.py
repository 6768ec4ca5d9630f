"""Strings as the wire has them: a varint of the length + 1 in flexible versions, an int16 before. Pure."""

from __future__ import annotations

import struct

from stratalog.kafka.varint import encode_varint

_I16 = struct.Struct(">h")


def compact_string(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    data = text.encode()
    return encode_varint(len(data) + 1) + data


def legacy_string(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    data = text.encode()
    return _I16.pack(len(data)) + data
