"""Makes consumer groups of classic ones that have members, and the other way round (docs/group-migration.md).

Reads what clients say in bytes; `machines.groups.group_conversion` says what it means.
Thread: the event loop. Cost: about 0.5 us a partition of the group, of at most 4 MiB of clients' bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from stratalog.machines.groups.classic_members import unplaced
from stratalog.machines.groups.consumer_group import ConsumerGroup
from stratalog.machines.groups.consumer_group_events import (
    AnswerConsumer,
    ConsumerAnswer,
    ConsumerHeartbeat,
    ConsumerLimits,
    SeenTopics,
)
from stratalog.machines.groups.group import Group
from stratalog.machines.groups.group_conversion import Said, downgraded, upgraded
from stratalog.machines.groups.group_events import GroupLimits
from stratalog.model.groups.group import CONSUMER_PROTOCOL_TYPE, GroupError, GroupRecord, GroupState, MemberRecord
from stratalog_node.groups.subscription_codec import SubscriptionCodec

_MAX_BYTES: Final = 4 << 20
"""Limit for all metadata and assignments that are read at once to convert a group."""
_CLASSIC_MEMBERS: Final = (
    "the group has members of the classic protocol: end them first, or set group.protocol=classic in this client"
)


Unplaced: TypeAlias = frozenset[tuple[str, int]]
"""Names of topics and indexes of shards."""
NOWHERE: Final[Unplaced] = frozenset()


class Migration:
    def __init__(
        self, words: SubscriptionCodec, group_limits: GroupLimits, consumer_limits: ConsumerLimits, *, may_upgrade: bool
    ) -> None:
        self._words = words
        self.group_limits = group_limits
        self.consumer_limits = consumer_limits
        self._may_upgrade = may_upgrade

    def upgraded(
        self, classic: Group, joining: ConsumerHeartbeat, now_ms: int, gone: Unplaced = NOWHERE
    ) -> ConsumerGroup | ConsumerAnswer | Unplaced:
        """A consumer group of a classic one that has members, ready for this heartbeat; or why it is refused; or shards
        that members have and the catalog does not show: it may be behind, unless they are known to be `gone`."""
        is_consumers = classic.protocol_type == CONSUMER_PROTOCOL_TYPE
        if classic.state is not GroupState.EMPTY and not (self._may_upgrade and is_consumers):
            return ConsumerAnswer(GroupError.INCONSISTENT_GROUP_PROTOCOL, _CLASSIC_MEMBERS)
        if not classic.is_at_rest:
            why = "the group's classic members rebalance: it changes its protocol when they have what they are to have"
            return ConsumerAnswer(GroupError.COORDINATOR_LOAD_IN_PROGRESS, why)
        record = classic.record()
        subscriptions = self._subscriptions(record)
        if subscriptions is None:
            why = f"what the group's classic members say cannot be read, or is more than {_MAX_BYTES >> 20} MiB"
            return ConsumerAnswer(GroupError.INCONSISTENT_GROUP_PROTOCOL, f"{why}: {_CLASSIC_MEMBERS}")
        missing = self._unplaced(subscriptions.values(), joining.topics)
        if not missing <= gone:
            return missing
        whole = upgraded(record, subscriptions, joining.topics)
        if sum(member.size_bytes for member in whole.members.values()) > self.consumer_limits.max_bytes:
            why = f"the group's classic members would take more than {self.consumer_limits.max_bytes} bytes"
            return ConsumerAnswer(GroupError.INCONSISTENT_GROUP_PROTOCOL, f"{why}: {_CLASSIC_MEMBERS}")
        groups = [
            ConsumerGroup(classic.group_id, self.consumer_limits, whole, now_ms, is_in_log=False) for _ in range(2)
        ]
        # The first one is for a trial: a refused member converts nothing.
        for effect in groups[0].step(joining, now_ms):
            if isinstance(effect, AnswerConsumer) and effect.answer.error is not GroupError.NONE:
                return effect.answer
        return groups[1]

    def downgraded(self, group: ConsumerGroup, now_ms: int) -> Group:
        """Requires: `is_to_be_classic`."""
        return Group(group.group_id, self.group_limits, downgraded(group.record()), now_ms, must_join_again=True)

    @staticmethod
    def _unplaced(subscriptions: Iterable[Said], topics: SeenTopics) -> Unplaced:
        found: set[tuple[str, int]] = set()
        for one in subscriptions:
            found |= unplaced(one.assigned, topics) | unplaced(one.subscription.owned, topics)
        return frozenset(found)

    def _subscriptions(self, record: GroupRecord) -> dict[str, Said] | None:
        elected = {member.member_id: _metadata(member, record.protocol_name) for member in record.members}
        if sum(len(elected[member.member_id]) + len(member.assignment) for member in record.members) > _MAX_BYTES:
            return None
        subscriptions: dict[str, Said] = {}
        for member in record.members:
            # For a member that joins again the first protocol is read: otherwise the group would lose it.
            wishes = subscription = self._words.wishes(member.protocols)
            if wishes is not None and elected[member.member_id] is not member.protocols[0].metadata:
                subscription = self._words.read_subscription(elected[member.member_id])
            assigned = self._words.read_assignment(member.assignment)
            if subscription is None or assigned is None:
                return None
            subscriptions[member.member_id] = Said(subscription, assigned)
        return subscriptions


def _metadata(member: MemberRecord, protocol_name: str | None) -> bytes:
    return next((metadata for name, metadata in member.protocols if name == protocol_name), b"")
