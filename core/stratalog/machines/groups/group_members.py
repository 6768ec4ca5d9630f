"""The members of one group: their ids, the leader, and the protocol that they agree on.

Bookkeeping only; when to rebalance is decided in `machines.groups.group`. Cost: O(1) for everything but an election,
also in a group of ten thousand: joined members, protocols that all support and sizes are counted as they change.
Requires: a member that has been added is changed by the roster's own methods only, where it counts something.
Invariant: the leader is a member whenever there are members; each instance id names one member.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stratalog.machines.groups.group_events import (
    AnswerJoin,
    AnswerSync,
    GroupEffect,
    JoinAnswer,
    JoinedMember,
    MemberJoined,
    MemberStatus,
    SyncAnswer,
)
from stratalog.model.groups.group import GroupError, MemberProtocol, MemberRecord


class Member:
    """One member. A waiter is set while its JoinGroup or SyncGroup is parked."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "has_synced",
        "instance_id",
        "is_new",
        "join_waiter",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "seat",
        "session_deadline_ms",
        "session_timeout_ms",
        "size_bytes",
        "sync_waiter",
    )

    def __init__(self, record: MemberRecord) -> None:
        self.member_id = record.member_id
        self.instance_id = record.instance_id
        self.client_id = record.client_id
        self.client_host = record.client_host
        self.session_timeout_ms = record.session_timeout_ms
        self.rebalance_timeout_ms = record.rebalance_timeout_ms
        self.protocols = record.protocols
        self.assignment = record.assignment
        self.join_waiter: int | None = None
        self.sync_waiter: int | None = None
        self.is_new = False
        """It has never been answered, so it cannot know its id and cannot send heartbeats."""
        self.has_synced = True
        """It has asked for its assignment of this generation."""
        self.session_deadline_ms = 0
        self.seat = 0
        """Its place in the order of arrival."""
        self.size_bytes = 0
        """What the roster counted it as."""

    def is_expired(self, now_ms: int) -> bool:
        """A member whose request is parked cannot send heartbeats; only one that never got its id can run out."""
        if now_ms < self.session_deadline_ms:
            return False
        return self.is_new or (self.join_waiter is None and self.sync_waiter is None)

    def metadata_for(self, protocol_name: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        return b""

    def record(self, assignment: bytes | None = None) -> MemberRecord:
        """As the group log keeps it, with another assignment when one is given."""
        return MemberRecord(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.session_timeout_ms,
            self.rebalance_timeout_ms,
            self.protocols,
            self.assignment if assignment is None else assignment,
        )


def member_of(event: MemberJoined, member_id: str) -> Member:
    """A newcomer, parked until the rebalance ends."""
    member = Member(
        MemberRecord(
            member_id,
            event.instance_id,
            event.client_id,
            event.client_host,
            event.session_timeout_ms,
            event.rebalance_timeout_ms,
            event.protocols,
            b"",
        )
    )
    member.is_new = True
    member.join_waiter = event.waiter
    return member


class Roster:
    """Members by id, in the order they came; static members by instance id; and the leader."""

    __slots__ = ("_by_id", "_by_instance", "_last_seat", "_offered", "_seats", "joined_count", "leader", "size_bytes")

    def __init__(self) -> None:
        self._by_id: dict[str, Member] = {}
        self._seats: dict[int, Member] = {}
        self._last_seat = 0
        self._by_instance: dict[str, str] = {}
        self._offered: dict[str, int] = {}
        """Protocol -> how many members offer it."""
        self.leader: str | None = None
        self.joined_count = 0
        """Members whose JoinGroup is parked."""
        self.size_bytes = 0
        """The clients' bytes in all members: names, metadata, assignments."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._seats.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._by_id

    def get(self, member_id: str) -> Member | None:
        return self._by_id.get(member_id)

    def id_of_instance(self, instance_id: str) -> str | None:
        return self._by_instance.get(instance_id)

    def add(self, member: Member) -> None:
        self._last_seat += 1
        member.seat = self._last_seat
        self._seats[member.seat] = member
        self._by_id[member.member_id] = member
        if member.instance_id is not None:
            self._by_instance[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self._offer(member, 1)
        self.joined_count += member.join_waiter is not None
        self._count_bytes(member)

    def remove(self, member_id: str) -> Member | None:
        """The oldest of those who stay leads when the leader goes. What it has parked is the caller's to answer."""
        member = self._by_id.pop(member_id, None)
        if member is None:
            return None
        del self._seats[member.seat]
        if member.instance_id is not None and self._by_instance.get(member.instance_id) == member_id:
            del self._by_instance[member.instance_id]
        if self.leader == member_id:
            oldest = next(iter(self), None)
            self.leader = oldest.member_id if oldest is not None else None
        self._offer(member, -1)
        self.joined_count -= member.join_waiter is not None
        self.size_bytes -= member.size_bytes
        return member

    def rename(self, member: Member, new_member_id: str) -> None:
        """A static member came back under a new id; it keeps its place in the order and its lead."""
        old = member.member_id
        del self._by_id[old]
        self._by_id[new_member_id] = member
        member.member_id = new_member_id
        if member.instance_id is not None:
            self._by_instance[member.instance_id] = new_member_id
        if self.leader == old:
            self.leader = new_member_id
        self._count_bytes(member)

    def park_join(self, member: Member, waiter: int | None) -> None:
        """Its JoinGroup waits from now on, or none does."""
        self.joined_count += (waiter is not None) - (member.join_waiter is not None)
        member.join_waiter = waiter

    def refuse_parked(self, member: Member, error: GroupError, told_id: str) -> list[GroupEffect]:
        """Answer whatever the member, still here or removed just now, has parked."""
        effects: list[GroupEffect] = []
        if member.join_waiter is not None:
            effects.append(AnswerJoin(member.join_waiter, JoinAnswer(error, told_id)))
            self.joined_count -= self._by_id.get(member.member_id) is member
        if member.sync_waiter is not None:
            effects.append(AnswerSync(member.sync_waiter, SyncAnswer(error)))
        member.join_waiter = member.sync_waiter = None
        return effects

    def update_protocols(self, member: Member, event: MemberJoined) -> None:
        """It joined again, perhaps with other protocols and timeouts."""
        self._offer(member, -1)
        member.protocols = event.protocols
        self._offer(member, 1)
        member.session_timeout_ms = event.session_timeout_ms
        member.rebalance_timeout_ms = event.rebalance_timeout_ms
        member.client_id, member.client_host = event.client_id, event.client_host
        self._count_bytes(member)

    def assign(self, member: Member, assignment: bytes) -> None:
        grown = len(assignment) - len(member.assignment)
        member.assignment = assignment
        member.size_bytes += grown
        self.size_bytes += grown

    def _offer(self, member: Member, change: int) -> None:
        for name in {protocol.name for protocol in member.protocols}:
            count = self._offered.get(name, 0) + change
            if count:
                self._offered[name] = count
            else:
                del self._offered[name]

    def _count_bytes(self, member: Member) -> None:
        size_bytes = member.record().size_bytes
        self.size_bytes += size_bytes - member.size_bytes
        member.size_bytes = size_bytes

    def elect_joined(self) -> bool:
        """Make sure that a member whose JoinGroup is parked leads. False when there is none."""
        leader = self._by_id.get(self.leader) if self.leader is not None else None
        if leader is not None and leader.join_waiter is not None:
            return True
        for member in self:
            if member.join_waiter is not None:
                self.leader = member.member_id
                return True
        return False

    def rebalance_timeout_ms(self) -> int:
        return max((m.rebalance_timeout_ms for m in self), default=0)

    def all_joined(self) -> bool:
        return self.joined_count == len(self)

    def is_supported_by_all(self, protocol_name: str) -> bool:
        return self._offered.get(protocol_name, 0) == len(self)

    def admits(self, protocols: Iterable[MemberProtocol]) -> bool:
        """Whether a member with these protocols would leave the group at least one in common."""
        return any(self.is_supported_by_all(p.name) for p in protocols) if len(self) else any(True for _ in protocols)

    def elect_protocol(self) -> str | None:
        """Each member votes for its first protocol that all support; most votes win, ties go to the one that the
        oldest member wants more."""
        votes: dict[str, int] = {}
        for member in self:
            choice = next((p.name for p in member.protocols if self.is_supported_by_all(p.name)), None)
            if choice is not None:
                votes[choice] = votes.get(choice, 0) + 1
        if not votes:
            return None
        wishes = [p.name for p in next(iter(self)).protocols]
        return max(votes, key=lambda name: (votes[name], -wishes.index(name)))

    def joined_members(self, protocol_name: str | None) -> tuple[JoinedMember, ...]:
        return tuple(JoinedMember(m.member_id, m.instance_id, m.metadata_for(protocol_name)) for m in self)

    def statuses(self, protocol_name: str | None) -> tuple[MemberStatus, ...]:
        return tuple(
            MemberStatus(
                m.member_id, m.instance_id, m.client_id, m.client_host, m.metadata_for(protocol_name), m.assignment
            )
            for m in self
        )

    def check_invariants(self) -> None:
        assert (self.leader in self._by_id) if self._by_id else self.leader is None, "exactly one member leads"
        for key, member in self._by_id.items():
            assert member.member_id == key, f"member {key} is filed under another id"
            assert self._seats[member.seat] is member, f"member {key} has lost its seat"
        assert len(self._seats) == len(self._by_id), "a member left its seat behind"
        assert self.joined_count == sum(m.join_waiter is not None for m in self), "parked joins are miscounted"
        assert self.size_bytes == sum(m.record().size_bytes for m in self), "bytes are miscounted"
        for instance_id, member_id in self._by_instance.items():
            assert self._by_id[member_id].instance_id == instance_id, f"instance {instance_id} names a stranger"
