"""The one message of SASL PLAIN (RFC 4616), as Kafka reads it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from stratalog.model.errors import InvalidRequest

LONGEST_MESSAGE: Final = 512 << 10
"""The default of `sasl.server.max.receive.size`, which a connection that logs in again is not held to."""
_MOST_PARTS: Final = 16
"""A message of nothing but separators would become a list of many times its size."""


@dataclass(frozen=True, slots=True)
class PlainLogin:
    name: str
    password: str = field(repr=False)


def parse_plain(message: bytes) -> PlainLogin:
    """`authorization id NUL name NUL password`; the first may be empty.

    Raises: InvalidRequest in Kafka's words, which clients show. It quotes nothing of the message.
    """
    if len(message) > LONGEST_MESSAGE:
        raise InvalidRequest(f"Invalid SASL/PLAIN response: more than {LONGEST_MESSAGE} bytes")
    parts = message.decode("utf-8", "replace").split("\0", _MOST_PARTS)
    if len(parts) != 3:
        raise InvalidRequest(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
    authorization_id, name, password = parts
    if not name:
        raise InvalidRequest("Authentication failed: username not specified")
    if not password:
        raise InvalidRequest("Authentication failed: password not specified")
    if authorization_id not in ("", name):
        raise InvalidRequest(
            "Authentication failed: Client requested an authorization id that is different from username"
        )
    return PlainLogin(name, password)
