"""A group of the consumer protocol, step by step."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from uuid import UUID

import pytest

from stratalog.machines.groups.consumer_group import ConsumerGroup
from stratalog.machines.groups.consumer_group_events import (
    AnswerConsumer,
    ConsumerAnswer,
    ConsumerHeartbeat,
    ConsumerLimits,
    PersistConsumers,
    SeenTopic,
)
from stratalog.machines.groups.group_events import (
    AnswerLeave,
    GroupClosed,
    GroupPersisted,
    LeavingMember,
    MembersLeft,
    PersistFailed,
    TimePassed,
)
from stratalog.model.groups.consumer_group import ConsumerGroupRecord
from stratalog.model.groups.group import GroupError, GroupState
from stratalog.model.ids import ShardKey

TOPIC = UUID(int=1)


def shards(*indexes: int) -> frozenset[ShardKey]:
    return frozenset(ShardKey(TOPIC, index) for index in indexes)


class Topics:
    version = 0
    count = 4
    view = None

    def topic(self, name: str) -> SeenTopic | None:
        return SeenTopic(TOPIC, self.count) if name == "orders" else None

    def matching(self, _regex: str) -> Collection[str]:
        return ["orders"]


class Bench:
    """A group whose writes succeed at once, unless they are held back."""

    def __init__(self, **limits: int) -> None:
        self.topics = Topics()
        self.group = ConsumerGroup("g", ConsumerLimits(**limits))
        self.now_ms = 0
        self.holds_writes = False
        self.held: list[PersistConsumers] = []
        self.written: list[PersistConsumers] = []
        self.answers: dict[int, ConsumerAnswer] = {}
        self.left: dict[int, tuple[GroupError, ...]] = {}
        self.waiter = 0

    def step(self, event: Any) -> None:
        for effect in self.group.step(event, self.now_ms):
            match effect:
                case PersistConsumers() if self.holds_writes:
                    self.held.append(effect)
                case PersistConsumers():
                    self.written.append(effect)
                    self.step(GroupPersisted(effect.ticket))
                case AnswerConsumer(waiter, answer):
                    assert waiter not in self.answers, "answered twice"
                    self.answers[waiter] = answer
                case AnswerLeave(waiter, errors):
                    self.left[waiter] = errors
        self.group.check_invariants()

    def beat(self, member: str, epoch: int, owned: frozenset[ShardKey] | None = None, **more: Any) -> ConsumerAnswer:
        self.waiter += 1
        self.step(ConsumerHeartbeat(self.waiter, member, epoch, self.topics, owned=owned, **more))
        return self.answers[self.waiter]

    def join(self, member: str, **more: Any) -> ConsumerAnswer:
        wishes = {"rebalance_timeout_ms": 10_000, "topic_names": ("orders",)} | more
        return self.beat(member, 0, frozenset(), **wishes)

    def two(self) -> None:
        """`a` and `b`, two shards each, both at epoch 2."""
        self.join("a")
        self.join("b")
        given = self.beat("a", 1, shards(0, 1, 2, 3)).assignment
        assert given is not None and len(given) == 2
        assert self.beat("a", 1, given).member_epoch == 2
        taken = self.beat("b", 2).assignment
        assert taken == shards(0, 1, 2, 3) - given


def test_a_shard_is_given_to_another_only_once_its_holder_has_given_it_up() -> None:
    bench = Bench()
    assert bench.join("a").assignment == shards(0, 1, 2, 3)
    assert bench.join("b").assignment == frozenset()
    assert bench.group.state is GroupState.RECONCILING
    answer = bench.beat("a", 1, shards(0, 1, 2, 3))
    assert (answer.member_epoch, answer.assignment) == (1, shards(0, 1))
    assert bench.beat("b", 2).assignment is None, "a has not given up anything yet"
    assert bench.beat("a", 1).assignment is None, "nothing was said of what it has"
    assert bench.beat("a", 1, shards(0, 1)).member_epoch == 2
    assert bench.beat("b", 2).assignment == shards(2, 3)
    assert bench.group.state is GroupState.STABLE


def test_a_heartbeat_that_changes_nothing_writes_nothing() -> None:
    bench = Bench()
    bench.two()
    writes = len(bench.written)
    answer = bench.beat("a", 2)
    assert (answer.error, answer.member_epoch, answer.assignment) == (GroupError.NONE, 2, None)
    assert len(bench.written) == writes


@pytest.mark.fault("epoch-group-fall-changes")
def test_a_member_of_another_epoch_is_fenced_unless_its_last_answer_may_have_been_lost() -> None:
    bench = Bench()
    bench.two()
    mine = bench.group.members_by_id["a"].assigned
    assert bench.beat("a", 3).error is GroupError.FENCED_MEMBER_EPOCH
    assert bench.beat("a", 1).error is GroupError.FENCED_MEMBER_EPOCH, "it does not say what it has"
    again = bench.beat("a", 1, mine)
    assert (again.error, again.member_epoch, again.assignment) == (GroupError.NONE, 2, mine)
    assert bench.beat("a", 1, shards(0, 1, 2, 3)).error is GroupError.FENCED_MEMBER_EPOCH
    assert bench.beat("c", 2).error is GroupError.UNKNOWN_MEMBER_ID


def test_who_is_silent_for_a_session_is_removed_and_the_others_get_its_shards() -> None:
    bench = Bench(session_timeout_ms=1_000)
    bench.two()
    bench.now_ms = 900
    bench.beat("a", 2)
    bench.now_ms = 1_000
    bench.step(TimePassed())
    assert set(bench.group.members_by_id) == {"a"}
    assert bench.group.state is GroupState.ASSIGNING
    assert bench.beat("a", 2).assignment == shards(0, 1, 2, 3)


def test_who_does_not_give_up_its_shards_in_time_is_removed() -> None:
    bench = Bench(session_timeout_ms=60_000)
    bench.join("a", rebalance_timeout_ms=5_000)
    bench.join("b")
    bench.beat("a", 1, shards(0, 1, 2, 3))
    deadline_ms = bench.group.next_deadline_ms()
    assert deadline_ms == 5_000
    bench.now_ms = 5_000
    bench.step(TimePassed())
    assert set(bench.group.members_by_id) == {"b"}
    assert bench.beat("b", 2).assignment == shards(0, 1, 2, 3)


def test_more_shards_of_a_topic_are_given_out_at_the_next_heartbeats() -> None:
    bench = Bench()
    bench.two()
    bench.topics.count, bench.topics.version = 6, 1
    assert len(bench.beat("a", 2).assignment or ()) == 3
    assert len(bench.beat("b", 2).assignment or ()) == 3


@pytest.mark.fault("static-member-consumer-protocol")
def test_a_static_member_that_leaves_for_a_while_has_its_shards_when_it_is_back_under_another_id() -> None:
    bench = Bench()
    bench.join("a", instance_id="one")
    assert bench.join("twin", instance_id="one").error is GroupError.UNRELEASED_INSTANCE_ID
    assert bench.beat("a", -2, instance_id="one").member_epoch == -2
    epoch = bench.group.epoch
    back = bench.join("a2", instance_id="one")
    assert (back.error, back.assignment, bench.group.epoch) == (GroupError.NONE, shards(0, 1, 2, 3), epoch)
    assert bench.beat("a", 1, instance_id="one").error is GroupError.FENCED_INSTANCE_ID
    assert set(bench.group.members_by_id) == {"a2"}


@pytest.mark.fault("static-member-consumer-protocol")
def test_a_member_does_not_become_an_instance_that_another_member_left_for_a_while() -> None:
    bench = Bench()
    bench.two()
    bench.join("static", instance_id="one")
    taken = {member_id: member.held for member_id, member in bench.group.members_by_id.items()}
    bench.beat("static", -2, instance_id="one")
    assert bench.join("a", instance_id="one").error is GroupError.INVALID_REQUEST
    assert bench.beat("b", 2, instance_id="one").error is GroupError.INVALID_REQUEST
    assert {member_id: member.held for member_id, member in bench.group.members_by_id.items()} == taken


def test_what_is_remembered_of_regular_expressions_is_that_of_the_members() -> None:
    bench = Bench()
    epoch = bench.join("a", topic_names=None, topic_regex="o.*").member_epoch
    for number in range(50):
        epoch = bench.beat("a", epoch, topic_regex=f"orders|{number}").member_epoch
    assert len(bench.group._subscriptions) == 1


def test_members_of_a_large_group_that_join_at_once_are_given_shards_together() -> None:
    bench = Bench()
    bench.topics.count = 2_000
    names = [f"m{number}" for number in range(100)]
    targets = set()
    for name in names:
        answer = bench.join(name)
        assert answer.error is GroupError.NONE and answer.member_epoch > 0, "it is a member, if one without shards yet"
        targets.add(bench.group.target_epoch)
    assert bench.group.state is GroupState.ASSIGNING and len(targets) < 50
    for _ in range(3):
        bench.now_ms += 5_000
        for name in names:
            member = bench.group.members_by_id[name]
            bench.beat(name, member.epoch, member.assigned)
    assert bench.group.state is GroupState.STABLE
    assert {len(member.assigned) for member in bench.group.members_by_id.values()} == {20}


def test_nothing_is_reported_before_it_is_durable_and_nothing_at_all_of_what_could_not_be_written() -> None:
    bench = Bench()
    bench.holds_writes = True
    for waiter, member in enumerate(("a", "b"), 1):
        bench.step(
            ConsumerHeartbeat(
                waiter, member, 0, bench.topics, rebalance_timeout_ms=1, topic_names=("orders",), owned=frozenset()
            )
        )
    bench.waiter = 2
    first, second = bench.held
    assert isinstance(first.entry, ConsumerGroupRecord) and not bench.answers
    bench.step(PersistFailed(first.ticket, GroupError.COORDINATOR_NOT_AVAILABLE))
    assert [answer.error for answer in bench.answers.values()] == [GroupError.COORDINATOR_NOT_AVAILABLE] * 2
    bench.step(GroupPersisted(second.ticket))
    bench.holds_writes = False
    assert bench.join("a").error is GroupError.NONE
    assert isinstance(bench.written[-1].entry, ConsumerGroupRecord), "all of it, for the log lacks the first write"
    assert set(bench.written[-1].entry.members) == {"a", "b"}


def test_a_change_on_top_of_a_write_that_is_not_in_the_log_means_nothing() -> None:
    bench = Bench()
    bench.two()
    whole, *changes = [write.entry for write in bench.written]
    assert isinstance(whole, ConsumerGroupRecord)
    record = whole
    for change in changes:
        assert not isinstance(change, ConsumerGroupRecord)
        assert whole.with_change(change) is whole or change is changes[0]
        record = record.with_change(change)
    assert record == bench.group.record()


@pytest.mark.fault("epoch-group-fall-changes")
def test_commits_are_taken_of_members_at_their_epoch_alone() -> None:
    bench = Bench()
    group = bench.group
    assert group.commit_error("", None, -1, 0) is GroupError.NONE, "an administrator, while nobody is there"
    bench.join("a")
    assert group.commit_error("", None, -1, 0) is GroupError.UNKNOWN_MEMBER_ID
    assert group.commit_error("a", None, 1, 0) is GroupError.NONE
    assert group.commit_error("a", None, 0, 0) is GroupError.STALE_MEMBER_EPOCH
    assert group.commit_error("b", None, 1, 0) is GroupError.UNKNOWN_MEMBER_ID


def test_tools_remove_members_by_their_instance() -> None:
    bench = Bench()
    bench.join("a", instance_id="one")
    bench.step(MembersLeft(99, (LeavingMember("", "one"), LeavingMember("nobody", None))))
    assert bench.left[99] == (GroupError.NONE, GroupError.UNKNOWN_MEMBER_ID)
    assert bench.group.state is GroupState.EMPTY


def test_what_is_asked_for_most_decides_the_assignor_and_an_unknown_one_is_refused() -> None:
    bench = Bench()
    answer = bench.join("a", assignor="mine")
    assert answer.error is GroupError.UNSUPPORTED_ASSIGNOR and "uniform, range" in (answer.message or "")
    bench.join("a", assignor="range")
    assert bench.group.assignor == "range"
    bench.join("b")
    bench.join("c", assignor="uniform")
    assert bench.group.assignor == "uniform"


@pytest.mark.fault("members-subscribe-topics-name")
def test_a_group_has_room_for_a_limited_number_of_members_and_bytes() -> None:
    bench = Bench(max_members=1)
    bench.join("a")
    assert bench.join("b").error is GroupError.GROUP_MAX_SIZE_REACHED
    small = Bench(max_bytes=100)
    assert small.join("a").error is GroupError.GROUP_MAX_SIZE_REACHED
    assert small.group.is_blank


def test_a_group_that_leaves_this_node_answers_all_waiting_requests() -> None:
    bench = Bench()
    bench.holds_writes = True
    bench.step(ConsumerHeartbeat(1, "a", 0, bench.topics, rebalance_timeout_ms=1, topic_names=("orders",)))
    bench.waiter = 1
    bench.step(GroupClosed(GroupError.NOT_COORDINATOR))
    assert bench.answers[1].error is GroupError.NOT_COORDINATOR
    assert bench.group.state is GroupState.DEAD
    assert bench.beat("a", 0).error is GroupError.COORDINATOR_NOT_AVAILABLE
