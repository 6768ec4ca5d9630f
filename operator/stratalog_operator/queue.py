"""Decides which cluster gets the next pass, and when: never two passes of one cluster at once, and later after each
failure.

A key that only objects have named, and that may be no cluster's, waits until no cluster is due, but for 30 s at most,
and one of them at a time gets a pass: objects may name thousands of clusters that do not exist. A key that is woken
several times gets one pass. A key that is woken during its pass gets another one afterwards, because the pass may have
missed the change. A key whose pass failed waits 1 s, 2 s, 4 s … 5 min, minus a random part, so that keys that failed
together do not return together; but a change to its objects is handled within seconds.

Pure: callers pass in times and randomness. Cost: each decision reads all keys; there is one per cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from stratalog.machines.backoff import pause_after

Key: TypeAlias = tuple[str, str]
"""Namespace and name of a StorageCluster, whether it is there or not."""

PAUSE_S: Final = 0.2
"""Least time between two passes of a key, so that a burst of changes causes one pass."""
FAILED_PAUSE_S: Final = 3.0
NAMED_ONLY_S: Final = 30.0
"""A key that may be no cluster's waits at most so long for clusters that are due."""
FIRST_BACKOFF_S: Final = 1.0
LONGEST_BACKOFF_S: Final = 300.0


@dataclass(slots=True)
class _Entry:
    due: float | None = None
    """None: nothing has to be done until it is woken."""
    is_running: bool = False
    is_woken: bool = False
    """While it was running."""
    failures: int = 0
    rests_until: float = float("-inf")
    is_cluster: bool = False
    """A StorageCluster of this name was seen."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    due: float
    is_cluster: bool


def _waits_its_turn(one: _Waiting, now: float) -> bool:
    return not one.is_cluster and now - one.due < NAMED_ONLY_S


class WakeQueue:
    def __init__(self) -> None:
        self._entries: dict[Key, _Entry] = {}

    def wake(self, key: Key, now: float, *, is_named_only: bool = False) -> None:
        """`is_named_only`: an object that names the cluster changed, and not the cluster itself."""
        entry = self._entries.setdefault(key, _Entry())
        entry.is_cluster = entry.is_cluster or not is_named_only
        if entry.is_running:
            entry.is_woken = True
            return
        due = max(now, entry.rests_until)
        entry.due = due if entry.due is None else min(entry.due, due)

    def start_next(self, now: float) -> Key | None:
        """The cluster that has waited longest, if one is due. It is running until `done` or `failed`."""
        due = [(entry, key) for key, entry in self._startable() if entry.due <= now]
        found = min(((_waits_its_turn(entry, now), entry.due, key) for entry, key in due), default=None)
        if found is None:
            return None
        key = found[2]
        entry = self._entries[key]
        entry.due, entry.is_running, entry.is_woken = None, True, False
        return key

    def done(self, key: Key, now: float, again_s: float | None) -> None:
        """`again_s`: when the next pass is due in any case; None: never, unless something wakes it."""
        entry = self._ended(key, now + PAUSE_S)
        entry.failures = 0
        if entry.is_woken:
            entry.due = entry.rests_until
        elif again_s is None:
            del self._entries[key]
        else:
            entry.is_cluster, entry.due = True, now + max(again_s, PAUSE_S)

    def failed(self, key: Key, now: float, chance: float) -> float:
        """`chance` is between 0 and 1. Returns for how long it waits unless something wakes it."""
        entry = self._ended(key, now + FAILED_PAUSE_S)
        entry.failures += 1
        wait = pause_after(entry.failures, FIRST_BACKOFF_S, LONGEST_BACKOFF_S, 1.0 - chance)
        entry.due = min(now + wait, entry.rests_until) if entry.is_woken else now + wait
        return wait

    def _ended(self, key: Key, rests_until: float) -> _Entry:
        entry = self._entries[key]
        assert entry.is_running, f"{key} was not taken"
        entry.is_running, entry.rests_until = False, rests_until
        return entry

    def next_due(self) -> float | None:
        """Of those that may be started."""
        return min((entry.due for _, entry in self._startable()), default=None)

    def _startable(self) -> Iterator[tuple[Key, _Waiting]]:
        is_one_named = any(entry.is_running and not entry.is_cluster for entry in self._entries.values())
        for key, entry in self._entries.items():
            if entry.due is not None and (entry.is_cluster or not is_one_named):
                yield key, _Waiting(entry.due, entry.is_cluster)

    def depth(self, now: float) -> int:
        """Keys that are due and wait for a worker."""
        return sum(entry.due is not None and entry.due <= now for entry in self._entries.values())

    def oldest_wait_s(self, now: float) -> float:
        """For how long the one that waits longest has been due."""
        due = self.next_due()
        return 0.0 if due is None else max(0.0, now - due)

    def failing(self) -> int:
        return sum(bool(entry.failures) for entry in self._entries.values())
