"""One consumer group (Kafka's classic protocol) as a machine: events in, effects out, no I/O and no clock.

The caller performs the effects in order, reports what became durable, and sends `TimePassed` when
`next_deadline_ms()` is reached. Member ids come from outside. Protocol metadata and assignments are opaque.

Life: Empty -> PreparingRebalance (members join) -> CompletingRebalance (the leader assigns) -> Stable, back to
PreparingRebalance on every change of membership, to Empty when the last member is gone, to Dead when the group leaves
this node.

Invariants: one leader; the generation never falls; a parked request is answered exactly once, at the latest when the
member's or the rebalance's deadline passes; no request waits while the group is stable, except for a static member's
return that is not yet durable. Cost: a heartbeat and a join are O(1); the end of a rebalance is O(members).
Source: docs/kafka.md "Groups"; KIP-62, 134, 345, 394, 814 and the behaviour of Kafka's coordinator.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from stratalog.machines.groups import group_events
from stratalog.machines.groups.group_book import FOREVER, GroupBook
from stratalog.machines.groups.group_members import Member, Roster, member_of
from stratalog.model.groups.group import GroupError, GroupRecord, GroupState


# What a group waits for while a record of it is being written to the log, by the ticket of `PersistGroup` or
# `PersistMember`.
@dataclass(frozen=True, slots=True)
class Assigning:
    """The leader's assignments are being made durable."""

    generation: int
    assignments: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Returning:
    """A static member came back to a stable group under a new id, which is being made durable."""

    generation: int
    member_id: str
    waiter: int
    answer: group_events.JoinAnswer


Awaiting: TypeAlias = Assigning | Returning | None
"""None: no request waits for the record."""


class Group:
    """The members of one group and their common generation."""

    __slots__ = ("_book", "_initial_remaining_ms", "_new_member_added", "_persisting", "_tickets")

    def __init__(
        self,
        group_id: str,
        limits: group_events.GroupLimits,
        record: GroupRecord | None = None,
        now_ms: int = 0,
        *,
        must_join_again: bool = False,
    ) -> None:
        """With a record: as it was durable, with fresh sessions, or (`must_join_again`) with a rebalance."""
        self._book = GroupBook(group_id, limits)
        self._persisting: dict[int, Awaiting] = {}
        self._tickets = 0
        self._initial_remaining_ms: int | None = None
        """Not None while an empty group waits for its first members: how much longer it may be prolonged."""
        self._new_member_added = False
        if record is not None:
            self._book.restore(record, now_ms, must_join_again=must_join_again)

    # Questions --------------------------------------------------------------------------------------------------
    @property
    def group_id(self) -> str:
        return self._book.group_id

    @property
    def state(self) -> GroupState:
        return self._book.state

    @property
    def generation(self) -> int:
        return self._book.generation

    @property
    def protocol_type(self) -> str | None:
        return self._book.protocol_type

    @property
    def members(self) -> Iterable[Member]:
        return self._book.roster

    @property
    def is_at_rest(self) -> bool:
        """No request waits for it, and no write of it to the log is under way."""
        return self.state is GroupState.STABLE and not self._persisting

    @property
    def has_pending_members(self) -> bool:
        return bool(self._book.pending)

    @property
    def is_blank(self) -> bool:
        """Nothing would be lost by forgetting the group, its offsets apart."""
        return self.state is GroupState.EMPTY and not (self.generation or self.protocol_type or self._book.pending)

    def next_deadline_ms(self) -> int | None:
        """When `TimePassed` is wanted; it may turn out to be too early, never too late."""
        return self._book.next_deadline_ms()

    def commit_error(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> GroupError:
        """Whether this committer may commit offsets now. A member's commit also counts as a heartbeat."""
        return self._book.commit_error(member_id, instance_id, generation, now_ms)

    def begin_sessions(self, now_ms: int) -> None:
        """Give all members fresh sessions: they may have sent heartbeats that could not be received."""
        self._book.begin_sessions(now_ms)

    def status(self) -> group_events.GroupStatus:
        return self._book.status()

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, its offsets apart."""
        return self._book.size_bytes

    def growth_bytes(self, event: group_events.MemberJoined) -> int:
        """How much more it would take with what this JoinGroup brings."""
        return self._book.growth_bytes(event, self._book.known_member(event))

    def record(self) -> GroupRecord:
        """The group as it is to be kept now."""
        return self._book.record()

    # Events -----------------------------------------------------------------------------------------------------
    def step(self, event: group_events.GroupEvent, now_ms: int) -> list[group_events.GroupEffect]:
        effects: list[group_events.GroupEffect] = []
        match event:
            case group_events.HeartbeatReceived():
                effects.append(group_events.AnswerHeartbeat(event.waiter, self._heartbeat(event, now_ms)))
            case group_events.MemberJoined():
                self._join(event, now_ms, effects)
            case group_events.MemberSynced():
                self._sync(event, now_ms, effects)
            case group_events.MembersLeft():
                self._leave(event, now_ms, effects)
            case group_events.GroupPersisted(ticket):
                self._persisted(self._persisting.pop(ticket, None), now_ms, effects)
            case group_events.PersistFailed(ticket, error):
                self._persist_failed(self._persisting.pop(ticket, None), error, now_ms, effects)
            case group_events.TimePassed():
                self._pass_time(now_ms, effects)
            case group_events.GroupClosed(error):
                self._close(error, effects)
            case _:
                assert_never(event)
        return effects

    # Joining ----------------------------------------------------------------------------------------------------
    def _join(self, event: group_events.MemberJoined, now_ms: int, effects: list[group_events.GroupEffect]) -> None:
        error = self._book.join_refusal(event)
        if error is GroupError.NONE and event.member_id and event.member_id not in self._book.pending:
            error = self._book.member_error(event.member_id, event.instance_id)
        if error is GroupError.NONE and event.member_id in self._book.pending and event.instance_id is not None:
            error = GroupError.UNKNOWN_MEMBER_ID  # an id given to a dynamic member
        if error is not GroupError.NONE:
            effects.append(group_events.AnswerJoin(event.waiter, group_events.JoinAnswer(error, event.member_id)))
            return
        if event.member_id in self._book.pending:
            del self._book.pending[event.member_id]
            self._add_member(event, event.member_id, now_ms, effects)
        elif event.member_id:
            self._rejoin(event, now_ms, effects)
        elif event.instance_id is not None and self._book.roster.id_of_instance(event.instance_id) is not None:
            self._return_static(event, now_ms, effects)
        elif event.instance_id is None and event.requires_known_id:
            self._book.pending[event.new_member_id] = now_ms + event.session_timeout_ms
            self._book.wake_by(now_ms + event.session_timeout_ms)
            answer = group_events.JoinAnswer(GroupError.MEMBER_ID_REQUIRED, event.new_member_id)
            effects.append(group_events.AnswerJoin(event.waiter, answer))
        else:
            self._add_member(event, event.new_member_id, now_ms, effects)
        self._complete_join_if_all_came(now_ms, effects)

    def _add_member(
        self, event: group_events.MemberJoined, member_id: str, now_ms: int, effects: list[group_events.GroupEffect]
    ) -> None:
        member = member_of(event, member_id)
        self._book.await_newcomer(member, now_ms)
        if not len(self._book.roster):
            self._book.protocol_type = event.protocol_type
        self._book.roster.add(member)
        self._new_member_added = True
        self._rebalance(now_ms, effects)

    def _rejoin(self, event: group_events.MemberJoined, now_ms: int, effects: list[group_events.GroupEffect]) -> None:
        member = self._book.roster.get(event.member_id)
        assert member is not None, "checked by _member_error"
        is_same = member.protocols == event.protocols
        is_leader = member.member_id == self._book.roster.leader
        if is_same and (
            self._book.state is GroupState.COMPLETING_REBALANCE
            or (self._book.state is GroupState.STABLE and not is_leader)
        ):
            # It missed the answer, or asks again: this generation still holds for it.
            self._replace_join_waiter(member, None, effects)
            self._book.touch(member, now_ms)
            effects.append(group_events.AnswerJoin(event.waiter, self._book.join_answer(member)))
            return
        self._update(member, event, effects)
        self._rebalance(now_ms, effects)

    def _return_static(
        self, event: group_events.MemberJoined, now_ms: int, effects: list[group_events.GroupEffect]
    ) -> None:
        """A static member came back without its id: it replaces its former id, which is fenced."""
        book, roster = self._book, self._book.roster
        former_leader = roster.leader or ""
        member = roster.get(roster.id_of_instance(event.instance_id or "") or "")
        assert member is not None, "checked by the caller"
        effects.extend(roster.refuse_parked(member, GroupError.FENCED_INSTANCE_ID, member.member_id))
        is_same = member.protocols == event.protocols
        roster.rename(member, event.new_member_id)
        self._update(member, event, effects)
        if member.is_new:
            book.await_newcomer(member, now_ms)  # it is parked again, and cannot send heartbeats yet
        else:
            book.touch(member, now_ms)
        if book.state is not GroupState.STABLE or not (is_same or roster.elect_protocol() == book.protocol_name):
            self._rebalance(now_ms, effects)
            return
        member.has_synced = True
        if event.can_skip_assignment:
            answer = self._book.join_answer(member, skip_assignment=roster.leader == member.member_id)
        else:
            # Before version 9 a returning leader must not assign: its answer names its former id as the leader.
            answer = self._book.join_answer(member, leader=former_leader)
        ticket = self._await_durable(Returning(book.generation, member.member_id, event.waiter, answer))
        effects.append(group_events.PersistMember(ticket, book.generation, member.record()))

    def _update(
        self, member: Member, event: group_events.MemberJoined, effects: list[group_events.GroupEffect]
    ) -> None:
        self._replace_join_waiter(member, event.waiter, effects)
        self._book.roster.update_protocols(member, event)

    def _replace_join_waiter(self, member: Member, waiter: int | None, effects: list[group_events.GroupEffect]) -> None:
        """A second JoinGroup of a member takes the first one's place; who still listens to that one tries again."""
        if member.join_waiter is not None:
            answer = group_events.JoinAnswer(GroupError.REBALANCE_IN_PROGRESS, member.member_id)
            effects.append(group_events.AnswerJoin(member.join_waiter, answer))
        self._book.roster.park_join(member, waiter)

    # Rebalancing ------------------------------------------------------------------------------------------------
    def _rebalance(self, now_ms: int, effects: list[group_events.GroupEffect]) -> None:
        """Begin a rebalance unless one is collecting members already."""
        if self._book.state in (GroupState.PREPARING_REBALANCE, GroupState.DEAD):
            return
        if self._book.state is GroupState.COMPLETING_REBALANCE:
            self._drop_assignments(GroupError.REBALANCE_IN_PROGRESS, now_ms, effects)
        delay = self._book.limits.initial_rebalance_delay_ms
        if self._book.state is GroupState.EMPTY and delay > 0:
            self._initial_remaining_ms = max(self._book.roster.rebalance_timeout_ms() - delay, 0)
            self._new_member_added = False
            self._book.phase_until(now_ms + delay)
        else:
            self._initial_remaining_ms = None
            self._book.phase_until(now_ms + self._book.roster.rebalance_timeout_ms())
        self._book.state = GroupState.PREPARING_REBALANCE
        self._complete_join_if_all_came(now_ms, effects)

    def _drop_assignments(self, error: GroupError, now_ms: int, effects: list[group_events.GroupEffect]) -> None:
        for member in self._book.roster:
            self._book.roster.assign(member, b"")
            if member.sync_waiter is not None:
                effects.append(group_events.AnswerSync(member.sync_waiter, group_events.SyncAnswer(error)))
                member.sync_waiter = None
                self._book.touch(member, now_ms)

    def _complete_join_if_all_came(self, now_ms: int, effects: list[group_events.GroupEffect]) -> None:
        if (
            self._book.state is GroupState.PREPARING_REBALANCE
            and self._initial_remaining_ms is None
            and not self._book.pending
            and self._book.roster.all_joined()
        ):
            self._complete_join(now_ms, effects)

    def _end_of_joining(self, now_ms: int, effects: list[group_events.GroupEffect]) -> None:
        """The time to join is over; an empty group's first one is prolonged while newcomers keep arriving."""
        remaining = self._initial_remaining_ms
        if remaining and self._new_member_added:
            delay = min(self._book.limits.initial_rebalance_delay_ms, remaining)
            self._new_member_added = False
            self._initial_remaining_ms = max(remaining - delay, 0)
            self._book.phase_until(now_ms + delay)
            return
        self._complete_join(now_ms, effects)

    def _complete_join(self, now_ms: int, effects: list[group_events.GroupEffect]) -> None:
        """Go on with those who came. Static members who did not come stay until their session ends."""
        for member in list(self._book.roster):
            if member.join_waiter is None and member.instance_id is None:
                self._book.roster.remove(member.member_id)
        self._initial_remaining_ms = None
        if len(self._book.roster) and not self._book.roster.elect_joined():
            self._book.phase_until(now_ms + self._book.roster.rebalance_timeout_ms())  # no member can lead yet
            return
        self._book.generation += 1
        if not len(self._book.roster):
            self._book.protocol_name = None
            self._book.state = GroupState.EMPTY
            self._book.phase_deadline_ms = FOREVER
            self._persist(None, self._book.record(), effects)
            return
        self._book.protocol_name = self._book.roster.elect_protocol()
        self._book.state = GroupState.COMPLETING_REBALANCE
        self._book.phase_until(now_ms + self._book.roster.rebalance_timeout_ms())
        for member in self._book.roster:
            member.has_synced = False
            member.is_new = False
            self._book.roster.assign(member, b"")
            if member.join_waiter is not None:
                effects.append(group_events.AnswerJoin(member.join_waiter, self._book.join_answer(member)))
                self._book.roster.park_join(member, None)
                self._book.touch(member, now_ms)

    # Assigning --------------------------------------------------------------------------------------------------
    def _sync(self, event: group_events.MemberSynced, now_ms: int, effects: list[group_events.GroupEffect]) -> None:
        error = self._book.sync_refusal(event)
        if error is not GroupError.NONE:
            effects.append(group_events.AnswerSync(event.waiter, group_events.SyncAnswer(error)))
            return
        member = self._book.roster.get(event.member_id)
        assert member is not None, "checked by _sync_refusal"
        member.has_synced = True
        if self._book.state is GroupState.STABLE:
            self._book.touch(member, now_ms)
            effects.append(group_events.AnswerSync(event.waiter, self._sync_answer(member)))
            return
        if member.sync_waiter is not None:
            effects.append(
                group_events.AnswerSync(member.sync_waiter, group_events.SyncAnswer(GroupError.REBALANCE_IN_PROGRESS))
            )
        member.sync_waiter = event.waiter
        if member.member_id == self._book.roster.leader and not self._is_assigning():
            self._take_assignments(dict(event.assignments), now_ms, effects)

    def _is_assigning(self) -> bool:
        return any(
            isinstance(d, Assigning) and d.generation == self._book.generation for d in self._persisting.values()
        )

    def _take_assignments(
        self, assignments: dict[str, bytes], now_ms: int, effects: list[group_events.GroupEffect]
    ) -> None:
        """Members the leader forgot get an empty assignment; it is given out once it is durable."""
        record = self._book.record(assignments)
        if record.size_bytes > self._book.limits.max_bytes:
            self._drop_assignments(GroupError.UNKNOWN, now_ms, effects)
            self._rebalance(now_ms, effects)
            return
        chosen = {m.member_id: m.assignment for m in record.members}
        self._persist(Assigning(self._book.generation, chosen), record, effects)

    def _sync_answer(self, member: Member) -> group_events.SyncAnswer:
        return group_events.SyncAnswer(
            GroupError.NONE, self._book.protocol_type, self._book.protocol_name, member.assignment
        )

    def _persist(self, awaiting: Awaiting, record: GroupRecord, effects: list[group_events.GroupEffect]) -> None:
        effects.append(group_events.PersistGroup(self._await_durable(awaiting), record))

    def _await_durable(self, awaiting: Awaiting) -> int:
        self._tickets += 1
        self._persisting[self._tickets] = awaiting
        return self._tickets

    def _persisted(self, done: Awaiting, now_ms: int, effects: list[group_events.GroupEffect]) -> None:
        match done:
            case Assigning():
                if self._book.state is GroupState.COMPLETING_REBALANCE and done.generation == self._book.generation:
                    self._book.state = GroupState.STABLE
                    for member in self._book.roster:
                        self._book.roster.assign(member, done.assignments.get(member.member_id, b""))
                        if member.sync_waiter is not None:
                            effects.append(group_events.AnswerSync(member.sync_waiter, self._sync_answer(member)))
                            member.sync_waiter = None
                            self._book.touch(member, now_ms)
            case Returning():
                self._answer_returned(done, done.answer, now_ms, effects)
            case None:
                pass
            case _:
                assert_never(done)

    def _persist_failed(
        self, failed: Awaiting, error: GroupError, now_ms: int, effects: list[group_events.GroupEffect]
    ) -> None:
        match failed:
            case Assigning():
                if self._book.state is GroupState.COMPLETING_REBALANCE and failed.generation == self._book.generation:
                    self._drop_assignments(error, now_ms, effects)
                    self._rebalance(now_ms, effects)
            case Returning():
                # The former id stays fenced; the client joins again, and its new id is written then.
                self._answer_returned(failed, group_events.JoinAnswer(error, ""), now_ms, effects)
            case None:
                pass
            case _:
                assert_never(failed)

    def _answer_returned(
        self, returned: Returning, answer: group_events.JoinAnswer, now_ms: int, effects: list[group_events.GroupEffect]
    ) -> None:
        """Unless a rebalance began meanwhile: then that one answers."""
        member = self._book.roster.get(returned.member_id)
        if self._book.state is GroupState.STABLE and member is not None and member.join_waiter == returned.waiter:
            self._book.roster.park_join(member, None)
            self._book.touch(member, now_ms)
            effects.append(group_events.AnswerJoin(returned.waiter, answer))

    # Staying and leaving ----------------------------------------------------------------------------------------
    def _heartbeat(self, event: group_events.HeartbeatReceived, now_ms: int) -> GroupError:
        if self._book.state is GroupState.DEAD:
            return GroupError.COORDINATOR_NOT_AVAILABLE
        error = self._book.member_error(event.member_id, event.instance_id)
        if error is not GroupError.NONE:
            return error
        if event.generation != self._book.generation:
            return GroupError.ILLEGAL_GENERATION
        member = self._book.roster.get(event.member_id)
        assert member is not None, "checked by _member_error"
        self._book.touch(member, now_ms)
        if self._book.state is GroupState.PREPARING_REBALANCE:
            return GroupError.REBALANCE_IN_PROGRESS
        return GroupError.NONE

    def _leave(self, event: group_events.MembersLeft, now_ms: int, effects: list[group_events.GroupEffect]) -> None:
        if self._book.state is GroupState.DEAD:
            errors = [GroupError.COORDINATOR_NOT_AVAILABLE] * len(event.members)
        else:
            errors = [self._leave_one(leaving, now_ms, effects) for leaving in event.members]
        effects.append(group_events.AnswerLeave(event.waiter, tuple(errors)))
        self._complete_join_if_all_came(now_ms, effects)

    def _leave_one(
        self, leaving: group_events.LeavingMember, now_ms: int, effects: list[group_events.GroupEffect]
    ) -> GroupError:
        member_id = leaving.member_id
        if not member_id and leaving.instance_id is not None:
            member_id = self._book.roster.id_of_instance(leaving.instance_id) or ""
        if leaving.instance_id is None and self._book.pending.pop(member_id, None) is not None:
            return GroupError.NONE
        error = self._book.member_error(member_id, leaving.instance_id)
        if error is GroupError.NONE:
            self._remove(member_id, now_ms, effects)
        return error

    def _remove(self, member_id: str, now_ms: int, effects: list[group_events.GroupEffect]) -> None:
        """The caller continues with `_complete_join_if_all_came`, so that several members that leave at once make one
        rebalance."""
        member = self._book.roster.remove(member_id)
        assert member is not None, "the caller looked it up"
        effects.extend(self._book.roster.refuse_parked(member, GroupError.UNKNOWN_MEMBER_ID, ""))
        if self._book.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._begin_without(now_ms, effects)

    def _begin_without(self, now_ms: int, effects: list[group_events.GroupEffect]) -> None:
        """Someone left a settled group: the others must join again."""
        if self._book.state is GroupState.COMPLETING_REBALANCE:
            self._drop_assignments(GroupError.REBALANCE_IN_PROGRESS, now_ms, effects)
        self._book.state = GroupState.PREPARING_REBALANCE
        self._initial_remaining_ms = None
        self._book.phase_until(now_ms + self._book.roster.rebalance_timeout_ms())

    # Time -------------------------------------------------------------------------------------------------------
    def _pass_time(self, now_ms: int, effects: list[group_events.GroupEffect]) -> None:
        if not self._book.is_due(now_ms) or self._book.state is GroupState.DEAD:
            return
        for member_id in [m for m, deadline_ms in self._book.pending.items() if deadline_ms <= now_ms]:
            del self._book.pending[member_id]
        for member in [m for m in self._book.roster if m.is_expired(now_ms)]:
            self._remove(member.member_id, now_ms, effects)
        self._complete_join_if_all_came(now_ms, effects)
        if self._book.phase_deadline_ms <= now_ms:
            self._book.phase_deadline_ms = FOREVER
            if self._book.state is GroupState.PREPARING_REBALANCE:
                self._end_of_joining(now_ms, effects)
            else:
                self._end_of_syncing(now_ms, effects)
        self._book.compute_deadline()

    def _end_of_syncing(self, now_ms: int, effects: list[group_events.GroupEffect]) -> None:
        """A member that has not asked for its assignment by now will not do so."""
        for member in [m for m in self._book.roster if not m.has_synced]:
            self._remove(member.member_id, now_ms, effects)
        self._complete_join_if_all_came(now_ms, effects)

    def _close(self, error: GroupError, effects: list[group_events.GroupEffect]) -> None:
        for member in self._book.roster:
            effects.extend(self._book.roster.refuse_parked(member, error, member.member_id))
        self._book.roster = Roster()
        self._book.pending.clear()
        self._persisting.clear()
        self._book.phase_deadline_ms = FOREVER
        self._book.compute_deadline()
        self._book.state = GroupState.DEAD

    # Checking ---------------------------------------------------------------------------------------------------
    def check_invariants(self) -> None:
        returning = {d.waiter for d in self._persisting.values() if isinstance(d, Returning)}
        is_awaited = self._initial_remaining_ms is not None or bool(self._persisting)
        self._book.check_invariants(returning, is_awaited=is_awaited)
