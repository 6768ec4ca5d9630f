"""How patient a store's client is. The relations between the limits are asserted here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Deadlines and retries of one store."""

    attempt_timeout_ms: int = 10_000
    """One attempt, beside what its bytes may take."""
    deadline_ms: int = 30_000
    """One call with all its attempts, beside what its bytes may take."""
    min_bytes_per_s: int = 1 << 20
    """The slowest transfer that is still waited for: n bytes add n / this to both limits."""
    attempts: int = 4
    """Of reads, lists and deletions. A put has one attempt, always."""
    backoff_ms: int = 50
    """Before the second attempt; doubles, with full jitter."""
    backoff_cap_ms: int = 2_000
    threads: int = 4
    """Threads of a directory store: this many for reads, and as many for everything else. Other stores have their
    own."""

    def __post_init__(self) -> None:
        assert self.attempts >= 1, "attempts: a call needs at least one"
        assert self.attempt_timeout_ms <= self.deadline_ms, "attempt_timeout_ms: one attempt must fit the deadline"
        assert 0 < self.backoff_ms <= self.backoff_cap_ms, "backoff_ms: must be between 1 and backoff_cap_ms"
        assert self.min_bytes_per_s > 0 and self.threads > 0, "min_bytes_per_s, threads: must be positive"

    def transfer_s(self, size_bytes: int) -> float:
        return size_bytes / self.min_bytes_per_s
