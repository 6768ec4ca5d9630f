"""The messages of SASL OAUTHBEARER (RFC 7628), as Kafka reads them. Pure.

A token that is not taken gets a challenge with the reason; the client answers it with one byte, and the login fails.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Final

from stratalog.model.errors import InvalidRequest

LONGEST_MESSAGE: Final = 256 << 10
ACKNOWLEDGEMENT: Final = b"\x01"
"""The client's answer to the reason of a failure."""

_NAME: Final = rb"(?:[^\x00\x80-\xff=,]|=2C|=3D)+"
_PAIR: Final = rb"[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01"
_FIRST: Final = re.compile(rb"n,(?:a=(?P<authorization>" + _NAME + rb"))?,\x01(?P<pairs>(?:" + _PAIR + rb")*)\x01")
_AUTH: Final = re.compile(rb"(?P<scheme>\w+) +(?P<token>[-_.a-zA-Z0-9=+/]+)")


@dataclass(frozen=True, slots=True)
class BearerLogin:
    token: str = field(repr=False)
    authorization_id: str
    """Empty where the client names none."""


def parse_bearer(message: bytes) -> BearerLogin:
    """Raises: InvalidRequest, which quotes nothing of the message."""
    found = _FIRST.fullmatch(message) if len(message) <= LONGEST_MESSAGE else None
    if found is None:
        raise InvalidRequest("Invalid OAUTHBEARER client first message")
    pairs = dict(pair.split(b"=", 1) for pair in found["pairs"].split(b"\x01")[:-1])
    auth = _AUTH.fullmatch(pairs.get(b"auth", b""))
    if auth is None or auth["scheme"].lower() != b"bearer":
        raise InvalidRequest("Invalid OAUTHBEARER client first message: expected a bearer token")
    name = (found["authorization"] or b"").replace(b"=2C", b",").replace(b"=3D", b"=")
    return BearerLogin(auth["token"].decode("ascii"), name.decode("ascii"))


def reason_of_failure(status: str = "invalid_token") -> bytes:
    """The challenge for a token that is not taken."""
    return json.dumps({"status": status}, separators=(",", ":")).encode()
