"""What a store has done, as plain integers that telemetry can export.

Lives on the event loop; reading it costs nothing and may happen at any time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

from stratalog.telemetry.histogram import Histogram
from stratalog.telemetry.metrics import MetricRegistry, Reading, Value


class Operation(StrEnum):
    PUT = "put"
    GET = "get"
    HEAD = "head"
    LIST = "list"
    DELETE = "delete"


class FailureKind(StrEnum):
    """Why an attempt failed, as the store's caller would put it."""

    NOT_FOUND = "not_found"
    ALREADY_EXISTS = "already_exists"
    CONFLICT = "conflict"
    SLOW_DOWN = "slow_down"
    SERVER_ERROR = "server_error"
    DENIED = "denied"
    ARCHIVED = "archived"
    REFUSED = "refused"
    TIMEOUT = "timeout"
    CUT = "cut"
    WRONG_BODY = "wrong_body"
    NO_SPACE = "no_space"
    REJECTED = "rejected"
    OTHER = "other"


@dataclass(slots=True)
class OperationStats:
    """One operation's counters. `requests` counts attempts, so it is what a store would bill."""

    requests: int = 0
    retries: int = 0
    bytes: int = 0
    in_flight: int = 0
    latency: Histogram = field(default_factory=Histogram)
    """In microseconds, of all attempts, failed ones too."""
    errors: Counter[FailureKind] = field(default_factory=Counter)


@dataclass(slots=True)
class StoreStats:
    """All operations of one store."""

    by_operation: dict[Operation, OperationStats] = field(
        default_factory=lambda: {operation: OperationStats() for operation in Operation}
    )

    def __getitem__(self, operation: Operation) -> OperationStats:
        return self.by_operation[operation]

    @property
    def requests(self) -> int:
        return sum(stats.requests for stats in self.by_operation.values())

    def export(self, registry: MetricRegistry) -> None:
        """Show everything on the metrics page, by operation. Call it once per registry."""
        rows = self.by_operation

        def by_operation(read: Callable[[OperationStats], Value]) -> Callable[[], Reading]:
            return lambda: {(operation.value,): read(stats) for operation, stats in rows.items()}

        labels = ("operation",)
        register = partial(registry.register, label_names=labels)
        prefix = "stratalog_object_store"
        register(f"{prefix}_requests_total", "counter", "Requests sent.", by_operation(lambda s: s.requests))
        register(f"{prefix}_retries_total", "counter", "Requests that repeated one.", by_operation(lambda s: s.retries))
        register(f"{prefix}_bytes_total", "counter", "Bytes of objects moved.", by_operation(lambda s: s.bytes))
        register(f"{prefix}_in_flight", "gauge", "Requests without an answer yet.", by_operation(lambda s: s.in_flight))
        register(f"{prefix}_latency_seconds", "histogram", "Time of one request.", by_operation(lambda s: s.latency))
        registry.register(
            f"{prefix}_errors_total",
            "counter",
            "Requests that failed, by kind; not_found and already_exists are answers, too.",
            lambda: {
                (operation.value, kind.value): count
                for operation, stats in rows.items()
                for kind, count in stats.errors.items()
            },
            label_names=("operation", "kind"),
        )
