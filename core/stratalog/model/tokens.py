"""Bearer tokens: what a token file holds, and whether a request shows one of them. Pure. A file has one token per line.
Servers accept any of them, clients show the first one, so a token can be replaced while all processes run.

A file of named tokens has `ROLE NAME TOKEN` a line; in place of the token may be its hash, `sha256:HEX`, so that the
file opens nothing by itself. No message here contains a token, or a part of one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from stratalog.model.errors import InvalidRequest
from stratalog.model.roles import OF_CLUSTER, ROLE_NAMES, Role, role_name

Token: TypeAlias = Callable[[], str]
"""What a client shows, asked for each request."""

MOST_TOKENS: Final = 4
MAX_FILE_BYTES: Final = 16_384
MOST_NAMED: Final = 100
_SHORTEST: Final = 16
_NAME: Final = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_HASH: Final = re.compile(r"sha256:[0-9a-fA-F]{64}")
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]{16,2048}")
"""Characters that a header may have (RFC 6750), and long enough that it cannot be guessed."""


def parse_tokens(text: str, place: str) -> tuple[str, ...]:
    """A token a line; empty lines count for nothing. Raises: InvalidRequest naming the place and the line, never the
    token."""
    tokens: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        token = line.strip()
        if not token:
            continue
        if _TOKEN.fullmatch(token) is None:
            raise InvalidRequest(
                f"token file {place}, line {number}: expected {_SHORTEST} to 2048 letters, digits or any of "
                "-._~+/=, such as `openssl rand -hex 32` makes"
            )
        tokens.append(token)
    if not tokens:
        raise InvalidRequest(f"token file {place} holds no token: write one as its only line")
    if len(tokens) > MOST_TOKENS:
        raise InvalidRequest(f"token file {place} holds {len(tokens)} tokens: {MOST_TOKENS} are the most")
    return tuple(tokens)


@dataclass(frozen=True, slots=True)
class NamedToken:
    """A token of a person or a program; only its hash is kept. A name may have several tokens of its role."""

    name: str
    role: Role
    digest: bytes


def parse_named_tokens(text: str, place: str) -> tuple[NamedToken, ...]:
    """`ROLE NAME TOKEN` a line; empty lines and those that begin with `#` count for nothing. Raises: InvalidRequest
    naming the place and the line, never the token."""
    tokens: list[NamedToken] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"token file {place}, line {number}"
        if len(words) != 3:
            raise InvalidRequest(f"{where}: expected ROLE NAME TOKEN, such as `viewer grafana TOKEN`")
        role, name, token = words
        if role not in ROLE_NAMES:
            raise InvalidRequest(f"{where}: the first word must be a role: {', '.join(ROLE_NAMES)}")
        if _NAME.fullmatch(name) is None or name == OF_CLUSTER:
            raise InvalidRequest(
                f"{where}: the second word must be a name of up to 64 letters, digits or any of ._@-, and not "
                f"{OF_CLUSTER!r}, which stands for auth.token.file"
            )
        tokens.append(NamedToken(name, ROLE_NAMES[role], _digest_of(token, where)))
    if len(tokens) > MOST_NAMED:
        raise InvalidRequest(f"token file {place} holds {len(tokens)} tokens: {MOST_NAMED} are the most")
    names = {(token.name, token.role) for token in tokens}
    if len({token.digest for token in tokens}) < len(tokens) or len({name for name, _ in names}) < len(names):
        raise InvalidRequest(f"token file {place}: a name has two roles, or a token twice: give each name one role")
    return tuple(tokens)


def hashed_line(token: NamedToken) -> str:
    """The line of a named token that opens nothing: a reader of the file cannot show the token elsewhere."""
    return f"{role_name(token.role)} {token.name} sha256:{token.digest.hex()}"


def require_others(named: Iterable[NamedToken], tokens: Iterable[str], place: str) -> None:
    """Raises: InvalidRequest if a named token is one of `tokens`, those of the cluster: a role limits nothing then."""
    known = tuple(named)
    for token in tokens:
        same = find_named(digest_of(token.encode()), known)
        if same is not None:
            raise InvalidRequest(
                f"token file {place}: the token of {same.name} is the one of auth.token.file, which may do everything: "
                "give it a token of its own"
            )


def _digest_of(token: str, where: str) -> bytes:
    if _HASH.fullmatch(token) is not None:
        digest = bytes.fromhex(token.removeprefix("sha256:"))
        if digest == digest_of(b""):
            raise InvalidRequest(f"{where}: this is the hash of nothing: was the token empty when it was made?")
        return digest
    if token.startswith("sha256:") or _TOKEN.fullmatch(token) is None:
        raise InvalidRequest(
            f"{where}: the third word must be a token of {_SHORTEST} to 2048 letters, digits or any of -._~+/=, such "
            "as `openssl rand -hex 32` makes, or sha256: and 64 hex digits"
        )
    return digest_of(token.encode())


def digest_of(token: bytes) -> bytes:
    """What of a token is kept. Tokens cannot be guessed, so one round suffices."""
    return hashlib.sha256(token).digest()


def bearer(token: str) -> str:
    """The `Authorization` of who shows it."""
    return f"Bearer {token}"


def shows_token(authorization: Sequence[str], tokens: Iterable[str]) -> bool:
    """Whether the `Authorization` headers of a request are one, with one of these tokens: as a bearer token, or as the
    password of whatever user, which is what `curl -u` and browsers send.
    """
    shown = shown_token(authorization)
    return shown is not None and is_one_of(digest_of(shown), tokens)


def shown_token(authorization: Sequence[str]) -> bytes | None:
    """The token that the `Authorization` headers of a request show. None: they show none, or two."""
    return _shown(authorization[0]) if len(authorization) == 1 else None


def may_be_token(shown: bytes) -> bool:
    """Whether it is as long as a token. A hash in a file says nothing about the length of its token."""
    return len(shown) >= _SHORTEST


def is_one_of(digest: bytes, tokens: Iterable[str]) -> bool:
    """Whether it is the hash of one of them. All are compared, each in a time that does not depend on where it
    differs."""
    found = False
    for token in tokens:
        found |= hmac.compare_digest(digest, digest_of(token.encode()))
    return found


def find_named(digest: bytes, tokens: Iterable[NamedToken]) -> NamedToken | None:
    """Whose token it is the hash of. All are compared, each in a time that does not depend on where it differs."""
    found = None
    for token in tokens:
        if hmac.compare_digest(digest, token.digest):
            found = token
    return found


def _shown(header: str) -> bytes | None:
    scheme, _, rest = header.partition(" ")
    token = rest.strip().encode("utf-8", "replace")
    match scheme.lower():
        case "bearer":
            return token
        case "basic":
            try:
                _, colon, password = base64.b64decode(token, validate=True).partition(b":")
            except binascii.Error:
                return None
            return password if colon else None
        case _:
            return None
