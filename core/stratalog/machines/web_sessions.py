"""Sessions of people who logged in to the pages with a token: how long each lasts, and how many there are. Pure.

A session remembers the hash of the token that it began with, never the token, and is known by the hash of its secret:
the memory of the process does not let a reader continue it. Whether the token still opens anything, and with which
role, is asked at each request; so a token that is removed ends its sessions.

A session ends when it was not used for `idle_ms`, `longest_ms` after it began, at a logout, at the end of the process,
or when there are more than `most`, and of those of the token that has the most it was used longest ago: a holder of one
token cannot end the sessions of others.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import Final

IDLE_MS: Final = 30 * 60_000
LONGEST_MS: Final = 12 * 3_600_000
MOST_SESSIONS: Final = 1_000
LONGEST_SECRET: Final = 128


@dataclass(slots=True)
class _Session:
    token_digest: bytes
    begun_ms: int
    used_ms: int


class WebSessions:
    """Invariant: at most `most` sessions, the one used longest ago first."""

    def __init__(self, *, idle_ms: int = IDLE_MS, longest_ms: int = LONGEST_MS, most: int = MOST_SESSIONS) -> None:
        self._idle_ms = idle_ms
        self._longest_ms = longest_ms
        self._most = most
        self._sessions: dict[bytes, _Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, secret: str, token_digest: bytes, now_ms: int) -> None:
        """`secret` is random, and known to the person's browser alone."""
        self._sessions[_key_of(secret)] = _Session(token_digest, now_ms, now_ms)
        if len(self._sessions) > self._most:
            counts = Counter(session.token_digest for session in self._sessions.values())
            most = max(counts.values())
            last = next(key for key, session in self._sessions.items() if counts[session.token_digest] == most)
            del self._sessions[last]

    def token_of(self, secret: str, now_ms: int) -> bytes | None:
        """The hash of the token that it began with; it counts as used. None: there is no such session any more."""
        if len(secret) > LONGEST_SECRET:
            return None
        key = _key_of(secret)
        session = self._sessions.pop(key, None)
        if session is None:
            return None
        if now_ms - session.used_ms >= self._idle_ms or now_ms - session.begun_ms >= self._longest_ms:
            return None
        session.used_ms = now_ms
        self._sessions[key] = session
        return session.token_digest

    def end(self, secret: str) -> None:
        self._sessions.pop(_key_of(secret), None)


def _key_of(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()
