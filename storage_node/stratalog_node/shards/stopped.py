"""Why a shard of this node takes no writes any more, what to do about it, and how many of them there are.

A stop lasts until the next start, which reads what the disk holds; `healing` ends by itself. The node and its other
shards go on. What refuses writes for a while and for the whole node (no room) is no stop: see `shards/space.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple, Protocol

from stratalog.model.append import AppendFailure
from stratalog.telemetry.metrics import MetricRegistry


class StopCause(StrEnum):
    FLUSH_FAILED = "flush_failed"
    UNREADABLE = "unreadable"
    DATA_LOST = "data_lost"
    HEALING = "healing"
    FAULT = "fault"
    DEPOSED = "deposed"
    DELETED = "deleted"
    """Its topic. Such a shard is no longer one of the node's: only who still holds it learns of it."""


_NEXT_STEPS = {
    StopCause.FLUSH_FAILED: "see to the disk (the kernel's log says what it met), then restart the node, not the "
    "machine: it writes again what is only in memory, and goes on from there",
    StopCause.UNREADABLE: "see to what the reason names (the disk, permissions, or the file from a copy), then restart "
    "the node",
    StopCause.DATA_LOST: "start the node with the --bucket that has them, or put the file back while it is stopped. "
    "Only if they are nowhere any more: set uncleanSeal=allow on the topic and restart the node to give up just these "
    "offsets: what the object store has behind them comes back, what the file has behind them is kept beside it as "
    ".given-up; what the object store holds of the shard stays readable meanwhile",
    StopCause.HEALING: "wait: the node brings the missing offsets back from the object store and serves the shard "
    "then; if it lasts, see that the object store can be reached",
    StopCause.FAULT: "restart the node, and report the fault with the stack that its log holds",
    StopCause.DEPOSED: "restart the node, so that it asks the meta service anew who leads; if that does not help, look "
    "for a second node with the same node.id",
    StopCause.DELETED: "nothing: the topic was deleted",
}


_FAILURES = {
    StopCause.HEALING: AppendFailure.HEALING,
    StopCause.DEPOSED: AppendFailure.NOT_LEADER,
    StopCause.DELETED: AppendFailure.TOPIC_DELETED,
}


class Stop(NamedTuple):
    reason: str
    cause: StopCause

    @property
    def hides_end(self) -> bool:
        """The log was not opened as a whole: it may reach further than what is known of it."""
        return self.cause in (StopCause.UNREADABLE, StopCause.DATA_LOST, StopCause.HEALING)

    @property
    def failure(self) -> AppendFailure:
        """What whoever appends is told."""
        return _FAILURES.get(self.cause, AppendFailure.STOPPED)

    @property
    def next_step(self) -> str:
        return _NEXT_STEPS[self.cause]


class StoppingShards(Protocol):
    """Shards of which some may have stopped."""

    def stopped(self) -> Iterable[tuple[object, Stop]]: ...


def add_stopped_metric(metrics: MetricRegistry, shards: StoppingShards) -> None:
    """Counted when asked: a stop is rare, and a look at 10,000 shards takes less than a millisecond."""

    def count() -> dict[tuple[str, ...], int]:
        causes = Counter(stop.cause for _, stop in shards.stopped())
        return {(cause.value,): causes[cause] for cause in StopCause if cause is not StopCause.DELETED}

    metrics.register(
        "stratalog_log_stopped_shards",
        "gauge",
        "Shards of this node that take no writes until a restart, by cause; status names each and what to do.",
        count,
        label_names=("cause",),
    )
