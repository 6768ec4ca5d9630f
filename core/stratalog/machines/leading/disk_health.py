"""Whether a node's disk makes progress: the evidence by which a node keeps or gives up leadership of its shards. A node
whose disk does not work may answer every request that needs no disk. So the evidence is whether the writes, flushes and
reads that it began have succeeded, not whether it answers. The disk is stuck when, for `stall_ms`
* a write or a flush has not returned,
* a read has not returned, and no other that began later has succeeded,
* every write failed, or every flush, or every read, or
* there was no room for new data.
Trouble for a shorter time does not count: a disk that is slow, or full for a moment, changes nothing. One bad file does
not make a bad disk either: while there is doubt, `wants_probe` asks the caller to write a little, flush it and read it
back from the disk. If that succeeds, the disk works. A disk that is otherwise idle is judged by these probes, too.

Hysteresis: a stuck disk is well again once nothing of this was so for `WELL_AGAIN` times `stall_ms`, and a call of each
kind succeeded after the last failure.

Pure: the caller passes the time, from a monotonic clock, and checks at least every `CHECKS_PER_STALL`th of `stall_ms`.
Cost: O(1) for each call and each check.
Source: docs/replication.md section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

CHECKS_PER_STALL: Final = 5
WELL_AGAIN: Final = 3


class DiskCall(StrEnum):
    """What is asked of a disk."""

    WRITE = "write"
    FLUSH = "flush"
    READ = "read"


@dataclass(frozen=True, slots=True)
class CallInProgress:
    """A call that has not returned."""

    kind: DiskCall
    path: str
    since_ms: int


@dataclass(slots=True)
class _Outcomes:
    """Of the calls of one kind."""

    failing_since_ms: int | None = None
    """When the first call failed after the last one that succeeded."""
    reason: str = ""
    succeeded_ms: int = -1


class DiskHealth:
    """Invariant: `trouble` is None exactly while the disk counts as well."""

    __slots__ = ("_full_since_ms", "_ill_ms", "_is_read_slow", "_outcomes", "stall_ms", "trouble")

    def __init__(self, stall_ms: int) -> None:
        self.stall_ms = stall_ms
        self.trouble: str | None = None
        """Why the disk counts as stuck, in words; None while it counts as well."""
        self._outcomes = {kind: _Outcomes() for kind in DiskCall}
        self._full_since_ms: int | None = None
        self._is_read_slow = False
        self._ill_ms = 0
        """When something was wrong last."""

    # What happens ---------------------------------------------------------------------------------------------------
    def succeeded(self, kind: DiskCall, now_ms: int) -> None:
        outcomes = self._outcomes[kind]
        outcomes.failing_since_ms = None
        outcomes.succeeded_ms = now_ms

    def failed(self, kind: DiskCall, reason: str, now_ms: int) -> None:
        """Whatever the reason: no room, an error of the device."""
        outcomes = self._outcomes[kind]
        outcomes.reason = reason
        if outcomes.failing_since_ms is None:
            outcomes.failing_since_ms = now_ms
        self._ill_ms = now_ms

    def check(
        self,
        oldest: CallInProgress | None,
        no_room: str | None,
        now_ms: int,
        oldest_read: CallInProgress | None = None,
    ) -> None:
        """Judge by the time. `oldest`: of the writes and flushes in progress, the one that began first. `oldest_read`:
        of the reads. `no_room`: why there is no room for new data, if so."""
        if no_room is None:
            self._full_since_ms = None
        elif self._full_since_ms is None:
            self._full_since_ms = now_ms
        read = None if oldest_read is None or self._has_read_since(oldest_read.since_ms) else oldest_read
        self._is_read_slow = read is not None and now_ms - read.since_ms >= self.stall_ms // 2
        hung = self._hung(oldest, now_ms) or self._hung(read, now_ms)
        found = hung or self._failing(now_ms) or self._full(no_room, now_ms)
        if found is not None or self._is_in_doubt:
            self._ill_ms = now_ms
        if found is not None:
            self.trouble = found
        elif self.trouble is not None and self._is_well_again(now_ms):
            self.trouble = None

    def _hung(self, oldest: CallInProgress | None, now_ms: int) -> str | None:
        if oldest is None or now_ms - oldest.since_ms < self.stall_ms:
            return None
        return f"a {oldest.kind} of {oldest.path} has not returned for {(now_ms - oldest.since_ms) // 1_000} s"

    def _has_read_since(self, since_ms: int) -> bool:
        return self._outcomes[DiskCall.READ].succeeded_ms > since_ms

    def _failing(self, now_ms: int) -> str | None:
        for kind, one in self._outcomes.items():
            since_ms = one.failing_since_ms
            if since_ms is not None and now_ms - since_ms >= self.stall_ms:
                return f"every {kind} has failed for {(now_ms - since_ms) // 1_000} s: {one.reason}"
        return None

    def _full(self, no_room: str | None, now_ms: int) -> str | None:
        since_ms = self._full_since_ms
        if no_room is None or since_ms is None or now_ms - since_ms < self.stall_ms:
            return None
        return f"there has been no room for new data for {(now_ms - since_ms) // 1_000} s: {no_room}"

    def _is_well_again(self, now_ms: int) -> bool:
        has_succeeded = all(one.succeeded_ms > self._ill_ms for one in self._outcomes.values())
        return has_succeeded and now_ms - self._ill_ms >= WELL_AGAIN * self.stall_ms

    @property
    def _is_in_doubt(self) -> bool:
        is_slow_or_full = self._is_read_slow or self._full_since_ms is not None
        return is_slow_or_full or any(one.failing_since_ms is not None for one in self._outcomes.values())

    # What others ask ------------------------------------------------------------------------------------------------
    @property
    def wants_probe(self) -> bool:
        """Whether a small write, a flush and a read would show how the disk is."""
        return self.trouble is not None or self._is_in_doubt
