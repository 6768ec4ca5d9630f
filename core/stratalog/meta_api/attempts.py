"""When a request to the meta service may be sent again, and how long to wait before.

What surely was not done (no connection, `Unavailable`) may be sent again whatever it is. What may have been done is
sent again only when doing it twice does no harm. At the end the caller learns the worst that may be true:
`OutcomeUnknown` once any attempt of a change may have been done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from stratalog.machines.backoff import longest_pause
from stratalog.model.errors import OutcomeUnknown, StratalogError, Unauthorized, Unavailable

UNAUTHORIZED_ATTEMPTS: Final = 4
"""While a token is being replaced, one instance may know it before another: each instance is tried, for a short
time."""


class Repeat(Enum):
    """What a second sending of a request does."""

    READ = auto()
    """Nothing: it changes nothing."""
    IDEMPOTENT = auto()
    """The service sees that it was done, or doing it again comes to the same."""
    NEVER = auto()
    """It could be refused for what the first did, or undo what another did meanwhile."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long a client tries. The times are in seconds."""

    attempts: int = 5
    attempt_s: float = 10.0
    connect_s: float = 2.0
    first_pause_s: float = 0.05
    longest_pause_s: float = 2.0
    silence_s: float = 7.0
    """A watch that is silent for this long is dead (the service sends a line every 2 s)."""
    watch_gap_s: float = 60.0
    """So long a watch tries to connect again before it gives up."""

    def pause_s(self, attempt: int, random: Callable[[], float]) -> float:
        """Full jitter: many clients that lost one service must not come back in step."""
        return random() * longest_pause(attempt + 1, self.first_pause_s, self.longest_pause_s)


def policy_for(instances: int) -> RetryPolicy:
    """With several instances it is worth to wait until another one leads: that takes a lease and an election."""
    return RetryPolicy() if instances == 1 else RetryPolicy(attempts=18, attempt_s=5.0)


class AttemptLog:
    """What the attempts of one request came to."""

    def __init__(self, repeat: Repeat, attempts: int) -> None:
        self._repeat = repeat
        self._left = attempts
        self._may_be_done = False

    def failed(self, error: StratalogError) -> StratalogError | None:
        """Note an attempt that failed; returns what to raise, or None to try again.

        `Unavailable` says that it was surely not done, `OutcomeUnknown` that it may have been.
        """
        if isinstance(error, OutcomeUnknown) and self._repeat is not Repeat.READ:
            self._may_be_done = True
        elif not isinstance(error, Unavailable | OutcomeUnknown):
            return error
        if isinstance(error, Unauthorized):
            self._left = min(self._left, UNAUTHORIZED_ATTEMPTS)
        self._left -= 1
        if self._left > 0 and not (self._may_be_done and self._repeat is Repeat.NEVER):
            return None
        if self._may_be_done:
            return error if isinstance(error, OutcomeUnknown) else OutcomeUnknown(str(error))
        return error if isinstance(error, Unavailable) else Unavailable(str(error))
