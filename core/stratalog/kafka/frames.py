"""Request and response headers of the Kafka protocol, decoded without kio.

A *frame* here is what follows the four-byte size prefix, as a memoryview; positions count from its first byte. Encoders
return the size prefix too. kio refuses unknown tagged fields, while Kafka demands that they are skipped. Pure; about
0.6 us per request header.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from stratalog.kafka.errors import MalformedFrame
from stratalog.kafka.varint import skip_tags

API_VERSIONS = 18
NEVER = 1 << 15
"""In FLEXIBLE_FROM: no version of this key is flexible."""

FLEXIBLE_FROM: Mapping[int, int] = {
    0: 9, 1: 12, 2: 6, 3: 9, 8: 8, 9: 6, 10: 3, 11: 6, 12: 4, 13: 4, 14: 4, 15: 5, 16: 3, 17: NEVER, 18: 3, 19: 5,
    20: 4, 21: 2, 22: 2, 23: 4, 24: 3, 25: 3, 26: 3, 27: 1, 28: 3, 29: 2, 30: 2, 31: 2, 32: 4, 33: 2, 34: 2, 35: 2,
    36: 2, 37: 2, 38: 2, 39: 2, 40: 2, 41: 2, 42: 2, 43: 2, 44: 1, 45: 0, 46: 0, 47: NEVER, 48: 1, 49: 1, 50: 0, 51: 0,
    55: 0, 57: 0, 60: 0, 61: 0, 65: 0, 66: 0, 68: 0, 69: 0, 71: 0, 72: 0, 74: 0, 75: 0,
}  # fmt: skip
"""API key -> first version with compact lengths and tagged fields (then request header v2, response header v1)."""

_REQUEST_HEAD = struct.Struct(">hhih")
_RESPONSE_V0 = struct.Struct(">ii")
_RESPONSE_V1 = struct.Struct(">iib")


class RequestHeader(NamedTuple):
    """A decoded request header; the body starts at `body_position` of the frame."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_position: int


_TLS_RECORD = 0x1603
"""A handshake record of TLS, of any version."""
_HTTP = frozenset(int.from_bytes(verb) for verb in (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"PATC"))


def other_protocol(size: int) -> str | None:
    """What a client speaks whose first four bytes would be a frame of this size, and what to do; None: unknown."""
    if size >> 16 == _TLS_RECORD:
        return (
            "the client speaks TLS, and this listener does not: set security.protocol=PLAINTEXT or SASL_PLAINTEXT in "
            "the client, or name a listener with TLS"
        )
    if size in _HTTP:
        return "this is an HTTP request, at a Kafka listener: the port of metrics.listen or meta.listen takes them"
    return None


def is_flexible(api_key: int, api_version: int) -> bool:
    return api_version >= FLEXIBLE_FROM.get(api_key, NEVER)


def decode_request_header(frame: memoryview) -> RequestHeader:
    """Decode the header; tagged fields of header v2 are skipped.

    A key that the table does not know is read with header v1, enough to answer or log its correlation id.
    Raises: MalformedFrame.
    """
    try:
        api_key, api_version, correlation_id, length = _REQUEST_HEAD.unpack_from(frame)
        position = 10
        client_id: str | None = None
        if length > 0:
            position += length
            if position > len(frame):
                raise MalformedFrame(f"client id of {length} bytes in a frame of {len(frame)}: close the connection")
            client_id = str(frame[10:position], "utf-8")
        elif length == 0:
            client_id = ""
        elif length < -1:
            raise MalformedFrame(f"client id has length {length}: close the connection")
        if api_version >= FLEXIBLE_FROM.get(api_key, NEVER):
            position = skip_tags(frame, position)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedFrame(f"request header of a frame of {len(frame)} bytes: {error}: close it") from error
    return RequestHeader(api_key, api_version, correlation_id, client_id, position)


def encode_response_head(api_key: int, api_version: int, correlation_id: int, body_bytes: int) -> bytes:
    """Size prefix and response header for a body of `body_bytes`. ApiVersions always has header v0, whatever its
    version: the client does not know yet what we speak."""
    if api_key != API_VERSIONS and api_version >= FLEXIBLE_FROM.get(api_key, NEVER):
        return _RESPONSE_V1.pack(body_bytes + 5, correlation_id, 0)
    return _RESPONSE_V0.pack(body_bytes + 4, correlation_id)
