"""Makes consumer groups of classic ones that have members, and the other way round (docs/group-migration.md).

Reads what clients say in bytes; `machines.group_conversion` says what it means.
Thread: the event loop. Cost: about 0.5 us a partition of the group, of at most 4 MiB of clients' bytes.
"""

from __future__ import annotations

from typing import Final

from stratalog.machines.consumer_group import ConsumerGroup
from stratalog.machines.consumer_group_events import AnswerConsumer, ConsumerAnswer, ConsumerHeartbeat, ConsumerLimits
from stratalog.machines.group import Group
from stratalog.machines.group_conversion import Said, downgraded, upgraded
from stratalog.machines.group_events import GroupLimits
from stratalog.model.group import CONSUMER_PROTOCOL_TYPE, GroupError, GroupRecord, GroupState
from stratalog_node.groups.client_words import ClientWords

_MAX_BYTES: Final = 4 << 20
"""Of all metadata and assignments that are read at once, to convert a group."""
_CLASSIC_MEMBERS: Final = (
    "the group has members of the classic protocol: end them first, or set group.protocol=classic in this client"
)


class Migration:
    def __init__(
        self, words: ClientWords, group_limits: GroupLimits, consumer_limits: ConsumerLimits, *, may_upgrade: bool
    ) -> None:
        self._words = words
        self.group_limits = group_limits
        self.consumer_limits = consumer_limits
        self._may_upgrade = may_upgrade

    def upgraded(self, classic: Group, joining: ConsumerHeartbeat, now_ms: int) -> ConsumerGroup | ConsumerAnswer:
        """A consumer group of a classic one that has members, ready for this heartbeat; or why it is refused."""
        is_consumers = classic.protocol_type == CONSUMER_PROTOCOL_TYPE
        if classic.state is not GroupState.EMPTY and not (self._may_upgrade and is_consumers):
            return ConsumerAnswer(GroupError.INCONSISTENT_GROUP_PROTOCOL, _CLASSIC_MEMBERS)
        if not classic.is_at_rest:
            why = "the group's classic members rebalance: it changes its protocol when they have what they are to have"
            return ConsumerAnswer(GroupError.COORDINATOR_LOAD_IN_PROGRESS, why)
        record = classic.record()
        said = self._said(record)
        if said is None:
            why = f"what the group's classic members say cannot be read, or is more than {_MAX_BYTES >> 20} MiB"
            return ConsumerAnswer(GroupError.INCONSISTENT_GROUP_PROTOCOL, f"{why}: {_CLASSIC_MEMBERS}")
        whole = upgraded(record, said, joining.topics)
        groups = [
            ConsumerGroup(classic.group_id, self.consumer_limits, whole, now_ms, is_in_log=False) for _ in range(2)
        ]
        # One for a try: who is refused converts nothing.
        for effect in groups[0].step(joining, now_ms):
            if isinstance(effect, AnswerConsumer) and effect.answer.error is not GroupError.NONE:
                return effect.answer
        return groups[1]

    def downgraded(self, group: ConsumerGroup, now_ms: int) -> Group:
        """Requires: `is_to_be_classic`."""
        return Group(group.group_id, self.group_limits, downgraded(group.record()), now_ms, must_join_again=True)

    def _said(self, record: GroupRecord) -> dict[str, Said] | None:
        said: dict[str, Said] = {}
        size_bytes = 0
        for member in record.members:
            metadata = dict(member.protocols).get(record.protocol_name or "", b"")
            size_bytes += len(metadata) + len(member.assignment)
            if size_bytes > _MAX_BYTES:
                return None
            subscription = self._words.read_subscription(metadata)
            assigned = self._words.read_assignment(member.assignment)
            if subscription is None or assigned is None:
                return None
            said[member.member_id] = Said(subscription, assigned)
        return said
