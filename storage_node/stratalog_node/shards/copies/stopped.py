"""The shards of this node that no longer accept writes, counted by cause (`machines.leading.shard_life`).

A lack of room refuses writes temporarily and for the whole node; that is a matter of `shards/flush/space.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from stratalog.machines.leading.shard_life import Stop, StopCause
from stratalog.model.ids import ShardKey
from stratalog.telemetry.metrics import MetricRegistry


class StoppedShards:
    """Kept by the shards themselves: it is asked for several times a second, and a node has thousands of shards. Lives
    on the event loop."""

    def __init__(self) -> None:
        self.keys: dict[ShardKey, None] = {}

    def note(self, key: ShardKey, stop: Stop | None) -> None:
        """It stopped for another reason than before, or takes writes again."""
        if stop is None or stop.cause is StopCause.DELETED:
            self.keys.pop(key, None)
        else:
            self.keys[key] = None


class StoppingShards(Protocol):
    """A set of shards; some of them may have stopped."""

    def stopped(self) -> Iterable[tuple[object, Stop]]: ...


def add_stopped_metric(metrics: MetricRegistry, shards: StoppingShards) -> None:
    """Counted when asked."""

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
