"""The server's side of SCRAM (RFC 5802, RFC 7677), without channel binding, as Kafka speaks it. Pure: nonces and the
secret of stand-ins are arguments.

An exchange with an unknown user continues as one with a wrong password does: with a salt that is the same each time,
with the same work, and with the same end. So neither an answer nor its time shows who exists.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode
from typing import Final

from stratalog.machines.sasl.scram_text import ClientFirst, parse_client_final
from stratalog.model.errors import InvalidRequest
from stratalog.model.scram import LEAST_ITERATIONS, MOST_ITERATIONS, ScramCredential, ScramMechanism

DELEGATION_TOKEN: Final = "tokenauth"
"""The extension of clients that log in by a delegation token, which this cluster does not issue."""
_SALT_BITS: Final = 130
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


class WrongCredentials(InvalidRequest):
    """The client has not proven to be the user that it names. Says no more than that."""


class ScramExchange:
    """One login, from the client's first message on. Its final message is taken once."""

    __slots__ = ("_client_first", "_credential", "_is_over", "_is_user", "_mechanism", "_nonce", "challenge")

    def __init__(
        self,
        mechanism: ScramMechanism,
        client_first: ClientFirst,
        credential: ScramCredential | None,
        stand_in: ScramCredential,
        server_nonce: bytes,
    ) -> None:
        """`credential` is that of the named user, None if there is none; `stand_in` comes from `stand_in_credential`.

        `challenge` is the answer to the first message.
        """
        names_other = client_first.authorization_id not in ("", client_first.name)
        by_token = client_first.extensions.get(DELEGATION_TOKEN, "").lower() == "true"
        self._is_user = credential is not None and not names_other and not by_token
        used = credential if credential is not None else stand_in
        self._mechanism = mechanism
        self._client_first = client_first
        self._credential = used
        self._nonce = client_first.nonce + server_nonce
        self._is_over = False
        self.challenge = b"r=%b,s=%b,i=%d" % (self._nonce, b64encode(used.salt), used.iterations)

    @property
    def name(self) -> str:
        """Of the user that the client claims to be."""
        return self._client_first.name

    def finish(self, message: bytes) -> bytes:
        """The answer to the final message; the user is proven with it.

        Raises: WrongCredentials, also for a user that does not exist; InvalidRequest for another message.
        """
        if self._is_over:
            raise InvalidRequest("this login is over")
        self._is_over = True
        final = parse_client_final(message)
        if final.nonce != self._nonce or final.channel != self._client_first.header:
            raise InvalidRequest("this final message belongs to another login")
        mechanism, credential = self._mechanism, self._credential
        signed = b",".join((self._client_first.bare, self.challenge, final.bare))
        client_signature = _hmac(mechanism, credential.stored_key, signed)
        client_key = _xor(client_signature, final.proof.ljust(mechanism.key_bytes, b"\0"))
        stored_key = hashlib.new(mechanism.hash_name, client_key).digest()
        is_proven = hmac.compare_digest(stored_key, credential.stored_key)
        server_signature = _hmac(mechanism, credential.server_key, signed)
        if not (is_proven and self._is_user and len(final.proof) == mechanism.key_bytes):
            raise WrongCredentials("the user does not exist, or the password is another one")
        return b"v=" + b64encode(server_signature)


def credential_from(mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """What is kept of a salted password, which is what clients send to set one.

    Raises: InvalidRequest for iterations outside 4,096 to 16,384, an empty salt, or a password of another length.
    """
    if not LEAST_ITERATIONS <= iterations <= MOST_ITERATIONS:
        raise InvalidRequest(f"expected {LEAST_ITERATIONS} to {MOST_ITERATIONS} iterations, not {iterations}")
    if not salt:
        raise InvalidRequest("expected a salt")
    if len(salted_password) != mechanism.key_bytes:
        raise InvalidRequest(f"expected a salted password of {mechanism.key_bytes} bytes, not {len(salted_password)}")
    client_key = _hmac(mechanism, salted_password, b"Client Key")
    stored_key = hashlib.new(mechanism.hash_name, client_key).digest()
    return ScramCredential(salt, stored_key, _hmac(mechanism, salted_password, b"Server Key"), iterations)


def salted(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Cost: some milliseconds of CPU, without the interpreter's lock: call it in a thread."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def is_password(mechanism: ScramMechanism, credential: ScramCredential, password: str) -> bool:
    """Whether it is the password of a credential. Cost: as `salted`."""
    shown = salted(mechanism, password, credential.salt, credential.iterations)
    client_key = _hmac(mechanism, shown, b"Client Key")
    stored_key = hashlib.new(mechanism.hash_name, client_key).digest()
    return hmac.compare_digest(stored_key, credential.stored_key)


def stand_in_credential(mechanism: ScramMechanism, name: str, secret: bytes, iterations: int) -> ScramCredential:
    """For a name that no user has: it looks like a user's, is the same each time, and fits no password.

    `secret` is the cluster's own: without it a salt cannot be told from a user's.
    """
    about = f"{mechanism.mechanism_name}\0{name}".encode()
    seed = hmac.digest(secret, about, "sha512")
    salt = _text_of(int.from_bytes(seed, "big") >> (len(seed) * 8 - _SALT_BITS))
    stored_key = hmac.digest(secret, b"stored" + about, mechanism.hash_name)
    return ScramCredential(salt, stored_key, hmac.digest(secret, b"server" + about, mechanism.hash_name), iterations)


def salt_from(random_bytes: bytes) -> bytes:
    """A new user's salt, in the form of Kafka's tools, from at least 17 random bytes."""
    return _text_of(int.from_bytes(random_bytes, "big") >> (len(random_bytes) * 8 - _SALT_BITS))


def _text_of(number: int) -> bytes:
    digits = ""
    while number:
        number, digit = divmod(number, len(_DIGITS))
        digits = _DIGITS[digit] + digits
    return digits.encode() or b"0"


def _hmac(mechanism: ScramMechanism, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, mechanism.hash_name)


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(one ^ other for one, other in zip(left, right, strict=False))
