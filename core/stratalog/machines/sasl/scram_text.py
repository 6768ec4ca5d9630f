"""The messages of SCRAM (RFC 5802), as far as Kafka's clients send them: read here, by patterns of bounded length.

No message is quoted in an error: a proof together with what is known of the exchange allows guesses of the password.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from dataclasses import dataclass, field
from typing import Final

from stratalog.model.errors import InvalidRequest

LONGEST_MESSAGE: Final = 16_384

_NAME: Final = rb"(?:[^\x00\x80-\xff=,]|=2C|=3D)+"
_VALUE: Final = rb"[^\x00\x80-\xff,]+"
_PRINTABLE: Final = rb"[\x21-\x2b\x2d-\x7e]+"
_BASE64: Final = rb"[a-zA-Z0-9/+]*={0,2}"
_EXTENSIONS: Final = rb"(?:,[A-Za-z]+=" + _VALUE + rb")*"

_CLIENT_FIRST: Final = re.compile(
    rb"(?P<header>n,(?:a=(?P<authorization>" + _NAME + rb"))?,)"
    rb"(?P<bare>(?:m=" + _VALUE + rb",)?n=(?P<name>" + _NAME + rb"),r=(?P<nonce>" + _PRINTABLE + rb")"
    rb"(?P<extensions>" + _EXTENSIONS + rb"))"
)
_CLIENT_FINAL: Final = re.compile(
    rb"(?P<bare>c=(?P<channel>" + _BASE64 + rb"),r=(?P<nonce>" + _PRINTABLE + rb")" + _EXTENSIONS + rb")"
    rb",p=(?P<proof>" + _BASE64 + rb")"
)


@dataclass(frozen=True, slots=True)
class ClientFirst:
    header: bytes
    """The part before `bare`, which the final message repeats."""
    bare: bytes
    name: str
    authorization_id: str
    """Empty where the client names none."""
    nonce: bytes
    extensions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClientFinal:
    bare: bytes
    """All before the proof."""
    channel: bytes
    nonce: bytes
    proof: bytes = field(repr=False)


def parse_client_first(message: bytes) -> ClientFirst:
    """Raises: InvalidRequest."""
    found = _CLIENT_FIRST.fullmatch(message) if len(message) <= LONGEST_MESSAGE else None
    if found is None:
        raise InvalidRequest("this is not the first message of a SCRAM client")
    extensions = [one.partition(b"=") for one in found["extensions"].split(b",")[1:]]
    return ClientFirst(
        found["header"],
        found["bare"],
        _name(found["name"]),
        _name(found["authorization"] or b""),
        found["nonce"],
        {key.decode(): value.decode() for key, _, value in extensions},
    )


def parse_client_final(message: bytes) -> ClientFinal:
    """Raises: InvalidRequest."""
    found = _CLIENT_FINAL.fullmatch(message) if len(message) <= LONGEST_MESSAGE else None
    try:
        if found is not None:
            channel, proof = b64decode(found["channel"], validate=True), b64decode(found["proof"], validate=True)
            return ClientFinal(found["bare"], channel, found["nonce"], proof)
    except binascii.Error:
        pass
    raise InvalidRequest("this is not the final message of a SCRAM client")


def _name(text: bytes) -> str:
    return text.replace(b"=2C", b",").replace(b"=3D", b"=").decode("ascii")
