"""Limits requests to a service in trouble: a window that shrinks with each refusal, and a pause with jitter.

A node has one gate for the object store and one for the meta service (`UploadGates`). While the store is away, ten
thousand waiting shards cost one attempt per pause, not ten thousand (F45, F51, F80). Directories of retired nodes have
gates of their own (`upload_directories`). Plain data.
Invariant: 1 <= window <= max_requests.
"""

from __future__ import annotations

from typing import assert_never

from stratalog.machines.backoff import pause_after
from stratalog.machines.tiering.upload_events import ReportStore, TaskFailed, TaskFailure, UploadLimits


class ServiceGate:
    """Counts failures in a row; says how many requests may run, and when the next may begin."""

    __slots__ = ("_backoff_ms", "_cap_ms", "_max", "away_since_ms", "failures", "open_at_ms", "window")

    def __init__(self, max_requests: int, backoff_ms: int, backoff_cap_ms: int) -> None:
        self._max = max_requests
        self._backoff_ms = backoff_ms
        self._cap_ms = backoff_cap_ms
        self.window = max_requests
        self.failures = 0
        self.open_at_ms = 0
        self.away_since_ms: int | None = None

    def may_begin(self, running: int, now_ms: int) -> bool:
        return running < self.window and now_ms >= self.open_at_ms

    def answered(self) -> int | None:
        """A request went well. Returns since when the service was held to be away, if it was."""
        away_since, self.away_since_ms = self.away_since_ms, None
        self.failures = 0
        self.open_at_ms = 0
        self.window = min(self._max, self.window + 1)
        return away_since

    def refused(self, now_ms: int, jitter: float) -> bool:
        """The service said no. Returns whether it is held to be away from now on.

        Of requests that run together only the first "no" counts: they all met the same trouble.
        """
        if now_ms < self.open_at_ms:
            return False
        self.failures += 1
        self.window = max(1, self.window // 2)
        self.open_at_ms = now_ms + int(pause_after(self.failures, self._backoff_ms, self._cap_ms, jitter))
        return self._is_newly_away(now_ms)

    def doubted(self, now_ms: int, jitter: float, tolerated: int) -> bool:
        """A request's outcome is unknown: no pause, until `tolerated` of them came in a row."""
        if self.failures + 1 >= tolerated:
            return self.refused(now_ms, jitter)
        self.failures += 1
        return False

    def _is_newly_away(self, now_ms: int) -> bool:
        if self.away_since_ms is None:
            self.away_since_ms = now_ms
            return True
        return False


_STORE, _META = "object store", "meta service"


class UploadGates:
    """The two gates of a node's uploader; reports when a service is away, and when it is back."""

    def __init__(self, limits: UploadLimits) -> None:
        self._doubts = limits.doubts_before_backoff
        self.store, self.meta = (
            ServiceGate(limits.max_requests, limits.backoff_ms, limits.backoff_cap_ms) for _ in range(2)
        )

    def may_begin(self, running: int, now_ms: int) -> bool:
        """Whether a further task may begin while `running` tasks run."""
        return self.store.may_begin(running, now_ms) and self.meta.may_begin(running, now_ms)

    @property
    def open_at_ms(self) -> int:
        return max(self.store.open_at_ms, self.meta.open_at_ms)

    def stored(self, now_ms: int) -> list[ReportStore]:
        """An upload was stored and committed: both services answered."""
        return [
            *_back(_STORE, self.store.answered(), now_ms),
            *_back(_META, self.meta.answered(), now_ms),
        ]

    def failed(self, failed: TaskFailed, now_ms: int) -> list[ReportStore]:
        match failed.failure:
            case TaskFailure.DOUBTFUL:
                is_news, service = self.store.doubted(now_ms, failed.jitter, self._doubts), _STORE
            case TaskFailure.REFUSED:
                is_news, service = self.store.refused(now_ms, failed.jitter), _STORE
            case TaskFailure.META_AWAY:
                is_news, service = self.meta.refused(now_ms, failed.jitter), _META
            case TaskFailure.LOCK_LOST | TaskFailure.CANCELLED | TaskFailure.DIRECTORY_AWAY | TaskFailure.FAULT:
                # `LockLost` reports a lost lock. This answer may be about an epoch that ended long ago.
                return []
            case _:
                assert_never(failed.failure)
        return [ReportStore(service, is_away=True, reason=failed.reason, away_ms=0)] if is_news else []


def _back(service: str, away_since_ms: int | None, now_ms: int) -> list[ReportStore]:
    if away_since_ms is None:
        return []
    return [ReportStore(service, is_away=False, reason="", away_ms=now_ms - away_since_ms)]
