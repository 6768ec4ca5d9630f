"""Wrong tokens at an HTTP port: their answers wait, and few of one address wait at a time. Pure.

A client whose answer waits may open another connection meanwhile. So while `most_waiting` answers of an address
wait, its further tokens are not compared, whether they are right or not: an address tries some `most_waiting` tokens a
second at most. Bounded: an address is known while an answer of it waits, and as `FailedLogins` says.
"""

from __future__ import annotations

from typing import Final

from stratalog.machines.sasl.failed_logins import FailedLogins
from stratalog.model.addresses import source_of

LONGEST_DELAY_MS: Final = 1_000
"""A process whose token file is old must still hear in time what is wrong."""
MOST_WAITING: Final = 16


class TokenGuesses:
    """Each `begin` is followed by one `end`, once the answer has waited."""

    def __init__(
        self, least_delay_ms: int, *, most_delay_ms: int = LONGEST_DELAY_MS, most_waiting: int = MOST_WAITING
    ) -> None:
        """`least_delay_ms`: `connection.failed.authentication.delay.ms`; 0 turns all of this off."""
        self._failed = FailedLogins(least_delay_ms, most_delay_ms=most_delay_ms)
        self._most_waiting = most_waiting
        self._waiting: dict[str, int] = {}

    def may_guess(self, address: str) -> bool:
        """Whether a token of this address may be compared now."""
        return self._waiting.get(source_of(address), 0) < self._most_waiting

    def begin(self, address: str, now_ms: int) -> int:
        """A token was wrong. Returns how long its answer waits, in milliseconds."""
        source = source_of(address)
        self._waiting[source] = self._waiting.get(source, 0) + 1
        return self._failed.failed(address, now_ms)

    def end(self, address: str) -> None:
        """Its answer has waited."""
        source = source_of(address)
        left = self._waiting[source] - 1
        if left:
            self._waiting[source] = left
        else:
            del self._waiting[source]
