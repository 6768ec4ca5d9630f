"""The client's side of SCRAM (RFC 5802, RFC 7677), without channel binding, as Kafka's clients speak it. Pure: the
nonce is an argument.

The server proves as well that it knows the password: one that merely listens cannot claim that a login succeeded.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from typing import Final

from stratalog.machines.sasl.scram import salted
from stratalog.model.errors import InvalidRequest
from stratalog.model.scram import LEAST_ITERATIONS, ScramMechanism

MOST_ITERATIONS: Final = 1_000_000
"""More would keep this process busy for seconds, at the word of a server that has proven nothing yet."""
_HEADER: Final = b"n,,"
_CHALLENGE: Final = re.compile(rb"r=([\x21-\x2b\x2d-\x7e]+),s=([a-zA-Z0-9/+]+={0,2}),i=([0-9]{1,9})(?:,.*)?")


class NotTheServer(InvalidRequest):
    """The other side has not proven that it knows the user. Nothing more is sent to it."""


class ScramClient:
    """One login: `first`, then `answer` to the server's challenge, then `check` of its last message."""

    __slots__ = ("_bare", "_mechanism", "_nonce", "_password", "_server_signature", "first")

    def __init__(self, mechanism: ScramMechanism, name: str, password: str, nonce: bytes) -> None:
        """`nonce`: at least 16 random bytes in printable characters other than the comma."""
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._bare = b"n=%b,r=%b" % (name.replace("=", "=3D").replace(",", "=2C").encode(), nonce)
        self._server_signature = b""
        self.first = _HEADER + self._bare

    def answer(self, challenge: bytes) -> bytes:
        """Cost: some milliseconds of CPU. Raises: NotTheServer for a challenge of another login, or an unsafe one."""
        found = _CHALLENGE.fullmatch(challenge)
        if found is None or not found[1].startswith(self._nonce) or len(found[1]) == len(self._nonce):
            raise NotTheServer("the server's challenge does not belong to this login")
        iterations = int(found[3])
        if not LEAST_ITERATIONS <= iterations <= MOST_ITERATIONS:
            raise NotTheServer(
                f"the server asks for {iterations} iterations: from {LEAST_ITERATIONS} to {MOST_ITERATIONS} are safe"
            )
        key = salted(self._mechanism, self._password, _decoded(found[2]), iterations)
        bare = b"c=%b,r=%b" % (b64encode(_HEADER), found[1])
        signed = b",".join((self._bare, challenge, bare))
        client_key = self._hmac(key, b"Client Key")
        signature = self._hmac(hashlib.new(self._mechanism.hash_name, client_key).digest(), signed)
        self._server_signature = self._hmac(self._hmac(key, b"Server Key"), signed)
        proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        return b"%b,p=%b" % (bare, b64encode(proof))

    def check(self, final: bytes) -> None:
        """Raises: NotTheServer unless the server has proven that it knows the password's key."""
        if not self._server_signature:
            raise NotTheServer("the server ended the login before it asked for a proof")
        if not final.startswith(b"v=") or not hmac.compare_digest(
            _decoded(final[2:].partition(b",")[0]), self._server_signature
        ):
            raise NotTheServer("the server has not proven that it knows this user")

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._mechanism.hash_name)


def _decoded(text: bytes) -> bytes:
    try:
        return b64decode(text, validate=True)
    except binascii.Error:
        raise NotTheServer("a message of the server is not as SCRAM has it") from None
