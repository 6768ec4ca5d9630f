"""Bearer tokens: what a token file holds, and whether a request shows one of them. Pure. A file has one token per line.
Servers accept any of them, clients show the first one, so a token can be replaced while all processes run. No message
here contains a token, or a part of one.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from stratalog.model.errors import InvalidRequest

Token: TypeAlias = Callable[[], str]
"""What a client shows, asked for each request."""

MOST_TOKENS: Final = 4
MAX_FILE_BYTES: Final = 16_384
_SHORTEST: Final = 16
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


def bearer(token: str) -> str:
    """The `Authorization` of who shows it."""
    return f"Bearer {token}"


def shows_token(authorization: Sequence[str], tokens: Iterable[str]) -> bool:
    """Whether the `Authorization` headers of a request are one, with one of these tokens.

    As a bearer token, or as the password of whatever user: that is what a browser asks its user for. All tokens are
    compared, each in a time that does not depend on where it differs.
    """
    shown = _shown(authorization[0]) if len(authorization) == 1 else None
    if shown is None:
        return False
    found = False
    for token in tokens:
        found |= hmac.compare_digest(shown, token.encode())
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
