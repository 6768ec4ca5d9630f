"""How hard an uploader may ask those whom it needs, the object store and the meta service; and when it says that one of
them is away, or back.

Plain data in, plain data out; a part of `machines.tiering.uploader`. One gate each for the whole node (`service_gate`);
those of retired nodes' directories are apart (`upload_directories`).
"""

from __future__ import annotations

from typing import assert_never

from stratalog.machines.tiering.service_gate import ServiceGate
from stratalog.machines.tiering.upload_events import ReportStore, TaskFailed, TaskFailure, UploadLimits

_STORE, _META = "object store", "meta service"


class UploadGates:
    def __init__(self, limits: UploadLimits) -> None:
        self._doubts = limits.doubts_before_backoff
        self.store, self.meta = (
            ServiceGate(limits.max_requests, limits.backoff_ms, limits.backoff_cap_ms) for _ in range(2)
        )

    def may_begin(self, running: int, now_ms: int) -> bool:
        """Anything at all, with so many tasks running."""
        return self.store.may_begin(running, now_ms) and self.meta.may_begin(running, now_ms)

    @property
    def open_at_ms(self) -> int:
        return max(self.store.open_at_ms, self.meta.open_at_ms)

    def stored(self, now_ms: int) -> list[ReportStore]:
        """Something went to the store, and the meta service said so."""
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
                # Of the lock `LockLost` tells: this answer may be about an epoch that is long over.
                return []
            case _:
                assert_never(failed.failure)
        return [ReportStore(service, is_away=True, reason=failed.reason, away_ms=0)] if is_news else []


def _back(service: str, away_since_ms: int | None, now_ms: int) -> list[ReportStore]:
    if away_since_ms is None:
        return []
    return [ReportStore(service, is_away=False, reason="", away_ms=now_ms - away_since_ms)]
