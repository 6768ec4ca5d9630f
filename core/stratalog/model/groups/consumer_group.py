"""Groups of the consumer protocol (KIP-848) as they are kept: members, epochs, what each has and shall have.

Plain data, shared by the machine, the group log's format and the node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple
from uuid import UUID

from stratalog.model.groups.group import MemberProtocol
from stratalog.model.ids import ShardKey

LEFT_FOR_A_WHILE = -2
"""Epoch of a static member that said it will be back."""

_MEMBER_BYTES, _SHARD_BYTES, _PROTOCOL_BYTES = 700, 60, 180


class MemberState(IntEnum):
    """How far a member is on its way to its target. The numbers are those of the group log."""

    STABLE = 0
    """It has all of its target that it is to have at its epoch."""
    UNREVOKED = 1
    """It is to give shards up, and has not said yet that it did."""
    UNRELEASED = 2
    """It waits for shards that others have not given up yet."""


class PlacesByName(NamedTuple):
    """Shards of one topic, as classic clients name them."""

    topic: str
    shards: tuple[int, ...]


class Subscription(NamedTuple):
    """What a classic consumer says in its metadata."""

    topics: tuple[str, ...]
    owned: tuple[PlacesByName, ...] = ()
    rack_id: str | None = None


class ClassicSide(NamedTuple):
    """What a member that speaks the classic protocol said of itself, beyond what all members say."""

    session_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]

    @property
    def size_bytes(self) -> int:
        return sum(_PROTOCOL_BYTES + 4 * len(name) + len(metadata) for name, metadata in self.protocols)


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """One member.

    Invariant: `assigned` and `revoking` share nothing; `revoking` is empty but in UNREVOKED.
    """

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = 300_000
    topic_names: tuple[str, ...] = ()
    """Subscribed by name, sorted."""
    topic_regex: str = ""
    """Subscribed by a regular expression (RE2) that a whole name must match; empty: by none."""
    assignor: str = ""
    """The server-side assignor that it asks for; empty: any."""
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: frozenset[ShardKey] = frozenset()
    """It may use these."""
    revoking: frozenset[ShardKey] = frozenset()
    """Shards that the member has and must give up. No other member gets them before it confirms that."""
    target: frozenset[ShardKey] = frozenset()
    """What it is to have at the group's target epoch."""
    classic: ClassicSide | None = None
    """Not None: it speaks the classic protocol (docs/group-migration.md)."""

    @property
    def held(self) -> frozenset[ShardKey]:
        """Shards that no other member may have now."""
        return self.assigned | self.revoking

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        names = (self.member_id, self.instance_id or "", self.client_id, self.client_host, self.topic_regex)
        texts = sum(map(len, (*names, self.rack_id or "", self.assignor, *self.topic_names)))
        shards = len(self.assigned) + len(self.revoking) + len(self.target)
        classic = 0 if self.classic is None else self.classic.size_bytes
        return _MEMBER_BYTES + 4 * texts + _SHARD_BYTES * (shards + len(self.topic_names)) + classic


@dataclass(frozen=True, slots=True)
class ConsumerGroupRecord:
    """One whole group, as the group log keeps it."""

    sequence: int
    """How many times it was written: a change rests on the write before it."""
    epoch: int
    """Grows with each change of members, subscriptions or topics."""
    target_epoch: int
    """For which epoch the targets were made."""
    assignor: str
    topics: Mapping[UUID, int]
    """Subscribed topics, and how many shards each had when the targets were made or are to be made."""
    members: Mapping[str, ConsumerMember] = field(default_factory=dict)

    @property
    def generation(self) -> int:
        return self.epoch

    def with_change(self, change: ConsumerGroupChange) -> ConsumerGroupRecord:
        """The same for a change that rests on a write that is not in the log: no member has learnt of it."""
        if change.sequence != self.sequence + 1:
            return self
        members = dict(self.members)
        for member_id in change.removed:
            members.pop(member_id, None)
        for member in change.members:
            members[member.member_id] = member
        head = change.epoch, change.target_epoch, change.assignor, change.topics
        return ConsumerGroupRecord(change.sequence, *head, members)


@dataclass(frozen=True, slots=True)
class ConsumerGroupChange:
    """What one step changed of a group: its head as a whole, and the members that are others now."""

    sequence: int
    epoch: int
    target_epoch: int
    assignor: str
    topics: Mapping[UUID, int]
    members: tuple[ConsumerMember, ...]
    removed: tuple[str, ...]
