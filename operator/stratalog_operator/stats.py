"""What the operator counts, as its page of metrics shows it: `stratalog_operator_…`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from stratalog.telemetry.histogram import Histogram
from stratalog.telemetry.metrics import MetricRegistry, counter, gauge, histogram
from stratalog_operator.kube.client import Kubernetes

_BOUNDS_US = tuple(
    1000 * bound for bound in (5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000)
)


def _seconds() -> Histogram:
    return Histogram(_BOUNDS_US)


@dataclass(slots=True)
class OperatorStats:
    passes: int = counter("Passes over a cluster that did all they meant to do.")
    failures: int = counter("Passes over a cluster of which something failed.")
    reconcile: Histogram = field(default_factory=_seconds, metadata=histogram("Time of a pass over a cluster."))
    queue_depth: int = gauge("Clusters that wait for a pass.")
    queue_oldest_seconds: int = gauge("How long the cluster that has waited longest has waited for a pass.")
    failing_clusters: int = gauge("Clusters whose last pass failed.")
    last_success_timestamp_seconds: int = gauge("When a pass last did all that it meant to do.")
    is_leader: int = gauge("1 while this process holds the Lease.")
    actions: int = counter("Actions that passes did.")
    events: int = counter("Events written.")
    wakes: int = counter("Events of Kubernetes that woke a cluster.")


def export(registry: MetricRegistry, stats: OperatorStats, kubernetes: Kubernetes) -> None:
    registry.add("stratalog_operator", stats)
    registry.register(
        "stratalog_operator_api_writes_total",
        "counter",
        "Requests that change something, by verb and resource.",
        lambda: _by_labels(kubernetes.writes),
        label_names=("verb", "resource"),
    )
    registry.register(
        "stratalog_operator_api_requests_total",
        "counter",
        "Requests to the Kubernetes API, by verb and answer.",
        lambda: _by_labels(kubernetes.answers),
        label_names=("verb", "code"),
    )


def _by_labels(counted: Counter[tuple[str, str]]) -> dict[tuple[str, ...], float]:
    return {(*labels,): float(number) for labels, number in counted.items()}
