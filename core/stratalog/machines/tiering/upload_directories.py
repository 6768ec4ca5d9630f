"""Uploads from the directories of retired nodes: the segments that wait at each place, and the place whose turn it is.
Plain data in, plain data out; a part of `machines.tiering.uploader`. Few are read at a time, because consumers read
there, too. Each place has a gate of its own (`service_gate`): a silent place costs one attempt per pause, and delays no
other place, however many segments wait there. Places take turns, and attempts at silent places never use all tasks.
Cost: O(places with something to read).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

from stratalog.machines.tiering.service_gate import ServiceGate
from stratalog.machines.tiering.upload_events import ReportStore, TaskFailed, UploadLimits
from stratalog.model.ids import SegmentKey

Place: TypeAlias = tuple[int, ...]
"""Retired nodes whose directories are asked in turn."""


class DirectoryReads:
    def __init__(self, limits: UploadLimits) -> None:
        self._limits = limits
        self._queues: dict[Place, dict[SegmentKey, None]] = {}
        """In the order of their turns. None is empty, but for a moment."""
        self._gates: dict[Place, ServiceGate] = {}
        """Of places that gave no answer when they were asked last."""
        self._troubles: dict[Place, str] = {}
        self._was_trial = False

    def queue(self, place: Place) -> dict[SegmentKey, None]:
        """What waits there, to be changed by the caller."""
        return self._queues.setdefault(place, {})

    def queues(self) -> list[dict[SegmentKey, None]]:
        return list(self._queues.values())

    def is_waiting(self) -> bool:
        return any(self._queues.values())

    def open_at_ms(self, now_ms: int) -> int:
        """When the next pause ends of a place that something waits for; `now_ms` where none does."""
        waiting = (gate.open_at_ms for place, gate in self._gates.items() if self._queues.get(place))
        return min((open_ms for open_ms in waiting if open_ms > now_ms), default=now_ms)

    def trouble(self, reading: Collection[Place]) -> str | None:
        """Why a place gave no answer that has something to be read; None once each has answered."""
        return next((why for at, why in self._troubles.items() if self._queues.get(at) or at in reading), None)

    def next_place(self, reading: Collection[Place], now_ms: int) -> Place | None:
        """Where to read next, while tasks read at `reading`. Beside a trial there is always room for what answers."""
        if len(reading) >= self._limits.mounted_requests:
            return None
        for place in [place for place, queue in self._queues.items() if not queue]:
            del self._queues[place]
        sound = next((place for place in self._queues if place not in self._gates), None)
        if sound is not None and (self._was_trial or any(place in self._gates for place in reading)):
            return sound
        due = (
            place
            for place, gate in self._gates.items()
            if gate.open_at_ms <= now_ms and place not in reading and place in self._queues
        )
        return next(due, sound)

    def began(self, place: Place) -> None:
        """It was its turn."""
        self._was_trial = place in self._gates
        if place in self._queues:
            self._queues[place] = self._queues.pop(place)
        if place in self._gates:
            self._gates[place] = self._gates.pop(place)

    def answered(self, place: Place, now_ms: int) -> list[ReportStore]:
        """Well or badly."""
        self._troubles.pop(place, None)
        gate = self._gates.pop(place, None)
        away_since_ms = None if gate is None else gate.answered()
        if away_since_ms is None:
            return []
        return [ReportStore(_named(place), is_away=False, reason="", away_ms=now_ms - away_since_ms)]

    def silent(self, place: Place, failed: TaskFailed, reading: Collection[Place], now_ms: int) -> list[ReportStore]:
        """The node that reads there did not answer, while other tasks read at `reading`."""
        if place not in self._gates:
            self._forget_old(reading, now_ms)
            limits = self._limits
            self._gates[place] = ServiceGate(limits.mounted_requests, limits.backoff_ms, limits.backoff_cap_ms)
        self._troubles[place] = failed.reason
        if not self._gates[place].refused(now_ms, failed.jitter):
            return []
        return [ReportStore(_named(place), is_away=True, reason=failed.reason, away_ms=0)]

    def _forget_old(self, reading: Collection[Place], now_ms: int) -> None:
        """Nothing is read there any more."""
        for place, gate in list(self._gates.items()):
            if not self._queues.get(place) and place not in reading and gate.open_at_ms <= now_ms:
                del self._gates[place]
                self._troubles.pop(place, None)


def _named(place: Place) -> str:
    if not place:
        return "directory of a retired node"
    return f"directory of retired node {', '.join(map(str, place))}"
