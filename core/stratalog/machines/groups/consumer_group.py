"""One group of the consumer protocol (KIP-848) as a machine: events in, effects out, no I/O and no clock.

The coordinator decides the assignment (`machines.groups.assignors`), and moves each member to it independently: a
member gives up shards that it shall not have any more, confirms that, and only then another member gets them. Members
do not wait for each other, and there is no barrier.

The group has an epoch, which grows with each change of members, subscriptions or topics, and a target for the newest
epoch at which it was asked for. A member has an epoch, too: it is at the target's once it has given up what it must.
Its heartbeats and commits name it, so a member that was removed, or has given shards up since, is fenced.

Invariants: no shard is held by two members; nothing is answered before all that was changed up to then is durable; a
parked request is answered exactly once; epochs never fall.
When a write fails, no member has learnt of its changes: the whole group is then written again before any member does.
Cost: a heartbeat that changes nothing is a few look-ups; a change of the group O(members + shards).
Source: KIP-848; docs/kafka.md "Groups".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never
from uuid import UUID

from stratalog.machines.groups import consumer_group_events, group_events
from stratalog.machines.groups.assignors import ASSIGNORS, DEFAULT_ASSIGNOR, Subscriber
from stratalog.machines.groups.classic_members import (
    classic_arrived,
    classic_error,
    must_join_again,
    placed,
    protocol_of,
    sync_error,
)
from stratalog.machines.groups.consumer_answers import WaitingAnswers
from stratalog.machines.groups.consumer_arrivals import JOINS, LEAVES, arrived, with_subscription
from stratalog.machines.groups.consumer_roster import ConsumerRoster
from stratalog.machines.groups.consumer_sessions import ConsumerSessions
from stratalog.machines.groups.reconciling import reconciled
from stratalog.machines.groups.subscriptions import Subscriptions, subscription_of
from stratalog.model.groups.consumer_group import (
    LEFT_FOR_A_WHILE,
    ConsumerGroupChange,
    ConsumerGroupRecord,
    ConsumerMember,
    MemberState,
)
from stratalog.model.groups.group import CONSUMER_PROTOCOL_TYPE, GroupError, GroupState
from stratalog.model.ids import ShardKey

_TARGET_UNITS_PER_MS, _TARGETS_AHEAD_MS = 25, 2_000
"""Members and shards to make targets for, at 2 to 4 us each: a tenth of a core at most, but for a short burst."""


class ConsumerGroup:
    """The members of one group."""

    __slots__ = (
        "_answers",
        "_dead",
        "_is_whole_due",
        "_roster",
        "_sequence",
        "_sessions",
        "_subscriptions",
        "_targets_paid_until_ms",
        "_written",
        "assignor",
        "epoch",
        "group_id",
        "limits",
        "target_epoch",
        "topics",
    )

    def __init__(
        self,
        group_id: str,
        limits: consumer_group_events.ConsumerLimits,
        record: ConsumerGroupRecord | None = None,
        now_ms: int = 0,
        former_generation: int = 0,
        *,
        is_in_log: bool = True,
    ) -> None:
        """With a record: the group as it was made durable, or (not `is_in_log`) as it was in the other protocol; its
        members get a fresh session each. Else a new group, whose epochs continue from the generations of the other
        protocol that it used before."""
        self.group_id = group_id
        self.limits = limits
        self.epoch = record.epoch if record else former_generation
        self.target_epoch = record.target_epoch if record else former_generation
        self.assignor = record.assignor if record else DEFAULT_ASSIGNOR
        self.topics: Mapping[UUID, int] = record.topics if record else {}
        self._roster = ConsumerRoster()
        self._sessions = ConsumerSessions()
        self._subscriptions = Subscriptions()
        self._targets_paid_until_ms = 0
        self._is_whole_due = record is None or not is_in_log
        self._sequence = record.sequence if record else 0
        """Of the newest write; its ticket, too."""
        self._answers = WaitingAnswers()
        self._written = self._head()
        self._dead: GroupError | None = None
        for member in record.members.values() if record else ():
            self._roster.put(member)
            self._begin_session(member, now_ms)
            if member.state is MemberState.UNREVOKED:
                self._sessions.await_member_action(member.member_id, now_ms + member.rebalance_timeout_ms)
        self._roster.changed.clear()

    # Questions --------------------------------------------------------------------------------------------------
    @property
    def members_by_id(self) -> Mapping[str, ConsumerMember]:
        return self._roster.by_id

    @property
    def state(self) -> GroupState:
        if self._dead is not None:
            return GroupState.DEAD
        if not self.members_by_id:
            return GroupState.EMPTY
        if self.epoch > self.target_epoch:
            return GroupState.ASSIGNING
        is_settled = all(
            member.state is MemberState.STABLE and member.epoch == self.target_epoch
            for member in self.members_by_id.values()
            if member.epoch != LEFT_FOR_A_WHILE
        )
        return GroupState.STABLE if is_settled else GroupState.RECONCILING

    @property
    def generation(self) -> int:
        return self.epoch

    @property
    def protocol_type(self) -> str | None:
        """None: it never had members."""
        return CONSUMER_PROTOCOL_TYPE if self.epoch else None

    @property
    def has_pending_members(self) -> bool:
        return False

    @property
    def is_blank(self) -> bool:
        """Nothing would be lost by forgetting the group, its offsets apart."""
        return not self.members_by_id and self.epoch == 0 and not self._answers.is_writing

    @property
    def is_settled(self) -> bool:
        """Nothing of it is on its way to the log."""
        return not self._answers.is_writing and not self._is_whole_due

    @property
    def is_to_be_classic(self) -> bool:
        """Only classic members are left, and that is settled: the caller makes a classic group of it."""
        count = self._roster.classic_count
        is_over = bool(count) and count == len(self._roster) and not self._answers.is_writing
        return is_over and self.limits.may_downgrade and self._dead is None

    @property
    def size_bytes(self) -> int:
        return self._roster.size_bytes

    def next_deadline_ms(self) -> int | None:
        return self._sessions.next_ms()

    def begin_sessions(self, now_ms: int) -> None:
        for member in self.members_by_id.values():
            self._begin_session(member, now_ms)

    def record(self) -> ConsumerGroupRecord:
        return ConsumerGroupRecord(self._sequence, *self._head(), dict(self.members_by_id))

    def status(self) -> consumer_group_events.ConsumerGroupStatus:
        members = tuple(self.members_by_id.values())
        return consumer_group_events.ConsumerGroupStatus(
            self.group_id, self.state, self.epoch, self.target_epoch, self.assignor, members
        )

    def commit_error(self, member_id: str, instance_id: str | None, epoch: int, now_ms: int) -> GroupError:
        """Whether this client may commit offsets now, or fetch them as a member."""
        if self._dead is not None:
            return GroupError.COORDINATOR_NOT_AVAILABLE
        if epoch < 0 and not self.members_by_id:
            return GroupError.NONE  # a consumer that assigns itself, or an administrator
        member = self._roster.get(member_id)
        if member is None or member.classic is None:
            return self.member_error(member_id, epoch)
        error = classic_error(self._roster, member_id, instance_id, epoch)
        if error is GroupError.NONE:
            self._begin_session(member, now_ms)
        return error

    def member_error(self, member_id: str, epoch: int) -> GroupError:
        """Whether this is a member, and at this epoch."""
        member = self.members_by_id.get(member_id)
        if member is None:
            return GroupError.UNKNOWN_MEMBER_ID
        return GroupError.NONE if epoch == member.epoch else GroupError.STALE_MEMBER_EPOCH

    # Events -----------------------------------------------------------------------------------------------------
    def step(
        self, event: consumer_group_events.ConsumerGroupEvent, now_ms: int
    ) -> list[consumer_group_events.ConsumerGroupEffect]:
        effects: list[consumer_group_events.ConsumerGroupEffect] = []
        match event:
            case consumer_group_events.ConsumerHeartbeat(waiter):
                answer = self._heartbeat(event, now_ms)
                self._persist(effects)
                self._answers.give(consumer_group_events.AnswerConsumer(waiter, answer), effects)
            case consumer_group_events.ClassicJoined(join):
                joined = self._join_classic(event, now_ms)
                self._persist(effects)
                self._answers.give(group_events.AnswerJoin(join.waiter, joined), effects)
            case consumer_group_events.ClassicBeat(beat):
                error = self._beat_classic(event, now_ms)
                self._persist(effects)
                effects.append(group_events.AnswerHeartbeat(beat.waiter, error))
            case group_events.MemberSynced(waiter):
                self._answers.give(
                    consumer_group_events.AnswerShare(waiter, self._share_classic(event, now_ms)), effects
                )
            case group_events.MembersLeft(waiter, leavers):
                errors = tuple([self._leave_by_word(leaving) for leaving in leavers])
                self._persist(effects)
                self._answers.give(group_events.AnswerLeave(waiter, errors), effects)
            case group_events.GroupPersisted(ticket):
                self._answers.write_done(ticket, effects)
            case group_events.PersistFailed(ticket, failure):
                self._is_whole_due = True
                self._answers.write_failed(ticket, failure, effects)
                # Fields that were noted as unchanged must be written again, because they may not be in the log.
                self._roster.changed.update(dict.fromkeys(self.members_by_id))
            case group_events.TimePassed():
                for member_id in self._sessions.due(now_ms):
                    if member_id in self.members_by_id:
                        self._remove(member_id)
                self._persist(effects)
            case group_events.GroupClosed(reason):
                self._dead = reason
                self._answers.close(reason, effects)
                self._roster = ConsumerRoster()
                self._sessions = ConsumerSessions()
            case _:
                assert_never(event)
        return effects

    # Writing and answering --------------------------------------------------------------------------------------
    def _persist(self, effects: list[consumer_group_events.ConsumerGroupEffect]) -> None:
        roster = self._roster
        is_same = not roster.changed and not roster.removed and self._written == self._head()
        if is_same or self._dead is not None:
            return
        self._sequence += 1
        entry: ConsumerGroupRecord | ConsumerGroupChange
        if self._is_whole_due:
            entry, self._is_whole_due = self.record(), False
        else:
            members = tuple([roster.by_id[one] for one in roster.changed if one in roster.by_id])
            removed = tuple([one for one in roster.removed if one not in roster.by_id])
            entry = ConsumerGroupChange(self._sequence, *self._head(), members, removed)
        roster.changed, roster.removed, self._written = {}, {}, self._head()
        self._answers.write_begun(self._sequence)
        effects.append(consumer_group_events.PersistConsumers(self._sequence, entry))

    def _head(self) -> tuple[int, int, str, Mapping[UUID, int]]:
        return self.epoch, self.target_epoch, self.assignor, self.topics

    # Heartbeats -------------------------------------------------------------------------------------------------
    def _heartbeat(
        self, event: consumer_group_events.ConsumerHeartbeat, now_ms: int
    ) -> consumer_group_events.ConsumerAnswer:
        if self._dead is not None:
            return consumer_group_events.ConsumerAnswer(GroupError.COORDINATOR_NOT_AVAILABLE)
        if event.member_epoch < 0:
            return self._leave(event)
        if event.assignor and event.assignor not in ASSIGNORS:
            served = ", ".join(ASSIGNORS)
            return consumer_group_events.ConsumerAnswer(
                GroupError.UNSUPPORTED_ASSIGNOR, f"no assignor {event.assignor!r}: use {served}"
            )
        found = arrived(self._roster, self.limits, event)
        if isinstance(found, consumer_group_events.ConsumerAnswer):
            return found
        before = self._roster.get(found.member_id)
        member = with_subscription(found, event)
        if (most := self._room_exceeded(member, event.room_bytes)) is not None:
            return consumer_group_events.ConsumerAnswer(
                GroupError.GROUP_MAX_SIZE_REACHED, f"the group's members would take more than {most}"
            )
        owned = frozenset() if event.owned is None and event.member_epoch == JOINS else event.owned
        after = self._take_in(member, owned, event.topics, now_ms)
        is_told_all = event.is_full or before is None or before.assigned != after.assigned
        is_behind = before is not None and event.member_epoch != before.epoch
        return consumer_group_events.ConsumerAnswer(
            GroupError.NONE,
            None,
            after.member_id,
            after.epoch,
            self.limits.heartbeat_interval_ms,
            after.assigned if is_told_all or is_behind else None,
        )

    def _room_exceeded(self, member: ConsumerMember, room_bytes: int) -> str | None:
        """None where there is room for the member as it is now."""
        former = self._roster.former_of(member)
        grown = member.size_bytes - (former.size_bytes if former is not None else 0)
        if grown <= 0 or (self._roster.size_bytes + grown <= self.limits.max_bytes and grown <= room_bytes):
            return None
        return f"{self.limits.max_bytes} bytes" if grown <= room_bytes else "this node has room for"

    def _take_in(
        self,
        member: ConsumerMember,
        owned: frozenset[ShardKey] | None,
        topics: consumer_group_events.SeenTopics,
        now_ms: int,
    ) -> ConsumerMember:
        """The member with its wishes of now, on its way to the newest target."""
        former = self._roster.former_of(member)
        if former is not None and former.member_id != member.member_id:
            self._drop(former.member_id)  # a static member that is back under another id
        if member != self._roster.get(member.member_id):
            self._roster.put(member)
        sees_other = self._sees_other(topics)
        self.epoch += sees_other or former is None or _subscription_inputs(former) != _subscription_inputs(member)
        self._make_targets(topics, now_ms)
        after = self._reconcile(member.member_id, owned, now_ms)
        self._begin_session(after, now_ms)
        return after

    def _reconcile(self, member_id: str, owned: frozenset[ShardKey] | None, now_ms: int) -> ConsumerMember:
        present = self.members_by_id[member_id]
        after = reconciled(present, self.target_epoch, owned, self._roster.is_free_for(member_id))
        if after != present:
            self._roster.put(after)
            is_to_revoke = after.state is MemberState.UNREVOKED
            self._sessions.await_member_action(member_id, now_ms + after.rebalance_timeout_ms if is_to_revoke else None)
        return after

    # Classic members --------------------------------------------------------------------------------------------
    def _join_classic(self, event: consumer_group_events.ClassicJoined, now_ms: int) -> group_events.JoinAnswer:
        join = event.join
        if self._dead is not None:
            return group_events.JoinAnswer(GroupError.COORDINATOR_NOT_AVAILABLE, join.member_id)
        member = classic_arrived(self._roster, self.limits, event)
        if member is GroupError.MEMBER_ID_REQUIRED:
            return group_events.JoinAnswer(member, join.new_member_id)
        if isinstance(member, GroupError):
            return group_events.JoinAnswer(member, join.member_id)
        if self._room_exceeded(member, event.room_bytes) is not None:
            return group_events.JoinAnswer(GroupError.GROUP_MAX_SIZE_REACHED, join.member_id)
        owned = placed(event.subscription.owned, event.topics) if event.subscription is not None else frozenset()
        after = self._take_in(member, owned, event.topics, now_ms)
        self._sessions.await_member_action(after.member_id, now_ms + after.rebalance_timeout_ms)  # its SyncGroup
        return group_events.JoinAnswer(
            GroupError.NONE, after.member_id, after.epoch, CONSUMER_PROTOCOL_TYPE, protocol_of(after)
        )

    def _share_classic(self, event: group_events.MemberSynced, now_ms: int) -> consumer_group_events.ShareAnswer:
        if self._dead is not None:
            return consumer_group_events.ShareAnswer(GroupError.COORDINATOR_NOT_AVAILABLE)
        error = sync_error(self._roster, self.target_epoch, event)
        if error is GroupError.REBALANCE_IN_PROGRESS:
            self._call_to_join(event.member_id, now_ms)
        if error is not GroupError.NONE:
            return consumer_group_events.ShareAnswer(error)
        member = self.members_by_id[event.member_id]
        self._begin_session(member, now_ms)
        self._sessions.await_member_action(member.member_id, None)
        return consumer_group_events.ShareAnswer(GroupError.NONE, protocol_of(member), member.assigned)

    def _beat_classic(self, event: consumer_group_events.ClassicBeat, now_ms: int) -> GroupError:
        if self._dead is not None:
            return GroupError.COORDINATOR_NOT_AVAILABLE
        member_id = event.beat.member_id
        error = classic_error(self._roster, member_id, event.beat.instance_id, event.beat.generation)
        if error is not GroupError.NONE:
            return error
        self._begin_session(self.members_by_id[member_id], now_ms)
        self.epoch += self._sees_other(event.topics)
        self._make_targets(event.topics, now_ms)
        member = self.members_by_id[member_id]
        if not must_join_again(member, self.target_epoch, self._roster.is_free_for(member_id)):
            return GroupError.NONE
        self._call_to_join(member_id, now_ms)
        return GroupError.REBALANCE_IN_PROGRESS

    def _call_to_join(self, member_id: str, now_ms: int) -> None:
        """It has its rebalance timeout from the first call on."""
        if not self._sessions.awaits_member_action(member_id):
            self._sessions.await_member_action(member_id, now_ms + self.members_by_id[member_id].rebalance_timeout_ms)

    # Leaving ----------------------------------------------------------------------------------------------------
    def _leave(self, event: consumer_group_events.ConsumerHeartbeat) -> consumer_group_events.ConsumerAnswer:
        member = self.members_by_id.get(event.member_id)
        static = self._roster.of_instance(event.instance_id)
        if static is not None and static.member_id != event.member_id:
            return consumer_group_events.ConsumerAnswer(
                GroupError.FENCED_INSTANCE_ID, f"the instance is {static.member_id} now"
            )
        if member is None:
            return consumer_group_events.ConsumerAnswer(
                GroupError.UNKNOWN_MEMBER_ID, f"{event.member_id!r} is not a member"
            )
        if event.member_epoch == LEAVES or member.instance_id is None:
            self._remove(member.member_id)
        else:
            # It will be back within a session, and has its shards then; what it was to give up is free.
            away = replace(member, epoch=LEFT_FOR_A_WHILE, state=MemberState.STABLE, revoking=frozenset())
            self._roster.put(away)
            self._sessions.await_member_action(member.member_id, None)
        return consumer_group_events.ConsumerAnswer(GroupError.NONE, None, event.member_id, event.member_epoch)

    def _leave_by_word(self, leaving: group_events.LeavingMember) -> GroupError:
        """By a LeaveGroup, which tools send for members that are gone."""
        static = self._roster.of_instance(leaving.instance_id)
        static_id = "" if static is None else static.member_id
        member_id = leaving.member_id or static_id
        if self._dead is not None or member_id not in self.members_by_id:
            return GroupError.UNKNOWN_MEMBER_ID
        if leaving.instance_id is not None and static_id != member_id:
            return GroupError.FENCED_INSTANCE_ID
        self._remove(member_id)
        return GroupError.NONE

    def _remove(self, member_id: str) -> None:
        self._drop(member_id)
        self.epoch += 1

    def _drop(self, member_id: str) -> None:
        self._roster.drop(member_id)
        self._sessions.forget(member_id)

    def _begin_session(self, member: ConsumerMember, now_ms: int) -> None:
        span_ms = self.limits.session_timeout_ms if member.classic is None else member.classic.session_timeout_ms
        self._sessions.touch(member.member_id, now_ms + span_ms)

    # Targets ----------------------------------------------------------------------------------------------------
    def _sees_other(self, topics: consumer_group_events.SeenTopics) -> bool:
        """Subscribed topics came, went or grew."""
        return not self._subscriptions.is_of(topics) and self._seen(topics) != self.topics

    def _seen(self, topics: consumer_group_events.SeenTopics) -> Mapping[UUID, int]:
        return self._subscriptions.update(self.members_by_id.values(), topics)

    def _make_targets(self, topics: consumer_group_events.SeenTopics, now_ms: int) -> None:
        """At the newest epoch, unless the members of a large group come and go faster than the node can bear: then one
        of the next heartbeats makes them for all who came meanwhile."""
        is_too_soon = self._targets_paid_until_ms > now_ms + _TARGETS_AHEAD_MS
        if self.epoch <= self.target_epoch or (is_too_soon and self.target_epoch):
            return
        self.topics = self._seen(topics)
        units = len(self.members_by_id) + sum(self.topics.values())
        self._targets_paid_until_ms = max(self._targets_paid_until_ms, now_ms) + units // _TARGET_UNITS_PER_MS
        asked = Counter(member.assignor for member in self.members_by_id.values() if member.assignor)
        self.assignor = min(asked, key=lambda name: (-asked[name], name != DEFAULT_ASSIGNOR), default=DEFAULT_ASSIGNOR)
        subscribed = self._subscriptions.topic_ids()
        subscribers = {
            member_id: Subscriber(member.instance_id or member_id, subscribed[subscription_of(member)], member.target)
            for member_id, member in self.members_by_id.items()
        }
        targets = ASSIGNORS[self.assignor](subscribers, self.topics)
        self.target_epoch = self.epoch
        for member_id, target in targets.items():
            member = self.members_by_id[member_id]
            if member.target != target:
                self._roster.put(replace(member, target=target))

    # Checking ---------------------------------------------------------------------------------------------------
    def check_invariants(self) -> None:
        self._roster.check_invariants()
        for member in self.members_by_id.values():
            assert not member.assigned & member.revoking, "what is to be given up may not be used"
            assert (member.state is MemberState.UNREVOKED) == bool(member.revoking), member
            assert member.epoch <= self.target_epoch <= self.epoch, "ahead of the group"
        self._answers.check_invariants()


def _subscription_inputs(member: ConsumerMember) -> tuple[object, ...]:
    """What targets are made of."""
    return subscription_of(member), member.assignor
