"""How settings must relate to each other, each stated once with the sentence that explains it.

Checked whenever a settings object is built; a broken relation is refused at start or at the topic's alteration, never
met at run time. Stated over keys, not over the settings' classes, which check them when they are built.
`require_assertions` refuses `python -O`: assertions are part of the product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

SAME_AS_TOTAL = -2
NO_LIMIT = -1


@dataclass(frozen=True, slots=True)
class Relation:
    """Between the values of two keys of the same settings."""

    left: str
    operator: str
    right: str
    because: str
    holds: Callable[[int, int], bool]

    @property
    def rule(self) -> str:
        return f"{self.left} {self.operator} {self.right}"


def _at_most(left: str, right: str, because: str) -> Relation:
    return Relation(left, "<=", right, because, lambda low, high: low <= high)


def _below(left: str, right: str, because: str) -> Relation:
    return Relation(left, "<", right, because, lambda low, high: low < high)


def _local_within(local: str, total: str, because: str) -> Relation:
    """A local retention lies within the total one."""
    return Relation(
        local,
        "<=",
        total,
        f"{because}; -1 means no limit, which is above every number, and -2 means the same as {total}",
        lambda kept, whole: kept == SAME_AS_TOTAL or whole == NO_LIMIT or 0 <= kept <= whole,
    )


PROCESS_RELATIONS: tuple[Relation, ...] = (
    _at_most(
        "remote.upload.chunk.bytes",
        "remote.upload.bundle.bytes",
        "data that is too small for its own chunk must fit into a bundle",
    ),
    _at_most(
        "remote.upload.bundle.bytes",
        "remote.upload.max.inflight.bytes",
        "a bundle that does not fit into the budget could never be sent",
    ),
    _below(
        "remote.upload.timeout.ms",
        "remote.orphan.grace.ms",
        "an object whose upload may still be answered must not be swept as an orphan",
    ),
    _at_most(
        "remote.read.window.min.bytes",
        "remote.read.window.max.bytes",
        "the read-ahead window grows from the minimum to the maximum",
    ),
    _at_most(
        "remote.read.window.max.bytes",
        "remote.read.cache.bytes",
        "a window that does not fit into the cache would evict what it has just read",
    ),
    _below(
        "message.max.bytes",
        "socket.request.max.bytes",
        "the largest batch must fit into a request",
    ),
    _at_most(
        "group.min.session.timeout.ms",
        "group.max.session.timeout.ms",
        "otherwise no session timeout would be allowed",
    ),
    _local_within(
        "log.local.retention.ms",
        "log.retention.ms",
        "the local copy cannot be kept longer than the data",
    ),
    _local_within(
        "log.local.retention.bytes",
        "log.retention.bytes",
        "the local copies cannot be larger than the data",
    ),
    _at_most(
        "min.insync.replicas",
        "default.replication.factor",
        "otherwise a new topic would accept no write with acks=all",
    ),
)

TOPIC_RELATIONS: tuple[Relation, ...] = (
    _local_within(
        "local.retention.ms",
        "retention.ms",
        "the local copy cannot be kept longer than the data",
    ),
    _local_within(
        "local.retention.bytes",
        "retention.bytes",
        "the local copies cannot be larger than the data",
    ),
)


def assert_relations(settings: BaseModel, relations: Sequence[Relation]) -> None:
    """Raises ValueError (which pydantic reports) with the first broken rule, the present values and the reason."""
    for relation in relations:
        left, right = (getattr(settings, key.replace(".", "_")) for key in (relation.left, relation.right))
        if not relation.holds(left, right):
            raise ValueError(
                f"settings do not fit together: {relation.left} (now {left}) must be {relation.operator} "
                f"{relation.right} (now {right}), because {relation.because}"
            )


def require_assertions() -> None:
    """Raises SystemExit under `python -O`, which would compile the product's assertions away."""
    if not __debug__:
        raise SystemExit("stratalog refuses python -O and PYTHONOPTIMIZE: its assertions protect your data; unset them")
