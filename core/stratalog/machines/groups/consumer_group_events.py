"""Events, effects and answers of a group of the consumer protocol (KIP-848): see `machines.groups.consumer_group`.

A *waiter* is the shell's number for one request that waits for its answer; each waiter is answered exactly once.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias
from uuid import UUID

from stratalog.machines.groups import group_events
from stratalog.model.groups.consumer_group import ConsumerGroupChange, ConsumerGroupRecord, ConsumerMember, Subscription
from stratalog.model.groups.group import GroupError, GroupState
from stratalog.model.ids import ShardKey


class SeenTopic(NamedTuple):
    topic_id: UUID
    shards: int


class SeenTopics(Protocol):
    """The topics as the caller sees them now."""

    @property
    def version(self) -> int:
        """Another one whenever topics came, went or grew."""
        ...

    @property
    def view(self) -> tuple[str, Hashable] | None:
        """Who sees them, and what changes whenever it may see other ones. None: everyone sees all."""
        ...

    def topic(self, name: str) -> SeenTopic | None: ...

    def matching(self, regex: str) -> Collection[str]:
        """Names of topics that a regular expression matches as a whole, of internal topics too."""
        ...


@dataclass(frozen=True, slots=True)
class ConsumerLimits:
    """What a group allows. Defaults are those of the process settings."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_members: int = 10_000
    max_bytes: int = 12 << 20
    """Of all members together, about: what fits becomes one record of the log."""
    min_session_timeout_ms: int = 6_000
    """Of classic members, which choose theirs."""
    max_session_timeout_ms: int = 1_800_000
    may_downgrade: bool = True
    """It becomes a classic group when it has classic members only."""


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """A ConsumerGroupHeartbeat. None: not changed since the last one.

    Requires: what the caller can judge alone is in order (`serve/api/groups/p68_consumer_group_heartbeat.py`).
    """

    waiter: int
    member_id: str
    member_epoch: int
    """0: joins. -1: leaves. -2: a static member leaves for a while."""
    topics: SeenTopics
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int | None = None
    topic_names: tuple[str, ...] | None = None
    topic_regex: str | None = None
    assignor: str | None = None
    owned: frozenset[ShardKey] | None = None
    room_bytes: int = 1 << 62
    """How much more all groups of the node together may hold."""

    @property
    def is_full(self) -> bool:
        """It sends everything, so its answer has everything."""
        says_topics = self.topic_names is not None or self.topic_regex is not None
        return self.member_epoch == 0 or (
            self.rebalance_timeout_ms is not None and says_topics and self.owned is not None
        )


@dataclass(frozen=True, slots=True)
class ClassicJoined:
    """A JoinGroup to a consumer group. Subscription None: its metadata cannot be read."""

    join: group_events.MemberJoined
    subscription: Subscription | None
    topics: SeenTopics
    room_bytes: int = 1 << 62


@dataclass(frozen=True, slots=True)
class ClassicBeat:
    """A Heartbeat to a consumer group."""

    beat: group_events.HeartbeatReceived
    topics: SeenTopics


ConsumerGroupEvent: TypeAlias = (
    ConsumerHeartbeat
    | ClassicJoined
    | ClassicBeat
    | group_events.MemberSynced
    | group_events.MembersLeft
    | group_events.GroupPersisted
    | group_events.PersistFailed
    | group_events.TimePassed
    | group_events.GroupClosed
)


@dataclass(frozen=True, slots=True)
class ConsumerAnswer:
    error: GroupError
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: frozenset[ShardKey] | None = None
    """None: unchanged since the last answer."""


@dataclass(frozen=True, slots=True)
class AnswerConsumer:
    waiter: int
    answer: ConsumerAnswer


@dataclass(frozen=True, slots=True)
class ShareAnswer:
    """To a SyncGroup: what the member may use, by whatever name it calls the way to share."""

    error: GroupError
    protocol_name: str | None = None
    shards: frozenset[ShardKey] = frozenset()


@dataclass(frozen=True, slots=True)
class AnswerShare:
    waiter: int
    answer: ShareAnswer


DurableAnswer: TypeAlias = AnswerConsumer | group_events.AnswerJoin | AnswerShare | group_events.AnswerLeave
"""Such as wait until all before them is durable."""


@dataclass(frozen=True, slots=True)
class PersistConsumers:
    """Make this durable, then say `GroupPersisted` (or `PersistFailed`) with the ticket, in the order asked. A change
    rests on all before it; a whole record replaces them."""

    ticket: int
    entry: ConsumerGroupRecord | ConsumerGroupChange


ConsumerGroupEffect: TypeAlias = DurableAnswer | group_events.AnswerHeartbeat | PersistConsumers


@dataclass(frozen=True, slots=True)
class ConsumerGroupStatus:
    """What an operator sees of a group."""

    group_id: str
    state: GroupState
    epoch: int
    target_epoch: int
    assignor: str
    members: tuple[ConsumerMember, ...]


def shards_of(topics: Iterable[tuple[UUID, Iterable[int]]]) -> frozenset[ShardKey]:
    return frozenset(ShardKey(topic_id, shard) for topic_id, shards in topics for shard in shards)
