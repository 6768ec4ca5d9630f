"""Which committed offsets of a group may be forgotten. Pure; cost O(offsets) per call.

Source: KIP-211, docs/kafka.md "Groups".
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from uuid import UUID

from stratalog.model.group import NEVER_EXPIRES, CommittedOffset, GroupState
from stratalog.model.ids import ShardKey


def expired_offsets(
    offsets: Mapping[ShardKey, CommittedOffset],
    *,
    state: GroupState,
    has_members_protocol: bool,
    empty_since_ms: int,
    subscribed: Set[UUID] | None,
    now_ms: int,
    retention_ms: int,
) -> list[ShardKey]:
    """The offsets whose time is over.

    A group with members keeps what it is subscribed to, and everything while that is unknown (`subscribed` None). A
    group that lost its members keeps all for the retention, counted from that moment. Offsets of consumers that
    assign themselves (the group never had members: `has_members_protocol` False) count from their commit.
    """
    expired: list[ShardKey] = []
    is_empty = state is GroupState.EMPTY
    if not is_empty and (state is not GroupState.STABLE or subscribed is None):
        return expired
    for key, committed in offsets.items():
        if not is_empty and subscribed is not None and key.topic_id in subscribed:
            continue
        if committed.expires_ms != NEVER_EXPIRES:
            if committed.expires_ms <= now_ms:
                expired.append(key)
            continue
        since_ms = committed.committed_ms
        if is_empty and has_members_protocol:
            since_ms = max(since_ms, empty_since_ms)
        if now_ms - since_ms >= retention_ms:
            expired.append(key)
    return expired
