"""The events, effects and answers of `machines.groups.group`.

A *waiter* is the shell's number for one request that waits for its answer; each waiter is answered exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from stratalog.model.groups.group import (
    NO_GENERATION,
    GroupError,
    GroupRecord,
    GroupState,
    MemberProtocol,
    MemberRecord,
)


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """What a group allows. Defaults are those of the process settings."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_members: int = 10_000
    max_bytes: int = 12 << 20
    """Most bytes of all members together: names, protocols with their metadata, assignments. What fits becomes one
    record of the log."""
    new_member_join_timeout_ms: int = 300_000
    """A member that never got its id cannot send heartbeats; its parked JoinGroup ends after this long."""


# Events -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class MemberJoined:
    """A JoinGroup. `new_member_id` is used when `member_id` is empty, or when a static member comes back."""

    waiter: int
    member_id: str
    new_member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[MemberProtocol, ...]
    requires_known_id: bool
    """The client first takes an id (79), then joins with it: JoinGroup 4 and later."""
    can_skip_assignment: bool
    """A returning static leader may be told that it leads and need not assign: JoinGroup 9 and later."""


@dataclass(frozen=True, slots=True)
class MemberSynced:
    """A SyncGroup; the leader's carries the assignments, as (member id, bytes). A protocol of None is not checked."""

    waiter: int
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class HeartbeatReceived:
    waiter: int
    member_id: str
    instance_id: str | None
    generation: int


class LeavingMember(NamedTuple):
    """An empty member id with an instance id removes the static member, whatever its present id."""

    member_id: str
    instance_id: str | None


@dataclass(frozen=True, slots=True)
class MembersLeft:
    waiter: int
    members: tuple[LeavingMember, ...]


@dataclass(frozen=True, slots=True)
class GroupPersisted:
    """What `PersistGroup` asked for is durable."""

    ticket: int


@dataclass(frozen=True, slots=True)
class PersistFailed:
    ticket: int
    error: GroupError


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The group's deadline is reached (or not: waking too early is harmless)."""


@dataclass(frozen=True, slots=True)
class GroupClosed:
    """The group goes away from here (its shard moved, or it was deleted): everyone waiting hears `error`."""

    error: GroupError


GroupEvent: TypeAlias = (
    MemberJoined
    | MemberSynced
    | HeartbeatReceived
    | MembersLeft
    | GroupPersisted
    | PersistFailed
    | TimePassed
    | GroupClosed
)


# Answers and effects ----------------------------------------------------------------------------------------------
class JoinedMember(NamedTuple):
    """A member as its leader sees it: the metadata is that of the protocol chosen."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    error: GroupError
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    error: GroupError
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class AnswerJoin:
    waiter: int
    answer: JoinAnswer


@dataclass(frozen=True, slots=True)
class AnswerSync:
    waiter: int
    answer: SyncAnswer


@dataclass(frozen=True, slots=True)
class AnswerHeartbeat:
    waiter: int
    error: GroupError


@dataclass(frozen=True, slots=True)
class AnswerLeave:
    """One error per member asked to leave, in the order of the request."""

    waiter: int
    errors: tuple[GroupError, ...]


@dataclass(frozen=True, slots=True)
class PersistGroup:
    """Make this the durable state of the group, then say `GroupPersisted` (or `PersistFailed`) with the ticket.

    Records of one group must become durable in the order asked.
    """

    ticket: int
    record: GroupRecord


@dataclass(frozen=True, slots=True)
class PersistMember:
    """The same for one static member of the durable state: it replaces its instance's former id."""

    ticket: int
    generation: int
    member: MemberRecord


GroupEffect: TypeAlias = AnswerJoin | AnswerSync | AnswerHeartbeat | AnswerLeave | PersistGroup | PersistMember


# Descriptions -----------------------------------------------------------------------------------------------------
class MemberStatus(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """What an operator sees of a group."""

    group_id: str
    state: GroupState
    generation: int
    protocol_type: str
    protocol_name: str
    leader: str
    members: tuple[MemberStatus, ...]
