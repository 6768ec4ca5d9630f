"""Consumer groups as they are kept: members, generations, committed offsets.

Plain data, shared by the group machine, the group log's format and the node. Protocol metadata and assignments are the
clients' own bytes; nothing here looks inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NamedTuple

NO_GENERATION = -1
NO_OFFSET = -1
NEVER_EXPIRES = -1
CONSUMER_PROTOCOL_TYPE = "consumer"
"""Of groups whose members say in their metadata which topics they subscribe to."""

_MEMBER_BYTES, _PROTOCOL_BYTES = 40, 180


class GroupError(IntEnum):
    """What a group answers to a client; the numbers are Kafka's error codes."""

    UNKNOWN = -1
    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    UNSUPPORTED_VERSION = 35
    INVALID_REQUEST = 42
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    INVALID_REGULAR_EXPRESSION = 128


class GroupState(StrEnum):
    """The life of a group; the words are those that Kafka's tools show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    ASSIGNING = "Assigning"
    """Of the consumer protocol, as the next one: the targets are older than the group."""
    RECONCILING = "Reconciling"
    """Not every member has what it is to have yet."""
    STABLE = "Stable"
    DEAD = "Dead"


class MemberProtocol(NamedTuple):
    """A way of sharing work that a member offers, most wanted first in its list."""

    name: str
    metadata: bytes


class MemberRecord(NamedTuple):
    """One member, as the group log keeps it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]
    assignment: bytes

    @property
    def size_bytes(self) -> int:
        """All that a client chose, and what it takes around each protocol. In the log it is less."""
        names = sum(map(_text_bytes, (self.member_id, self.instance_id or "", self.client_id, self.client_host)))
        offered = sum(_text_bytes(p.name) + len(p.metadata) + _PROTOCOL_BYTES for p in self.protocols)
        return _MEMBER_BYTES + names + offered + len(self.assignment)


def _text_bytes(text: str) -> int:
    """The most it takes, in memory or as UTF-8."""
    return len(text) if text.isascii() else 4 * len(text)


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """One group, as the group log keeps it: stable when it has members, empty when not."""

    generation: int
    protocol_type: str | None
    protocol_name: str | None
    leader: str | None
    members: tuple[MemberRecord, ...]

    @property
    def size_bytes(self) -> int:
        """What its members take; in the log it is less."""
        return sum(member.size_bytes for member in self.members)

    def with_returned(self, returned: MemberRecord) -> GroupRecord:
        """The same with a static member in the place of its instance's former self, whose lead it keeps."""
        former = next((member for member in self.members if member.instance_id == returned.instance_id), None)
        if former is None or returned.instance_id is None:
            return self
        members = tuple([returned if member is former else member for member in self.members])
        leader = returned.member_id if self.leader == former.member_id else self.leader
        return GroupRecord(self.generation, self.protocol_type, self.protocol_name, leader, members)


class CommittedOffset(NamedTuple):
    """Where a group is in a shard. `expires_ms` is set only by old clients that ask for a retention of their own."""

    offset: int
    epoch: int
    metadata: str
    committed_ms: int
    expires_ms: int = NEVER_EXPIRES
