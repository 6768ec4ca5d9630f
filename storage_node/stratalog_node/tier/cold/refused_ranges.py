"""Remembers which ranges of the object store were refused: their bytes are not those that the metadata mean, or their
object is in an archive class and must be restored first.

A consumer repeats a read that failed about once a second, for as long as it runs. So a refusal is repeated to readers
without a request to the store, for a pause that doubles up to a bound while the range stays wrong. Once the metadata
mean something else by the range, the next read asks at once. Each request that ends in a refusal logs one line.
Lives on the event loop. Memory: bounded by the number of ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from stratalog.machines.backoff import longest_pause
from stratalog.model.errors import Archived, Corrupt
from stratalog.model.ids import SegmentKey
from stratalog.telemetry.logs import logger

log = logger(__name__)

_FIRST_MS: Final = 1_000
"""The bytes may have been damaged on their way."""
_LONGEST_MS: Final = 60_000
"""So long, at most, may a reader wait for an object that a person has put right, or that was restored."""
_KEPT_MS: Final = 2 * _LONGEST_MS
"""For so long after its pause a refusal is remembered, if no read asks for the range."""
_MOST: Final = 1_000


@dataclass(slots=True)
class _Refusal:
    segment: SegmentKey
    meant: object
    error: Corrupt | Archived
    failures: int
    until_ms: int

    def again(self) -> Corrupt | Archived:
        """A new one for each reader: an error that is raised again keeps the frames of all that it went through."""
        error = self.error
        if isinstance(error, Archived):
            return Archived(str(error), error.storage_class, error.is_restoring)
        return Corrupt(error.reason, source=error.source, position=error.position)


class RefusedRanges:
    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._refusals: dict[Hashable, _Refusal] = {}

    def check(self, name: Hashable, meant: object) -> None:
        """Before the store is asked for a range. `meant`: what the metadata say of it. Raises: Corrupt or
        Archived if it was refused a moment ago."""
        found = self._refusals.get(name)
        if found is None:
            return
        if found.meant != meant:
            del self._refusals[name]
        elif self._now_ms() < found.until_ms:
            raise found.again()

    def refused(self, name: Hashable, meant: object, segment: SegmentKey, error: Corrupt | Archived) -> None:
        before = self._refusals.pop(name, None)
        failures = 1 if before is None else before.failures + 1
        pause_ms = int(longest_pause(failures, _FIRST_MS, _LONGEST_MS))
        until_ms = self._now_ms() + pause_ms
        refusal = _Refusal(segment, meant, error, failures, until_ms)
        # Without the frames and the bytes that the error refers to.
        refusal.error = refusal.again()
        self._refusals[name] = refusal
        if len(self._refusals) > _MOST:
            del self._refusals[next(iter(self._refusals))]
        about = {"segment": str(segment), "error": str(error), "retry_s": pause_ms // 1_000}
        if isinstance(error, Archived):
            log.warning("the object store has the data in an archive class; readers wait for its restore", **about)
        else:
            log.error("the object store has other bytes than metadata say; readers get an error", **about)

    def accepted(self, name: Hashable) -> None:
        if self._refusals:
            self._refusals.pop(name, None)

    def by_segment(self) -> dict[SegmentKey, str]:
        """The segments with ranges whose bytes were wrong, and one reason of each."""
        return {
            one.segment: f"{error.source}: at byte {error.position}: {error.reason}"
            for one, error in self._kept()
            if isinstance(error, Corrupt)
        }

    def archived_by_segment(self) -> dict[SegmentKey, str]:
        """The segments with ranges in an archive class, and what the store said of one of each."""
        return {one.segment: str(error) for one, error in self._kept() if isinstance(error, Archived)}

    def _kept(self) -> list[tuple[_Refusal, Corrupt | Archived]]:
        horizon_ms = self._now_ms() - _KEPT_MS
        for name in [name for name, one in self._refusals.items() if one.until_ms < horizon_ms]:
            del self._refusals[name]
        return [(one, one.error) for one in self._refusals.values()]
