"""A topic's settings for the append path: plain attributes, one object for all shards of a topic."""

from __future__ import annotations

from stratalog.machines.leading.leader_events import RollPolicy
from stratalog.machines.reading.cold_rates import ColdLimits
from stratalog.model.storage_policy import StoragePolicy
from stratalog.settings.choices import AcksPolicy, FlushPolicy, TimestampType, UncleanSeal
from stratalog.settings.topic import TopicSettings
from stratalog.settings.units import HOUR_MS, INT64_MAX

_USUAL_AFTER_MS = HOUR_MS
"""Kafka's default, which no user has set explicitly."""
_ANY_MS = 1 << 64
"""Above the distance of any two timestamps."""


class ShardRules:
    """Replaced as a whole when the topic's settings change.

    Tested through `offer` (`tests/unit/serve/producing`).
    """

    __slots__ = (
        "checks_each_time",
        "cold_limits",
        "gives_up_lost",
        "has_time_window",
        "is_append_time",
        "is_fsync",
        "max_message_bytes",
        "read_policy",
        "roll",
        "timestamp_after_max_ms",
        "timestamp_before_max_ms",
    )

    def __init__(self, settings: TopicSettings, lag_ms: int, *, is_internal: bool = False) -> None:
        """`lag_ms`: how long a follower may be behind and stay in sync."""
        self.max_message_bytes = settings.max_message_bytes
        self.is_append_time = settings.message_timestamp_type is TimestampType.LOG_APPEND_TIME
        # Under LogAppendTime the log sets the time, so any timestamp of a client is accepted.
        self.timestamp_before_max_ms = _ANY_MS if self.is_append_time else settings.message_timestamp_before_max_ms
        self.timestamp_after_max_ms = _ANY_MS if self.is_append_time else settings.message_timestamp_after_max_ms
        before_ms, after_ms = settings.message_timestamp_before_max_ms, settings.message_timestamp_after_max_ms
        self.has_time_window = not self.is_append_time and min(before_ms, after_ms) < INT64_MAX
        self.checks_each_time = before_ms < INT64_MAX or after_ms not in (_USUAL_AFTER_MS, INT64_MAX)
        """A user has set this window: check each record's time, too."""
        self.is_fsync = settings.flush_policy is FlushPolicy.FSYNC
        self.gives_up_lost = settings.unclean_seal is UncleanSeal.ALLOW
        self.read_policy = settings.remote_read_policy
        self.cold_limits = ColdLimits(
            settings.remote_read_topic_bytes_per_second, settings.remote_read_client_bytes_per_second
        )
        is_quorum = settings.acks_policy is AcksPolicy.QUORUM
        # With a quorum the minimum is a majority of the replicas, whichever are in sync.
        needed = 1 if is_quorum else settings.min_insync_replicas
        # An internal topic has as many replicas as there are nodes, so its minimum must follow them.
        self.roll = RollPolicy(
            settings.segment_bytes,
            settings.segment_ms,
            needed,
            lag_ms,
            is_quorum,
            spares_one=is_internal,
            is_direct=settings.storage_policy is StoragePolicy.DIRECT,
        )
