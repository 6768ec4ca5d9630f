"""Which committed offsets of a group may be forgotten. Pure.

Source: KIP-211, docs/kafka.md "Groups".
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from uuid import UUID

from stratalog.model.groups.group import NEVER_EXPIRES, CommittedOffset, GroupState
from stratalog.model.ids import ShardKey


@dataclass(frozen=True, slots=True)
class OffsetExpiry:
    """What decides about the offsets of one group at a moment; everything in it is durable already.

    A group with members keeps what it is subscribed to, and everything while that is unknown (`subscribed` None). A
    group that lost its members keeps all for the retention, counted from that moment. Offsets of consumers that
    assign themselves (the group never had members: `has_members_protocol` False) count from their commit.
    """

    state: GroupState
    has_members_protocol: bool
    empty_since_ms: int
    subscribed: Set[UUID] | None
    now_ms: int
    retention_ms: int

    def is_expired(self, key: ShardKey, committed: CommittedOffset) -> bool:
        is_empty = self.state is GroupState.EMPTY
        if not is_empty and (self.state is not GroupState.STABLE or self.subscribed is None):
            return False
        if not is_empty and self.subscribed is not None and key.topic_id in self.subscribed:
            return False
        if committed.expires_ms != NEVER_EXPIRES:
            return committed.expires_ms <= self.now_ms
        since_ms = committed.committed_ms
        if is_empty and self.has_members_protocol:
            since_ms = max(since_ms, self.empty_since_ms)
        return self.now_ms - since_ms >= self.retention_ms
