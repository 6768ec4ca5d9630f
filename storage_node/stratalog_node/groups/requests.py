"""What is asked of the group coordinator and what it answers: plain data, without any wire format.

Times are milliseconds. Answers about several offsets or members are in the order of the request.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from stratalog.machines.groups.consumer_group_events import ConsumerGroupStatus
from stratalog.machines.groups.group_events import GroupStatus
from stratalog.model.groups.group import NO_GENERATION, CommittedOffset, GroupError, GroupState, MemberProtocol
from stratalog.model.ids import ShardKey


class MayDescribe(Protocol):
    """Whether a client may know of a topic, by its name. None in its place: of every topic."""

    def __call__(self, name: str, /) -> bool: ...

    @property
    def viewer(self) -> str:
        """Its principal."""
        ...

    @property
    def revision(self) -> Hashable:
        """Another one once it may describe other topics."""
        ...


@dataclass(frozen=True, slots=True)
class JoinRequest:
    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[MemberProtocol, ...]
    requires_known_id: bool
    """JoinGroup 4 and later: a dynamic member first takes an id (79)."""
    can_skip_assignment: bool
    """JoinGroup 9 and later."""
    may_describe: MayDescribe | None = None


@dataclass(frozen=True, slots=True)
class SyncRequest:
    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: tuple[tuple[str, bytes], ...]
    may_describe: MayDescribe | None = None


@dataclass(frozen=True, slots=True)
class ConsumerRequest:
    """A ConsumerGroupHeartbeat. None: not changed since the last one."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int | None
    topic_names: tuple[str, ...] | None
    topic_regex: str | None
    assignor: str | None
    owned: frozenset[ShardKey] | None
    may_describe: MayDescribe | None = None


class OffsetToCommit(NamedTuple):
    topic: str
    shard: int
    offset: int
    epoch: int
    metadata: str


@dataclass(frozen=True, slots=True)
class CommitRequest:
    group_id: str
    offsets: tuple[OffsetToCommit, ...]
    member_id: str = ""
    instance_id: str | None = None
    generation: int = NO_GENERATION
    retention_ms: int | None = None
    """Asked for by old clients; None means the cluster's `offsets.retention.minutes`."""


class TopicShard(NamedTuple):
    topic: str
    shard: int


class FetchedOffset(NamedTuple):
    topic: str
    shard: int
    committed: CommittedOffset | None


@dataclass(frozen=True, slots=True)
class FetchedOffsets:
    error: GroupError
    offsets: tuple[FetchedOffset, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """A group that does not exist is described as Dead, as Kafka does below DescribeGroups 6."""

    error: GroupError
    status: GroupStatus


@dataclass(frozen=True, slots=True)
class DescribedConsumers:
    """A group of the consumer protocol; without a status: why nothing is said of it."""

    error: GroupError
    group_id: str
    message: str | None = None
    status: ConsumerGroupStatus | None = None


def put_off(group_id: str, error: GroupError = GroupError.COORDINATOR_LOAD_IN_PROGRESS) -> DescribedGroup:
    """Nothing is said of the group but why."""
    return DescribedGroup(error, GroupStatus(group_id, GroupState.DEAD, 0, "", "", "", ()))


@dataclass(frozen=True, slots=True)
class ListedGroup:
    group_id: str
    protocol_type: str
    state: str
    group_type: str = "classic"
    """"classic" or "consumer"."""


@dataclass(frozen=True, slots=True)
class ListedGroups:
    """`error` says that some shards are still loading: their groups are missing."""

    error: GroupError
    groups: tuple[ListedGroup, ...]


@dataclass(frozen=True, slots=True)
class DeletedOffsets:
    """A group error stands for all; otherwise one error per topic shard asked."""

    error: GroupError
    errors: tuple[GroupError, ...] = ()
