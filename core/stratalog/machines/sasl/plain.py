"""The one message of SASL PLAIN (RFC 4616), as Kafka reads it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from stratalog.model.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class PlainLogin:
    name: str
    password: str = field(repr=False)


def parse_plain(message: bytes) -> PlainLogin:
    """`authorization id NUL name NUL password`; the first may be empty.

    Raises: InvalidRequest in Kafka's words, which clients show. It quotes nothing of the message.
    """
    parts = message.decode("utf-8", "replace").split("\0")
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
