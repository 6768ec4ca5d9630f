"""What nodes last reported, and their recent throughput, in the memory of the instance that receives heartbeats.

At most one sample of each node per `SAMPLE_EVERY_MS`, of the last `WINDOW_MS`, for the first `MAX_NODES` nodes: about
1 MB, however many nodes there are. Times are of the caller's wall clock; if it is set back, a node's history begins
again. Counters of a node that restarts begin at zero, which shows as a gap.

Pure. Cost: O(1) for a heartbeat.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from stratalog.model.activity import Activity
from stratalog.model.bounds import Count, CountOrNone, Int32
from stratalog.model.metadata import Vitals

SAMPLE_EVERY_MS: Final = 2_000
WINDOW_MS: Final = 360_000
SAMPLES: Final = WINDOW_MS // SAMPLE_EVERY_MS
MAX_NODES: Final = 32


@dataclass(frozen=True, slots=True)
class Sample:
    at_ms: Count
    produce_rate: CountOrNone
    """Bytes per second since the sample before; -1 if unknown."""
    fetch_rate: CountOrNone
    unsent_bytes: CountOrNone
    """-1 of a node without an object store."""
    disk_free_bytes: Count


@dataclass(frozen=True, slots=True)
class Course:
    """How it went with one node, oldest first."""

    node_id: Int32
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class LastHeartbeat:
    """What a node told last, and when."""

    at_ms: int
    vitals: Vitals


@dataclass(slots=True)
class _Kept:
    last_heartbeat: LastHeartbeat
    sampled: LastHeartbeat
    has_course: bool
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=SAMPLES))


class HeartbeatHistory:
    def __init__(self) -> None:
        self._kept: dict[int, _Kept] = {}

    def note(self, node_id: int, now_ms: int, vitals: Vitals) -> None:
        """A node that is registered told this."""
        last_heartbeat = LastHeartbeat(now_ms, vitals)
        kept = self._kept.get(node_id)
        if kept is None or now_ms < kept.last_heartbeat.at_ms:
            with_course = sum(one.has_course for one in self._kept.values())
            has_course = with_course < MAX_NODES if kept is None else kept.has_course
            self._kept[node_id] = _Kept(last_heartbeat, last_heartbeat, has_course)
            return
        if now_ms - kept.sampled.at_ms >= SAMPLE_EVERY_MS:
            if vitals.activity is not None and kept.has_course:
                kept.samples.append(_sample(kept.sampled, last_heartbeat, vitals.activity))
            kept.sampled = last_heartbeat
        kept.last_heartbeat = last_heartbeat

    def last_heartbeat(self, node_id: int) -> LastHeartbeat | None:
        kept = self._kept.get(node_id)
        return None if kept is None else kept.last_heartbeat

    def courses(self, after_ms: int) -> Sequence[Course]:
        """Samples after that time, by node; the newest one from the last heartbeat."""
        after_ms = max(
            after_ms, max((kept.last_heartbeat.at_ms for kept in self._kept.values()), default=0) - WINDOW_MS
        )
        newer = (
            Course(node_id, tuple(sample for sample in kept.samples if sample.at_ms > after_ms))
            for node_id, kept in sorted(self._kept.items())
        )
        return [course for course in newer if course.samples]


def rates(before: LastHeartbeat, now: LastHeartbeat) -> tuple[int, int]:
    """Produced and fetched bytes per second between two heartbeats; -1 if unknown."""
    old, new, passed_ms = before.vitals.activity, now.vitals.activity, now.at_ms - before.at_ms
    if old is None or new is None or passed_ms <= 0:
        return -1, -1
    if new.produced_bytes < old.produced_bytes or new.fetched_bytes < old.fetched_bytes:
        return -1, -1
    return (
        (new.produced_bytes - old.produced_bytes) * 1_000 // passed_ms,
        (new.fetched_bytes - old.fetched_bytes) * 1_000 // passed_ms,
    )


def _sample(before: LastHeartbeat, now: LastHeartbeat, activity: Activity) -> Sample:
    uploads = activity.uploads
    return Sample(
        now.at_ms, *rates(before, now), -1 if uploads is None else uploads.unsent_bytes, now.vitals.disk_free_bytes
    )
