"""One call to a store: deadline, bounded retries with jitter, counters, errors in the words of the model.

A put has exactly one attempt: if it is not known whether it happened the answer is `OutcomeUnknown`, and the caller
continues under a new name (F46, F49). Reads, lists and deletions are repeated, because a repetition changes nothing.
Runs on the event loop. Cancelling the caller cancels the attempt.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar

from stratalog.machines.backoff import pause_after
from stratalog.model.errors import Corrupt, OutcomeUnknown, StratalogError, Unavailable
from stratalog.objects.settings import StoreSettings
from stratalog.objects.stats import FailureKind, Operation, StoreStats

T = TypeVar("T")

_DAMAGED_ATTEMPTS = 2
"""An object that is said to end early may be a proxy's fault: asked for once more, then believed."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt that failed: the word for the counters, the error for the caller, and whether to try again."""

    kind: FailureKind
    error: StratalogError
    is_retriable: bool


Classify = Callable[[Exception, Operation, str], Failure]


def timed_out(operation: Operation, where: str, waited_s: float) -> Failure:
    """What an attempt that was given up means: nothing for a read, everything for a put (F42)."""
    if operation is Operation.PUT:
        error: StratalogError = OutcomeUnknown(
            f"put {where}: no answer within {waited_s:.1f} s; it may yet appear: write again under a new name"
        )
    else:
        error = Unavailable(f"{operation} {where}: no answer within {waited_s:.1f} s; the store is slow or away")
    return Failure(FailureKind.TIMEOUT, error, is_retriable=True)


class StoreCalls:
    """Makes the calls of one store."""

    def __init__(self, settings: StoreSettings, classify: Classify) -> None:
        self.stats = StoreStats()
        self._settings = settings
        self._classify = classify

    async def run(
        self, operation: Operation, where: str, attempt: Callable[[], Awaitable[T]], *, size_bytes: int = 0
    ) -> T:
        """Await `attempt()` under the settings' limits, again where that is harmless.

        `size_bytes` is what will be moved: it lengthens the deadline and is counted when the attempt succeeds.
        """
        settings = self._settings
        stats = self.stats[operation]
        transfer_s = settings.transfer_s(size_bytes)
        give_up_at = monotonic() + settings.deadline_ms / 1_000 + transfer_s
        attempts = 1 if operation is Operation.PUT else settings.attempts
        number = 0
        while True:
            number += 1
            started = monotonic()
            limit_s = min(settings.attempt_timeout_ms / 1_000 + transfer_s, max(give_up_at - started, 0.001))
            stats.requests += 1
            stats.in_flight += 1
            try:
                async with asyncio.timeout(limit_s):
                    result = await attempt()
            except TimeoutError:
                failure = timed_out(operation, where, limit_s)
            except Exception as error:
                failure = self._classify(error, operation, where)
                failure.error.__cause__ = error
            else:
                stats.bytes += size_bytes
                return result
            finally:
                stats.in_flight -= 1
                stats.latency.observe(int((monotonic() - started) * 1e6))
            try:
                stats.errors[failure.kind] += 1
                if isinstance(failure.error, Corrupt):
                    attempts = min(attempts, _DAMAGED_ATTEMPTS)
                pause_s = self._backoff_s(number)
                if not failure.is_retriable or number >= attempts or monotonic() + pause_s >= give_up_at:
                    raise failure.error
            finally:
                # The error's trace has this frame in it, and with it the body: a circle that only the collector ends.
                del failure
            stats.retries += 1
            await asyncio.sleep(pause_s)

    def _backoff_s(self, number: int) -> float:
        settings = self._settings
        return pause_after(number, settings.backoff_ms, settings.backoff_cap_ms, random.random()) / 1_000
