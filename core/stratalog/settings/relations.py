"""How settings must relate to each other, each stated once with the sentence that explains it.

Checked whenever a settings object is built; a broken relation is refused at start or at the topic's alteration, never
met at run time. `require_assertions` refuses `python -O`: assertions are part of the product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from stratalog.model.errors import InvalidRequest

if TYPE_CHECKING:
    from stratalog.settings.process import ProcessSettings
    from stratalog.settings.topic import TopicSettings

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Relation(Generic[S]):
    rule: str
    because: str
    holds: Callable[[S], bool]


def _within(local: int, total: int) -> bool:
    """A local retention (-2: same as total) lies within the total one (-1: no limit)."""
    return local == -2 or total == -1 or 0 <= local <= total


PROCESS_RELATIONS: tuple[Relation[ProcessSettings], ...] = (
    Relation(
        "remote.upload.chunk.bytes <= remote.upload.bundle.bytes",
        "what is too small for a chunk of its own must fit into a bundle",
        lambda s: s.remote_upload_chunk_bytes <= s.remote_upload_bundle_bytes,
    ),
    Relation(
        "remote.upload.bundle.bytes <= remote.upload.max.inflight.bytes",
        "one bundle must fit into the budget, or it could never be sent",
        lambda s: s.remote_upload_bundle_bytes <= s.remote_upload_max_inflight_bytes,
    ),
    Relation(
        "remote.upload.timeout.ms < remote.orphan.grace.ms",
        "an object whose upload may still be answered must not be swept as an orphan",
        lambda s: s.remote_upload_timeout_ms < s.remote_orphan_grace_ms,
    ),
    Relation(
        "remote.read.window.min.bytes <= remote.read.window.max.bytes",
        "the read-ahead window grows from the one to the other",
        lambda s: s.remote_read_window_min_bytes <= s.remote_read_window_max_bytes,
    ),
    Relation(
        "remote.read.window.max.bytes <= remote.read.cache.bytes",
        "a window that does not fit into the cache would evict what it has just read",
        lambda s: s.remote_read_window_max_bytes <= s.remote_read_cache_bytes,
    ),
    Relation(
        "remote.read.read.ttl.ms <= remote.read.unread.ttl.ms",
        "data that was used must not outlive data that is still awaited",
        lambda s: s.remote_read_read_ttl_ms <= s.remote_read_unread_ttl_ms,
    ),
    Relation(
        "message.max.bytes < socket.request.max.bytes",
        "a batch of the largest size must fit into a request",
        lambda s: s.message_max_bytes < s.socket_request_max_bytes,
    ),
    Relation(
        "group.min.session.timeout.ms <= group.max.session.timeout.ms",
        "otherwise no session timeout is allowed at all",
        lambda s: s.group_min_session_timeout_ms <= s.group_max_session_timeout_ms,
    ),
    Relation(
        "log.local.retention.ms <= log.retention.ms",
        "the local copy cannot stay longer than the data",
        lambda s: _within(s.log_local_retention_ms, s.log_retention_ms),
    ),
    Relation(
        "log.local.retention.bytes <= log.retention.bytes",
        "the local copies cannot be more than the data",
        lambda s: _within(s.log_local_retention_bytes, s.log_retention_bytes),
    ),
    Relation(
        "min.insync.replicas <= default.replication.factor",
        "otherwise a new topic takes no write with acks=all",
        lambda s: s.min_insync_replicas <= s.default_replication_factor,
    ),
)

TOPIC_RELATIONS: tuple[Relation[TopicSettings], ...] = (
    Relation(
        "local.retention.ms <= retention.ms",
        "the local copy cannot stay longer than the data",
        lambda s: _within(s.local_retention_ms, s.retention_ms),
    ),
    Relation(
        "local.retention.bytes <= retention.bytes",
        "the local copies cannot be more than the data",
        lambda s: _within(s.local_retention_bytes, s.retention_bytes),
    ),
)


def assert_relations(settings: S, relations: Sequence[Relation[S]]) -> None:
    """Raises ValueError (which pydantic reports) with the first broken rule, the present values and the reason."""
    for relation in relations:
        if not relation.holds(settings):
            left, operator, right = relation.rule.split(" ")
            values = [getattr(settings, key.replace(".", "_")) for key in (left, right)]
            raise ValueError(
                f"settings do not fit together: {left} (now {values[0]}) must be {operator} {right} (now {values[1]}), "
                f"because {relation.because}"
            )


def require_one_node(settings: ProcessSettings) -> None:
    """Raises InvalidRequest for settings that no cluster of one node can honour: it would start, and make no topic."""
    if settings.default_replication_factor > 1:
        raise InvalidRequest(
            f"process setting default.replication.factor={settings.default_replication_factor} is refused: it must be "
            "1, because this process is a cluster of one node (the meta service runs inside it) and each replica needs "
            "a node of its own: neither a topic nor the group log could be made"
        )


def require_assertions() -> None:
    """Raises SystemExit under `python -O`, which would compile the product's assertions away."""
    if not __debug__:
        raise SystemExit("stratalog refuses python -O and PYTHONOPTIMIZE: its assertions guard your data; unset them")
