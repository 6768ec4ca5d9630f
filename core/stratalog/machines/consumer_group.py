"""One group of the consumer protocol (KIP-848) as a machine: events in, effects out, no I/O and no clock.

The coordinator decides who is to have what (`machines.assignors`), and leads each member there on its own: a member
gives up what it is not to have any more, says so, and only then somebody else gets it. Nobody waits for the others, and
there is no barrier.

The group has an epoch, which grows with each change of members, subscriptions or topics, and a target for the newest
epoch at which it was asked for. A member has an epoch, too: it is at the target's once it has given up what it must.
Its heartbeats name it, and so do its commits: who was removed, or has given shards up since, is fenced by it.

Invariants: no shard is held by two members; nothing is answered before all that was changed up to then is durable; a
parked request is answered exactly once; epochs never fall.
When a write fails, nobody was told of what it changed: what is here is then written anew as a whole before anybody is.
Cost: a heartbeat that changes nothing is a few look-ups; a change of the group O(members + shards).
Source: KIP-848; docs/kafka.md "Groups".
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never
from uuid import UUID

from stratalog.machines.assignors import ASSIGNORS, DEFAULT_ASSIGNOR, Subscriber
from stratalog.machines.consumer_group_events import (
    AnswerConsumer,
    ConsumerAnswer,
    ConsumerGroupEffect,
    ConsumerGroupEvent,
    ConsumerGroupStatus,
    ConsumerHeartbeat,
    ConsumerLimits,
    PersistConsumers,
    SeenTopics,
)
from stratalog.machines.consumer_sessions import ConsumerSessions
from stratalog.machines.group_events import (
    AnswerLeave,
    GroupClosed,
    GroupPersisted,
    LeavingMember,
    MembersLeft,
    PersistFailed,
    TimePassed,
)
from stratalog.machines.reconciling import reconciled
from stratalog.machines.subscriptions import Subscriptions, wish_of
from stratalog.model.consumer_group import (
    LEFT_FOR_A_WHILE,
    ConsumerGroupChange,
    ConsumerGroupRecord,
    ConsumerMember,
    MemberState,
)
from stratalog.model.counting import counted
from stratalog.model.group import CONSUMER_PROTOCOL_TYPE, GroupError, GroupState
from stratalog.model.ids import ShardKey

_JOINS, _LEAVES = 0, -1
_TARGET_UNITS_PER_MS, _TARGETS_AHEAD_MS = 25, 2_000
"""Members and shards to make targets for, at 2 to 4 us each: a tenth of a core at most, but for a short burst."""


class ConsumerGroup:
    """The members of one group."""

    __slots__ = (
        "_changed",
        "_dead",
        "_held",
        "_instances",
        "_is_whole_due",
        "_owners",
        "_removed",
        "_sequence",
        "_sessions",
        "_size_bytes",
        "_subscriptions",
        "_targets_paid_until_ms",
        "_under_way",
        "_written",
        "assignor",
        "epoch",
        "group_id",
        "limits",
        "members_by_id",
        "target_epoch",
        "topics",
    )

    def __init__(
        self,
        group_id: str,
        limits: ConsumerLimits,
        record: ConsumerGroupRecord | None = None,
        now_ms: int = 0,
        former_generation: int = 0,
    ) -> None:
        """With a record: the group as it was made durable; its members get a fresh session each. Else a new one, whose
        epochs go on from the generations of the other protocol that it spoke before."""
        self.group_id = group_id
        self.limits = limits
        self.epoch = record.epoch if record else former_generation
        self.target_epoch = record.target_epoch if record else former_generation
        self.assignor = record.assignor if record else DEFAULT_ASSIGNOR
        self.topics: Mapping[UUID, int] = record.topics if record else {}
        self.members_by_id: dict[str, ConsumerMember] = {}
        self._instances: dict[str, str] = {}
        self._owners: dict[ShardKey, str] = {}
        self._sessions = ConsumerSessions()
        self._size_bytes = 0
        self._subscriptions = Subscriptions()
        self._targets_paid_until_ms = 0
        self._is_whole_due = record is None
        self._sequence = record.sequence if record else 0
        """Of the newest write; its ticket, too."""
        self._under_way: set[int] = set()
        self._held: deque[tuple[int, AnswerConsumer | AnswerLeave]] = deque()
        """Answers, and the newest write that each waits for."""
        self._changed: dict[str, None] = {}
        self._removed: dict[str, None] = {}
        self._written = self._head()
        self._dead: GroupError | None = None
        for member in record.members.values() if record else ():
            self._put(member)
            self._begin_session(member, now_ms)
            if member.state is MemberState.UNREVOKED:
                self._sessions.await_revocation(member.member_id, now_ms + member.rebalance_timeout_ms)
        self._changed.clear()

    # Questions --------------------------------------------------------------------------------------------------
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
        return not self.members_by_id and self.epoch == 0 and not self._under_way

    @property
    def is_settled(self) -> bool:
        """Nothing of it is on its way to the log."""
        return not self._under_way and not self._is_whole_due

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def next_deadline_ms(self) -> int | None:
        return self._sessions.next_ms()

    def begin_sessions(self, now_ms: int) -> None:
        for member in self.members_by_id.values():
            self._begin_session(member, now_ms)

    def record(self) -> ConsumerGroupRecord:
        return ConsumerGroupRecord(self._sequence, *self._head(), dict(self.members_by_id))

    def status(self) -> ConsumerGroupStatus:
        members = tuple(self.members_by_id.values())
        return ConsumerGroupStatus(self.group_id, self.state, self.epoch, self.target_epoch, self.assignor, members)

    def commit_error(self, member_id: str, _instance_id: str | None, epoch: int, _now_ms: int) -> GroupError:
        """Whether this committer may commit offsets now, or is told them as a member."""
        if self._dead is not None:
            return GroupError.COORDINATOR_NOT_AVAILABLE
        if epoch < 0 and not self.members_by_id:
            return GroupError.NONE  # a consumer that assigns itself, or an administrator
        return self.member_error(member_id, epoch)

    def member_error(self, member_id: str, epoch: int) -> GroupError:
        """Whether this is a member, and at this epoch."""
        member = self.members_by_id.get(member_id)
        if member is None:
            return GroupError.UNKNOWN_MEMBER_ID
        return GroupError.NONE if epoch == member.epoch else GroupError.STALE_MEMBER_EPOCH

    # Events -----------------------------------------------------------------------------------------------------
    def step(self, event: ConsumerGroupEvent, now_ms: int) -> list[ConsumerGroupEffect]:
        effects: list[ConsumerGroupEffect] = []
        match event:
            case ConsumerHeartbeat(waiter):
                answer = self._heartbeat(event, now_ms)
                self._persist(effects)
                self._answer(AnswerConsumer(waiter, answer), effects)
            case MembersLeft(waiter, leavers):
                errors = tuple([self._leave_by_word(leaving) for leaving in leavers])
                self._persist(effects)
                self._answer(AnswerLeave(waiter, errors), effects)
            case GroupPersisted(ticket):
                self._under_way.discard(ticket)
                self._let_go(effects)
            case PersistFailed(ticket, error):
                self._under_way.discard(ticket)
                self._is_whole_due = True
                self._fail_held(ticket, error, effects)
            case TimePassed():
                for member_id in self._sessions.due(now_ms):
                    if member_id in self.members_by_id:
                        self._remove(member_id)
                self._persist(effects)
            case GroupClosed(error):
                self._dead = error
                self._fail_held(0, error, effects)
                self.members_by_id, self._instances, self._owners, self._size_bytes = {}, {}, {}, 0
                self._sessions = ConsumerSessions()
                self._under_way.clear()
            case _:
                assert_never(event)
        return effects

    # Writing and answering --------------------------------------------------------------------------------------
    def _persist(self, effects: list[ConsumerGroupEffect]) -> None:
        is_same = not self._changed and not self._removed and self._written == self._head()
        if is_same or self._dead is not None:
            return
        self._sequence += 1
        entry: ConsumerGroupRecord | ConsumerGroupChange
        if self._is_whole_due:
            entry, self._is_whole_due = self.record(), False
        else:
            members = tuple([self.members_by_id[one] for one in self._changed if one in self.members_by_id])
            removed = tuple([one for one in self._removed if one not in self.members_by_id])
            entry = ConsumerGroupChange(self._sequence, *self._head(), members, removed)
        self._changed, self._removed, self._written = {}, {}, self._head()
        self._under_way.add(self._sequence)
        effects.append(PersistConsumers(self._sequence, entry))

    def _head(self) -> tuple[int, int, str, Mapping[UUID, int]]:
        return self.epoch, self.target_epoch, self.assignor, self.topics

    def _answer(self, answer: AnswerConsumer | AnswerLeave, effects: list[ConsumerGroupEffect]) -> None:
        if self._under_way:
            self._held.append((max(self._under_way), answer))
        else:
            effects.append(answer)

    def _let_go(self, effects: list[ConsumerGroupEffect]) -> None:
        earliest = min(self._under_way, default=self._sequence + 1)
        while self._held and self._held[0][0] < earliest:
            effects.append(self._held.popleft()[1])

    def _fail_held(self, ticket: int, error: GroupError, effects: list[ConsumerGroupEffect]) -> None:
        """Who waits for this write, or for a later one that rests on it, is told nothing of what is here."""
        kept: deque[tuple[int, AnswerConsumer | AnswerLeave]] = deque()
        for waits_for, answer in self._held:
            if waits_for < ticket:
                kept.append((waits_for, answer))
            elif isinstance(answer, AnswerConsumer):
                effects.append(AnswerConsumer(answer.waiter, ConsumerAnswer(error)))
            else:
                effects.append(AnswerLeave(answer.waiter, tuple([error] * len(answer.errors))))
        self._held = kept
        # What was told to be as it was must be told again: it may not be so in the log.
        self._changed.update(dict.fromkeys(self.members_by_id))
        self._let_go(effects)

    # Heartbeats -------------------------------------------------------------------------------------------------
    def _heartbeat(self, event: ConsumerHeartbeat, now_ms: int) -> ConsumerAnswer:
        if self._dead is not None:
            return ConsumerAnswer(GroupError.COORDINATOR_NOT_AVAILABLE)
        if event.member_epoch < 0:
            return self._leave(event)
        if event.assignor and event.assignor not in ASSIGNORS:
            served = ", ".join(ASSIGNORS)
            return ConsumerAnswer(GroupError.UNSUPPORTED_ASSIGNOR, f"no assignor {event.assignor!r}: use {served}")
        found = self._arrived(event)
        if isinstance(found, ConsumerAnswer):
            return found
        before = self.members_by_id.get(found.member_id)
        former = self.members_by_id.get(self._instances.get(found.instance_id or "", "")) if before is None else before
        member = self._with_wishes(found, event)
        grown = member.size_bytes - (former.size_bytes if former is not None else 0)
        if grown > 0 and (self._size_bytes + grown > self.limits.max_bytes or grown > event.room_bytes):
            room = f"{self.limits.max_bytes} bytes" if grown <= event.room_bytes else "this node has room for"
            return ConsumerAnswer(GroupError.GROUP_MAX_SIZE_REACHED, f"the group's members would take more than {room}")
        if former is not None and former.member_id != member.member_id:
            self._drop(former.member_id)  # a static member that is back under another id
        if member != before:
            self._put(member)
        sees_other = self._sees_other(event.topics)
        self.epoch += sees_other or former is None or _wishes_of(former) != _wishes_of(member)
        self._make_targets(event.topics, now_ms)
        owned = frozenset() if event.owned is None and event.member_epoch == _JOINS else event.owned
        after = self._reconcile(member.member_id, owned, now_ms)
        self._begin_session(after, now_ms)
        is_told_all = event.is_full or before is None or before.assigned != after.assigned
        is_behind = before is not None and event.member_epoch != before.epoch
        return ConsumerAnswer(
            GroupError.NONE,
            None,
            after.member_id,
            after.epoch,
            self.limits.heartbeat_interval_ms,
            after.assigned if is_told_all or is_behind else None,
        )

    def _reconcile(self, member_id: str, owned: frozenset[ShardKey] | None, now_ms: int) -> ConsumerMember:
        present = self.members_by_id[member_id]
        after = reconciled(
            present, self.target_epoch, owned, lambda shard: self._owners.get(shard, member_id) == member_id
        )
        if after != present:
            self._put(after)
            is_to_revoke = after.state is MemberState.UNREVOKED
            self._sessions.await_revocation(member_id, now_ms + after.rebalance_timeout_ms if is_to_revoke else None)
        return after

    def _arrived(self, event: ConsumerHeartbeat) -> ConsumerMember | ConsumerAnswer:
        """The member as it was, or as a new one begins."""
        known = self.members_by_id.get(event.member_id)
        if event.instance_id is not None:
            if known is not None and known.instance_id != event.instance_id:
                why = f"{event.member_id!r} is a member already, and not as instance {event.instance_id!r}"
                return ConsumerAnswer(GroupError.INVALID_REQUEST, why)
            static = self.members_by_id.get(self._instances.get(event.instance_id, ""))
            if event.member_epoch == _JOINS and static is not None and static.member_id != event.member_id:
                if static.epoch != LEFT_FOR_A_WHILE:
                    why = f"instance {event.instance_id!r} is a member already, as {static.member_id}"
                    return ConsumerAnswer(GroupError.UNRELEASED_INSTANCE_ID, why)
                return replace(static, member_id=event.member_id, epoch=0, previous_epoch=0)
            if event.member_epoch > 0 and static is not None and static.member_id != event.member_id:
                why = f"instance {event.instance_id!r} is {static.member_id} now"
                return ConsumerAnswer(GroupError.FENCED_INSTANCE_ID, why)
        if known is None:
            if event.member_epoch > 0:
                why = f"{event.member_id!r} is no member: it was away for too long, or has left"
                return ConsumerAnswer(GroupError.UNKNOWN_MEMBER_ID, why)
            if len(self.members_by_id) >= self.limits.max_members:
                why = f"the group has {counted(len(self.members_by_id), 'member')}, the most there may be"
                return ConsumerAnswer(GroupError.GROUP_MAX_SIZE_REACHED, why)
            return ConsumerMember(event.member_id, event.instance_id)
        if event.member_epoch == _JOINS:
            # It begins anew and has nothing: what it was to give up is free.
            return replace(known, epoch=0, previous_epoch=0, state=MemberState.STABLE, revoking=frozenset())
        if event.member_epoch == known.epoch:
            return known
        # An answer that told it of a newer epoch may have been lost: it has no more than it was given by then.
        is_behind = event.member_epoch == known.previous_epoch and event.member_epoch < known.epoch
        if is_behind and event.owned is not None and event.owned <= known.held:
            return known
        why = f"epoch {event.member_epoch} is not the member's, which is {known.epoch}: it is to join again"
        return ConsumerAnswer(GroupError.FENCED_MEMBER_EPOCH, why)

    def _with_wishes(self, member: ConsumerMember, event: ConsumerHeartbeat) -> ConsumerMember:
        return replace(
            member,
            rack_id=member.rack_id if event.rack_id is None else event.rack_id,
            client_id=event.client_id,
            client_host=event.client_host,
            rebalance_timeout_ms=event.rebalance_timeout_ms or member.rebalance_timeout_ms,
            topic_names=member.topic_names if event.topic_names is None else tuple(sorted(set(event.topic_names))),
            topic_regex=member.topic_regex if event.topic_regex is None else event.topic_regex,
            assignor=member.assignor if event.assignor is None else event.assignor,
        )

    # Leaving ----------------------------------------------------------------------------------------------------
    def _leave(self, event: ConsumerHeartbeat) -> ConsumerAnswer:
        member = self.members_by_id.get(event.member_id)
        if event.instance_id is not None:
            present = self._instances.get(event.instance_id)
            if present is not None and present != event.member_id:
                return ConsumerAnswer(GroupError.FENCED_INSTANCE_ID, f"the instance is {present} now")
        if member is None:
            return ConsumerAnswer(GroupError.UNKNOWN_MEMBER_ID, f"{event.member_id!r} is no member")
        if event.member_epoch == _LEAVES or member.instance_id is None:
            self._remove(member.member_id)
        else:
            # It will be back within a session, and has its shards then; what it was to give up is free.
            away = replace(member, epoch=LEFT_FOR_A_WHILE, state=MemberState.STABLE, revoking=frozenset())
            self._put(away)
            self._sessions.await_revocation(member.member_id, None)
        return ConsumerAnswer(GroupError.NONE, None, event.member_id, event.member_epoch)

    def _leave_by_word(self, leaving: LeavingMember) -> GroupError:
        """By a LeaveGroup, which tools send for members that are gone."""
        member_id = leaving.member_id or self._instances.get(leaving.instance_id or "", "")
        if self._dead is not None or member_id not in self.members_by_id:
            return GroupError.UNKNOWN_MEMBER_ID
        if leaving.instance_id is not None and self._instances.get(leaving.instance_id) != member_id:
            return GroupError.FENCED_INSTANCE_ID
        self._remove(member_id)
        return GroupError.NONE

    def _remove(self, member_id: str) -> None:
        self._drop(member_id)
        self.epoch += 1

    # The members ------------------------------------------------------------------------------------------------
    def _put(self, member: ConsumerMember) -> None:
        before = self.members_by_id.get(member.member_id)
        if before is not None:
            self._size_bytes -= before.size_bytes
            for shard in before.held - member.held:
                del self._owners[shard]
        self.members_by_id[member.member_id] = member
        self._size_bytes += member.size_bytes
        for shard in member.held - (before.held if before is not None else frozenset()):
            self._owners[shard] = member.member_id
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.member_id
        self._changed[member.member_id] = None

    def _drop(self, member_id: str) -> None:
        member = self.members_by_id.pop(member_id)
        self._size_bytes -= member.size_bytes
        for shard in member.held:
            del self._owners[shard]
        if member.instance_id is not None and self._instances.get(member.instance_id) == member_id:
            del self._instances[member.instance_id]
        self._sessions.forget(member_id)
        self._changed.pop(member_id, None)
        self._removed[member_id] = None

    def _begin_session(self, member: ConsumerMember, now_ms: int) -> None:
        self._sessions.touch(member.member_id, now_ms + self.limits.session_timeout_ms)

    # Targets ----------------------------------------------------------------------------------------------------
    def _sees_other(self, topics: SeenTopics) -> bool:
        """Subscribed topics came, went or grew."""
        return not self._subscriptions.is_of(topics) and self._seen(topics) != self.topics

    def _seen(self, topics: SeenTopics) -> Mapping[UUID, int]:
        return self._subscriptions.look(self.members_by_id.values(), topics)

    def _make_targets(self, topics: SeenTopics, now_ms: int) -> None:
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
            member_id: Subscriber(member.instance_id or member_id, subscribed[wish_of(member)], member.target)
            for member_id, member in self.members_by_id.items()
        }
        targets = ASSIGNORS[self.assignor](subscribers, self.topics)
        self.target_epoch = self.epoch
        for member_id, target in targets.items():
            member = self.members_by_id[member_id]
            if member.target != target:
                self._put(replace(member, target=target))

    # Checking ---------------------------------------------------------------------------------------------------
    def check_invariants(self) -> None:
        held = [shard for member in self.members_by_id.values() for shard in member.held]
        assert len(held) == len(set(held)) == len(self._owners), "a shard is held by two members"
        assert self._size_bytes == sum(member.size_bytes for member in self.members_by_id.values())
        for member in self.members_by_id.values():
            assert not member.assigned & member.revoking, "what is to be given up may not be used"
            assert (member.state is MemberState.UNREVOKED) == bool(member.revoking), member
            assert member.epoch <= self.target_epoch <= self.epoch, "ahead of the group"
            assert self._instances.get(member.instance_id or "", member.member_id) == member.member_id
        assert not self._held or self._under_way, "somebody waits for nothing"


def _wishes_of(member: ConsumerMember) -> tuple[object, ...]:
    """What targets are made of."""
    return wish_of(member), member.assignor
