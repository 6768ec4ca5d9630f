"""The state of one group: state, generation, members, deadlines; and queries about it. The half of the group machine
that changes nothing: `machines.groups.group` changes it, this module reads it, restores it from the durable record, and
says which members are admitted. Cost: O(1), except for the earliest deadline, a description and a record, which are
O(members).
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Final

from stratalog.machines.groups.group_events import GroupLimits, GroupStatus, JoinAnswer, MemberJoined, MemberSynced
from stratalog.machines.groups.group_members import Member, Roster, member_of
from stratalog.model.groups.group import GroupError, GroupRecord, GroupState

FOREVER = 1 << 62
_GROUP_BYTES, _MEMBER_BYTES, _PENDING_BYTES = 2_500, 1_200, 300

GROUP_TRANSITIONS: Final[dict[GroupState, frozenset[GroupState]]] = {
    GroupState.EMPTY: frozenset((GroupState.PREPARING_REBALANCE, GroupState.STABLE, GroupState.DEAD)),
    GroupState.PREPARING_REBALANCE: frozenset((GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.DEAD)),
    GroupState.COMPLETING_REBALANCE: frozenset((GroupState.PREPARING_REBALANCE, GroupState.STABLE, GroupState.DEAD)),
    GroupState.STABLE: frozenset((GroupState.PREPARING_REBALANCE, GroupState.DEAD)),
    GroupState.DEAD: frozenset(),
}
"""What each state of a classic group may become. Empty becomes Stable only when the durable record is restored."""


class GroupBook:
    """Plain state; every field but the last may be written by the machine."""

    __slots__ = (
        "_wake_ms",
        "generation",
        "group_id",
        "limits",
        "pending",
        "phase_deadline_ms",
        "protocol_name",
        "protocol_type",
        "roster",
        "state",
    )

    def __init__(self, group_id: str, limits: GroupLimits) -> None:
        self.group_id = group_id
        self.limits = limits
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.roster = Roster()
        self.pending: dict[str, int] = {}
        """Ids given with MEMBER_ID_REQUIRED and not used yet -> when they expire."""
        self.phase_deadline_ms = FOREVER
        """End of this phase: of joining (Preparing), of asking for assignments (Completing, Stable)."""
        self._wake_ms = FOREVER
        """Lower bound of all deadlines: heartbeats move theirs without touching it."""

    def restore(self, record: GroupRecord, now_ms: int, *, must_join_again: bool) -> None:
        self.generation = record.generation
        self.protocol_type = record.protocol_type
        self.protocol_name = record.protocol_name
        for member_record in record.members:
            member = Member(member_record)
            self.roster.add(member)
            self.touch(member, now_ms)
        if record.leader is not None and record.leader in self.roster:
            self.roster.leader = record.leader
        if not len(self.roster):
            return
        self.state = GroupState.PREPARING_REBALANCE if must_join_again else GroupState.STABLE
        if must_join_again:
            self.phase_until(now_ms + self.roster.rebalance_timeout_ms())

    # Admission ---------------------------------------------------------------------------------------------------
    def join_refusal(self, event: MemberJoined) -> GroupError:
        limits = self.limits
        if self.state is GroupState.DEAD:
            return GroupError.COORDINATOR_NOT_AVAILABLE
        if not limits.min_session_timeout_ms <= event.session_timeout_ms <= limits.max_session_timeout_ms:
            return GroupError.INVALID_SESSION_TIMEOUT
        if not event.protocol_type or not event.protocols:
            return GroupError.INCONSISTENT_GROUP_PROTOCOL
        known = self.known_member(event)
        if not self._has_room(known, event):
            return GroupError.GROUP_MAX_SIZE_REACHED
        if len(self.roster):
            if event.protocol_type != self.protocol_type:
                return GroupError.INCONSISTENT_GROUP_PROTOCOL
            if not self.roster.admits(event.protocols):
                return GroupError.INCONSISTENT_GROUP_PROTOCOL
        return GroupError.NONE

    def known_member(self, event: MemberJoined) -> Member | None:
        """The member that this JoinGroup is of, unless it is a new one."""
        known = self.roster.get(event.member_id)
        if known is None and event.instance_id is not None:
            known = self.roster.get(self.roster.id_of_instance(event.instance_id) or "")
        return known

    def growth_bytes(self, event: MemberJoined, known: Member | None) -> int:
        """How much more the group would take with what this JoinGroup brings."""
        wished = member_of(event, event.member_id or event.new_member_id).record().size_bytes
        return wished if known is None else wished + len(known.assignment) - known.size_bytes

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, with the members that only have an id so far."""
        members = self.roster.size_bytes + _MEMBER_BYTES * len(self.roster) + _PENDING_BYTES * len(self.pending)
        return _GROUP_BYTES + 4 * len(self.group_id) + members

    def _has_room(self, known: Member | None, event: MemberJoined) -> bool:
        grown = self.growth_bytes(event, known)
        if grown > 0 and self.roster.size_bytes + grown > self.limits.max_bytes:
            return False
        if known is not None:
            return self.state is not GroupState.PREPARING_REBALANCE or (
                known.join_waiter is not None or self.roster.joined_count < self.limits.max_members
            )
        taken = self.roster.joined_count if self.state is GroupState.PREPARING_REBALANCE else len(self.roster)
        if event.member_id not in self.pending:
            taken += len(self.pending)
        return taken < self.limits.max_members

    def member_error(self, member_id: str, instance_id: str | None) -> GroupError:
        if instance_id is not None:
            present = self.roster.id_of_instance(instance_id)
            if present is None:
                return GroupError.UNKNOWN_MEMBER_ID
            if present != member_id:
                return GroupError.FENCED_INSTANCE_ID
        return GroupError.NONE if member_id in self.roster else GroupError.UNKNOWN_MEMBER_ID

    def sync_refusal(self, event: MemberSynced) -> GroupError:
        if self.state is GroupState.DEAD:
            return GroupError.COORDINATOR_NOT_AVAILABLE
        error = self.member_error(event.member_id, event.instance_id)
        if error is not GroupError.NONE:
            return error
        if event.generation != self.generation:
            return GroupError.ILLEGAL_GENERATION
        if event.protocol_type is not None and event.protocol_type != self.protocol_type:
            return GroupError.INCONSISTENT_GROUP_PROTOCOL
        if event.protocol_name is not None and event.protocol_name != self.protocol_name:
            return GroupError.INCONSISTENT_GROUP_PROTOCOL
        if self.state is GroupState.PREPARING_REBALANCE:
            return GroupError.REBALANCE_IN_PROGRESS
        return GroupError.NONE

    def commit_error(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> GroupError:
        """Whether this committer may commit offsets now. A member's commit also counts as a heartbeat."""
        if self.state is GroupState.DEAD:
            return GroupError.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and self.state is GroupState.EMPTY:
            return GroupError.NONE  # a consumer that assigns itself, or an administrator
        if generation < 0 and not member_id and instance_id is None:
            return GroupError.UNKNOWN_MEMBER_ID
        error = self.member_error(member_id, instance_id)
        if error is GroupError.NONE and generation != self.generation:
            error = GroupError.ILLEGAL_GENERATION
        if error is GroupError.NONE and self.state is GroupState.COMPLETING_REBALANCE:
            error = GroupError.REBALANCE_IN_PROGRESS
        member = self.roster.get(member_id)
        if error is GroupError.NONE and member is not None:
            self.touch(member, now_ms)
        return error

    # Deadlines --------------------------------------------------------------------------------------------------
    def touch(self, member: Member, now_ms: int) -> None:
        member.session_deadline_ms = now_ms + member.session_timeout_ms
        self.wake_by(member.session_deadline_ms)

    def begin_sessions(self, now_ms: int) -> None:
        for member in self.roster:
            if not member.is_new:
                self.touch(member, now_ms)

    def await_newcomer(self, member: Member, now_ms: int) -> None:
        """It does not know its id yet, so its parked JoinGroup is all that is heard of it."""
        member.session_deadline_ms = now_ms + self.limits.new_member_join_timeout_ms
        self.wake_by(member.session_deadline_ms)

    def wake_by(self, deadline_ms: int) -> None:
        self._wake_ms = min(self._wake_ms, deadline_ms)

    def phase_until(self, deadline_ms: int) -> None:
        self.phase_deadline_ms = deadline_ms
        self.wake_by(deadline_ms)

    def next_deadline_ms(self) -> int | None:
        return None if self._wake_ms == FOREVER else self._wake_ms

    def is_due(self, now_ms: int) -> bool:
        return self._wake_ms <= now_ms

    def compute_deadline(self) -> None:
        """Find the earliest deadline again, once the ones that were due have been dealt with."""
        earliest = min(self.pending.values(), default=FOREVER)
        for member in self.roster:
            if member.is_new or (member.join_waiter is None and member.sync_waiter is None):
                earliest = min(earliest, member.session_deadline_ms)
        self._wake_ms = min(earliest, self.phase_deadline_ms)

    def join_answer(self, member: Member, *, leader: str | None = None, skip_assignment: bool = False) -> JoinAnswer:
        leads = member.member_id == (self.roster.leader if leader is None else leader)
        return JoinAnswer(
            GroupError.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol_name,
            (self.roster.leader or "") if leader is None else leader,
            skip_assignment,
            self.roster.joined_members(self.protocol_name) if leads else (),
        )

    # Descriptions -----------------------------------------------------------------------------------------------
    def status(self) -> GroupStatus:
        is_stable = self.state is GroupState.STABLE
        return GroupStatus(
            self.group_id,
            self.state,
            self.generation,
            self.protocol_type or "",
            (self.protocol_name or "") if is_stable else "",
            self.roster.leader or "",
            self.roster.statuses(self.protocol_name if is_stable else None),
        )

    def record(self, assignments: Mapping[str, bytes] | None = None) -> GroupRecord:
        """The group as it is to be kept; with assignments: as it is once these hold, members not named getting none."""
        members = tuple(
            member.record() if assignments is None else member.record(assignments.get(member.member_id, b""))
            for member in self.roster
        )
        return GroupRecord(self.generation, self.protocol_type, self.protocol_name, self.roster.leader, members)

    # Checking ---------------------------------------------------------------------------------------------------
    def check_invariants(self, returning: Set[int], *, is_awaited: bool) -> None:
        """`returning`: waiters of static members whose return is being made durable. `is_awaited`: something other than
        members will move the group on: the initial delay, or an append."""
        self.roster.check_invariants()
        for member in self.roster:
            if self.state is not GroupState.PREPARING_REBALANCE and member.join_waiter is not None:
                assert member.join_waiter in returning, f"{member.member_id} waits to join a group that is not joining"
            if self.state is not GroupState.COMPLETING_REBALANCE:
                assert member.sync_waiter is None, f"{member.member_id} waits for an assignment that no member makes"
        if self.state in (GroupState.EMPTY, GroupState.DEAD):
            assert not len(self.roster), f"a group that is {self.state} has members"
        else:
            assert len(self.roster) or self.pending or is_awaited, f"a group that is {self.state} has no members"
            assert self._wake_ms != FOREVER or is_awaited, f"a group that is {self.state} would never wake"
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            assert self.protocol_name is not None, f"a group that is {self.state} has chosen no protocol"
