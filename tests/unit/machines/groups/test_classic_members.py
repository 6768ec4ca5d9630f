"""Classic members of a consumer group, step by step; and what a group is when it has changed its protocol."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from stratalog.machines.groups import group_events
from stratalog.machines.groups.consumer_group import ConsumerGroup
from stratalog.machines.groups.consumer_group_events import (
    AnswerConsumer,
    AnswerShare,
    ClassicBeat,
    ClassicJoined,
    ConsumerHeartbeat,
    ConsumerLimits,
    PersistConsumers,
    ShareAnswer,
)
from stratalog.machines.groups.group_conversion import Said, downgraded, upgraded
from stratalog.model.groups.consumer_group import MemberState, PlacesByName, Subscription
from stratalog.model.groups.group import GroupError, GroupRecord, GroupState, MemberProtocol, MemberRecord
from stratalog.model.ids import ShardKey
from support.seen_topics import Topics

OK, AGAIN = GroupError.NONE, GroupError.REBALANCE_IN_PROGRESS
TOPIC = UUID(int=ord("a"))


def shards(*indexes: int) -> frozenset[ShardKey]:
    return frozenset(ShardKey(TOPIC, index) for index in indexes)


def owning(*indexes: int) -> Subscription:
    return Subscription(("a",), (PlacesByName("a", indexes),) if indexes else ())


class Bench:
    """A consumer group of a topic with four shards, whose writes succeed at once."""

    def __init__(self, **limits: Any) -> None:
        self.topics = Topics()
        self.topics.counts["a"] = 4
        self.group = ConsumerGroup("g", ConsumerLimits(**limits))
        self.now_ms = self.numbers = 0

    def step(self, event: Any) -> Any:
        told = None
        for effect in self.group.step(event, self.now_ms):
            if isinstance(effect, PersistConsumers):
                told = self.step(group_events.GroupPersisted(effect.ticket)) or told
            elif isinstance(effect, group_events.AnswerHeartbeat):
                told = effect.error
            elif isinstance(effect, AnswerConsumer | group_events.AnswerJoin | AnswerShare):
                told = effect.answer
        self.group.check_invariants()
        return told

    def join(self, member: str, says: Subscription | None = None, **changes: Any) -> group_events.JoinAnswer:
        self.numbers += 1
        wishes: dict[str, Any] = {
            "waiter": 1,
            "member_id": member,
            "new_member_id": f"new-{self.numbers}",
            "instance_id": None,
            "client_id": "c",
            "client_host": "h",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 20_000,
            "protocol_type": "consumer",
            "protocols": (MemberProtocol("range", b""),),
            "requires_known_id": True,
            "can_skip_assignment": False,
        }
        answer = self.step(
            ClassicJoined(group_events.MemberJoined(**(wishes | changes)), says or owning(), self.topics)
        )
        assert isinstance(answer, group_events.JoinAnswer)
        return answer

    def sync(self, member: str, generation: int, **changes: Any) -> ShareAnswer:
        said: dict[str, Any] = {"instance_id": None, "protocol_type": None, "protocol_name": None} | changes
        answer = self.step(group_events.MemberSynced(1, member, generation=generation, assignments=(), **said))
        assert isinstance(answer, ShareAnswer)
        return answer

    def beat(self, member: str, generation: int, instance_id: str | None = None) -> GroupError:
        answer = self.step(ClassicBeat(group_events.HeartbeatReceived(1, member, instance_id, generation), self.topics))
        assert isinstance(answer, GroupError)
        return answer

    def consumer(self, member: str, epoch: int, owned: frozenset[ShardKey] | None = None) -> Any:
        joins: dict[str, Any] = {"rebalance_timeout_ms": 20_000, "topic_names": ("a",)} if epoch == 0 else {}
        return self.step(ConsumerHeartbeat(1, member, epoch, self.topics, owned=owned, **joins))

    def both(self) -> None:
        """`new`, a consumer member with shards at epoch 2, and `old`, a classic one that has joined last."""
        self.consumer("new", 0)
        self.join("old")
        given = self.consumer("new", 1, shards(0, 1, 2, 3)).assignment
        assert self.consumer("new", 1, given).member_epoch == 2
        assert self.beat("old", 2) is AGAIN, "what it waits for is free"
        assert self.join("old").generation == 2
        assert self.sync("old", 2).shards == shards(0, 1, 2, 3) - given


def test_a_cooperative_member_keeps_what_it_has_until_it_says_that_it_gave_it_up() -> None:
    bench = Bench()
    joined = bench.join("old")
    assert bench.sync("old", joined.generation).shards == shards(0, 1, 2, 3)
    assert bench.beat("old", 1) is OK
    assert bench.consumer("new", 0).assignment == frozenset()
    assert bench.beat("old", 1) is AGAIN
    assert bench.join("old", owning(0, 1, 2, 3)).generation == 1
    kept = bench.sync("old", 1)
    assert kept.error is OK and len(kept.shards) == 2, "it learns what to give up"
    assert bench.consumer("new", 2).assignment is None, "nobody else has that yet"
    assert bench.beat("old", 1) is AGAIN
    left = tuple(shard.shard for shard in kept.shards)
    assert bench.join("old", owning(*left)).generation == 2
    assert bench.consumer("new", 2).assignment == shards(0, 1, 2, 3) - kept.shards
    assert bench.sync("old", 2).shards == kept.shards
    assert bench.group.state is GroupState.STABLE


def test_an_eager_member_gives_up_all_when_it_joins() -> None:
    bench = Bench()
    bench.join("old")
    bench.sync("old", 1)
    bench.consumer("new", 0)
    assert bench.join("old").generation == 2
    assert len(bench.consumer("new", 2).assignment) == 2


def test_an_unknown_member_or_a_wrong_generation_is_reported_as_such() -> None:
    bench = Bench()
    bench.both()
    assert bench.beat("old", 1) is GroupError.ILLEGAL_GENERATION
    assert bench.sync("old", 3).error is GroupError.ILLEGAL_GENERATION
    assert bench.beat("nobody", 2) is GroupError.UNKNOWN_MEMBER_ID
    assert bench.beat("new", 2) is GroupError.UNKNOWN_MEMBER_ID, "it does not speak this protocol"
    assert bench.join("new").error is GroupError.UNKNOWN_MEMBER_ID
    assert bench.sync("old", 2, protocol_name="sticky").error is GroupError.INCONSISTENT_GROUP_PROTOCOL
    assert bench.sync("old", 2, protocol_type="connect").error is GroupError.INCONSISTENT_GROUP_PROTOCOL
    assert bench.consumer("old", 2).error is GroupError.UNKNOWN_MEMBER_ID
    commit = bench.group.commit_error
    assert commit("old", None, 2, 0) is OK
    assert commit("old", None, 1, 0) is GroupError.ILLEGAL_GENERATION
    assert commit("new", None, 1, 0) is GroupError.STALE_MEMBER_EPOCH


def test_a_client_that_may_not_join_learns_why() -> None:
    bench = Bench(max_members=2)
    bench.both()
    assert bench.join("third").error is GroupError.GROUP_MAX_SIZE_REACHED
    assert bench.join("old", session_timeout_ms=1).error is GroupError.INVALID_SESSION_TIMEOUT
    assert bench.join("old", protocol_type="connect").error is GroupError.INCONSISTENT_GROUP_PROTOCOL
    assert bench.join("old", protocols=()).error is GroupError.INCONSISTENT_GROUP_PROTOCOL
    other = Bench()
    other.both()
    assert other.join("").error is GroupError.MEMBER_ID_REQUIRED
    assert other.join("b", protocols=(MemberProtocol("mine", b""),)).error is GroupError.INCONSISTENT_GROUP_PROTOCOL
    assert other.join("b", owning(1)).error is GroupError.UNKNOWN_MEMBER_ID, "it was removed, and has others' shards"


def test_a_classic_member_goes_by_its_own_session_and_must_join_and_ask_in_time() -> None:
    silent = Bench()
    silent.both()
    silent.now_ms = 10_000
    silent.step(group_events.TimePassed())
    assert set(silent.group.members_by_id) == {"new"}

    asks_late = Bench()
    asks_late.join("old")
    joins_late = Bench()
    joins_late.both()
    joins_late.consumer("third", 0)
    for bench, generation in ((asks_late, 1), (joins_late, 2)):
        for bench.now_ms in (0, 5_000, 10_000, 15_000, 19_999):
            assert bench.beat("old", generation) in (OK, AGAIN)
            bench.step(group_events.TimePassed())
            assert "old" in bench.group.members_by_id
        bench.now_ms = 20_000
        bench.step(group_events.TimePassed())
        assert "old" not in bench.group.members_by_id


def test_a_static_member_takes_its_own_place_in_either_protocol() -> None:
    bench = Bench()
    first = bench.join("", instance_id="one")
    again = bench.join("", instance_id="one")
    assert again.generation == first.generation, "nothing changed for the group"
    assert bench.sync(again.member_id, again.generation, instance_id="one").shards == shards(0, 1, 2, 3)
    assert bench.beat(first.member_id, first.generation, "one") is GroupError.FENCED_INSTANCE_ID
    assert bench.join(first.member_id, instance_id="one").error is GroupError.FENCED_INSTANCE_ID
    event = ConsumerHeartbeat(
        1, "new", 0, bench.topics, instance_id="one", rebalance_timeout_ms=1, topic_names=("a",), owned=frozenset()
    )
    assert bench.step(event).assignment == shards(0, 1, 2, 3)
    assert {one.classic for one in bench.group.members_by_id.values()} == {None}


def test_topics_that_grow_are_seen_at_a_classic_heartbeat() -> None:
    bench = Bench()
    joined = bench.join("old")
    bench.sync("old", joined.generation)
    bench.topics.counts["a"], bench.topics.version = 6, 1
    assert bench.beat("old", 1) is AGAIN
    assert bench.join("old", owning(0, 1, 2, 3)).generation == 2
    assert bench.sync("old", 2).shards == shards(*range(6))


def test_a_group_is_to_be_classic_when_its_last_consumer_member_is_gone() -> None:
    bench, kept = Bench(), Bench(may_downgrade=False)
    for one in (bench, kept):
        one.both()
        assert not one.group.is_to_be_classic
        one.step(group_events.MembersLeft(1, (group_events.LeavingMember("new", None),)))
    assert bench.group.is_to_be_classic and not kept.group.is_to_be_classic
    record = downgraded(bench.group.record())
    assert (record.generation, record.leader) == (2, "old"), "the generation that its members know"
    assert record.members[0].session_timeout_ms == 10_000


def test_what_each_member_holds_is_known_when_a_classic_group_becomes_a_consumer_group() -> None:
    protocols = (MemberProtocol("cooperative", b""),)
    members = tuple(MemberRecord(name, None, "c", "h", 10_000, 20_000, protocols, b"") for name in ("x", "y"))
    classic = GroupRecord(7, "consumer", "cooperative", "x", members)
    topics = Topics()
    topics.counts["a"] = 4
    said = {
        "x": Said(owning(0, 1, 2, 9), (PlacesByName("a", (0, 1)),)),
        "y": Said(owning(3), (PlacesByName("a", (1, 3)), PlacesByName("gone", (0,)))),
    }
    group = upgraded(classic, said, topics)
    x, y = group.members["x"], group.members["y"]
    assert (group.epoch, group.target_epoch, x.epoch, y.epoch) == (7, 7, 7, 7)
    assert (x.assigned, x.revoking, x.state) == (shards(0, 1), shards(2), MemberState.UNREVOKED)
    assert (y.assigned, y.revoking, y.state) == (shards(3), frozenset(), MemberState.STABLE), "x was given 1 first"
