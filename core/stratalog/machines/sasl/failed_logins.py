"""How long the answer to a failed login waits: longer with each failure from the same address. Pure.

So passwords cannot be guessed quickly, neither on one connection nor on many. A success does not reset the delay,
because an attacker may have an account of its own. Bounded: the addresses that failed longest ago are forgotten.
"""

from __future__ import annotations

from typing import Final

from stratalog.model.addresses import source_of

FORGOTTEN_AFTER_MS: Final = 60_000
MOST_DELAY_MS: Final = 10_000
MOST_ADDRESSES: Final = 10_000
_FREE: Final = 3
"""Failures of an address that get the shortest delay: people mistype."""


class FailedLogins:
    def __init__(self, least_delay_ms: int, *, most_delay_ms: int = MOST_DELAY_MS) -> None:
        """`least_delay_ms`: `connection.failed.authentication.delay.ms`; 0 turns delays off."""
        self._least_ms = least_delay_ms
        self._most_ms = most_delay_ms
        self._failures: dict[str, tuple[int, int]] = {}
        """Source (`source_of`) -> how often, and when last; the last one to fail at the end."""

    def failed(self, address: str, now_ms: int) -> int:
        """One more failure. Returns how long its answer waits, in milliseconds."""
        source = source_of(address)
        times, last_ms = self._failures.pop(source, (0, now_ms))
        if now_ms - last_ms > FORGOTTEN_AFTER_MS:
            times = 0
        self._failures[source] = times + 1, now_ms
        if len(self._failures) > MOST_ADDRESSES:
            del self._failures[next(iter(self._failures))]
        return min(self._least_ms << min(max(0, times + 1 - _FREE), 20), max(self._most_ms, self._least_ms))
