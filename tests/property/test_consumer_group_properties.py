"""Groups of the consumer protocol under any order of events: no shard is used twice, and all settle.

The clients here do as KIP-848 says: they use their assignment, give up shards that it has no more, and confirm that a
while later. Answers are lost, writes fail, coordinators die, members vanish, topics grow.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stratalog.machines.groups.consumer_group import ConsumerGroup
from stratalog.machines.groups.consumer_group_events import (
    AnswerConsumer,
    ConsumerAnswer,
    ConsumerGroupEffect,
    ConsumerHeartbeat,
    ConsumerLimits,
    PersistConsumers,
)
from stratalog.machines.groups.group_events import GroupPersisted, PersistFailed, TimePassed
from stratalog.model.groups.consumer_group import ConsumerGroupRecord
from stratalog.model.groups.group import GroupError, GroupState
from stratalog.model.ids import ShardKey
from support.consumer_clients import Client
from support.seen_topics import Topics

LIMITS = ConsumerLimits(session_timeout_ms=45_000)
NAMES = ("a", "b", "c")


class Groups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.topics = Topics()
        self.group = ConsumerGroup("g", LIMITS)
        self.log: ConsumerGroupRecord | None = None
        self.writes: dict[int, PersistConsumers] = {}
        self.clients: dict[str, Client] = {}
        self.waiter = 0
        self.numbers = 0

    # The world ------------------------------------------------------------------------------------------------------
    def do(self, effects: list[ConsumerGroupEffect]) -> None:
        for effect in effects:
            if isinstance(effect, PersistConsumers):
                self.writes[effect.ticket] = effect
            elif isinstance(effect, AnswerConsumer):
                for client in list(self.clients.values()):
                    if effect.waiter in client.asks and client.asks.pop(effect.waiter):
                        self.hear(client, effect.answer)
        self.group.check_invariants()

    def hear(self, client: Client, answer: ConsumerAnswer) -> None:
        if answer.error in (GroupError.FENCED_MEMBER_EPOCH, GroupError.UNKNOWN_MEMBER_ID):
            client.starts_again()
        elif answer.error is GroupError.UNRELEASED_INSTANCE_ID or answer.error is GroupError.FENCED_INSTANCE_ID:
            del self.clients[client.member_id]
        elif answer.error is not GroupError.NONE:
            client.says_all = True
        else:
            kept = self.log.members.get(client.member_id) if self.log is not None else None
            assert kept is not None and kept.epoch >= answer.member_epoch, "told what is not durable"
            client.epoch = answer.member_epoch
            if answer.assignment is not None:
                client.to_give_up = client.owned - answer.assignment
                client.owned = client.owned | answer.assignment

    def applied(self, write: PersistConsumers) -> None:
        if isinstance(write.entry, ConsumerGroupRecord):
            self.log = write.entry
        elif self.log is not None:
            self.log = self.log.with_change(write.entry)

    def beat(self, client: Client, *, is_heard: bool) -> None:
        if client.asks:
            return  # one at a time, as clients do
        self.waiter += 1
        client.asks[self.waiter] = is_heard
        event = client.heartbeat(self.waiter, self.topics)
        client.says_all = not is_heard
        self.do(self.group.step(event, self.now_ms))
        if not is_heard:
            client.asks.clear()

    # What happens ---------------------------------------------------------------------------------------------------
    @initialize(count=st.integers(1, 4))
    def some(self, count: int) -> None:
        for _ in range(count):
            self.join(("a",), "", None, None)

    @rule(
        names=st.sets(st.sampled_from(NAMES)).map(lambda found: tuple(sorted(found))),
        regex=st.sampled_from(("", "all", "b")),
        assignor=st.sampled_from((None, "uniform", "range")),
        instance=st.sampled_from((None, None, "x", "y")),
    )
    def join(self, names: tuple[str, ...], regex: str, assignor: str | None, instance: str | None) -> None:
        if instance is not None and any(client.instance_id == instance for client in self.clients.values()):
            return
        self.numbers += 1
        client = Client(f"m{self.numbers}", instance, names, regex, assignor)
        self.clients[client.member_id] = client
        self.beat(client, is_heard=True)

    @rule(
        data=st.data(),
        is_heard=st.sampled_from((True, True, True, False)),
        is_written=st.sampled_from((True, True, False)),
    )
    @precondition(lambda self: self.clients)
    def heartbeat(self, data: st.DataObject, is_heard: bool, is_written: bool) -> None:
        self.beat(data.draw(st.sampled_from(list(self.clients.values()))), is_heard=is_heard)
        if is_written:
            self.write_all()

    @rule()
    @precondition(lambda self: self.clients)
    def all_send_heartbeats(self) -> None:
        for client in list(self.clients.values()):
            self.beat(client, is_heard=True)
            self.write_all()

    @rule(data=st.data())
    @precondition(lambda self: self.clients)
    def give_up(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(list(self.clients.values())))
        client.gives_up()

    @rule(data=st.data(), names=st.sets(st.sampled_from(NAMES)).map(lambda found: tuple(sorted(found))))
    @precondition(lambda self: self.clients)
    def subscribe_anew(self, data: st.DataObject, names: tuple[str, ...]) -> None:
        client = data.draw(st.sampled_from(list(self.clients.values())))
        client.names, client.says_all = names, True

    @rule(data=st.data(), epoch=st.sampled_from((-1, -2)))
    @precondition(lambda self: self.clients)
    def leave(self, data: st.DataObject, epoch: int) -> None:
        client = self.clients.pop(data.draw(st.sampled_from(sorted(self.clients))))
        self.waiter += 1
        event = ConsumerHeartbeat(self.waiter, client.member_id, epoch, self.topics, instance_id=client.instance_id)
        self.do(self.group.step(event, self.now_ms))

    @rule(data=st.data())
    @precondition(lambda self: self.clients)
    def vanish(self, data: st.DataObject) -> None:
        del self.clients[data.draw(st.sampled_from(sorted(self.clients)))]

    @rule(name=st.sampled_from(NAMES), count=st.integers(0, 4))
    def change_topic(self, name: str, count: int) -> None:
        self.topics.version += 1
        if count:
            self.topics.counts[name] = max(count, self.topics.counts.get(name, 0))
        else:
            self.topics.counts.pop(name, None)

    @rule(is_durable=st.sampled_from((True, True, True, False)))
    @precondition(lambda self: self.writes)
    def write(self, is_durable: bool) -> None:
        ticket, write = next(iter(self.writes.items()))
        del self.writes[ticket]
        if is_durable:
            self.applied(write)
            self.do(self.group.step(GroupPersisted(ticket), self.now_ms))
        else:
            self.do(self.group.step(PersistFailed(ticket, GroupError.COORDINATOR_NOT_AVAILABLE), self.now_ms))

    def write_all(self) -> None:
        while self.writes:
            ticket, write = next(iter(self.writes.items()))
            del self.writes[ticket]
            self.applied(write)
            self.do(self.group.step(GroupPersisted(ticket), self.now_ms))

    @rule(seconds=st.integers(1, 30))
    def time(self, seconds: int) -> None:
        self.now_ms += seconds * 1000
        self.do(self.group.step(TimePassed(), self.now_ms))
        self.fence_late()

    def fence_late(self) -> None:
        """A client that was silent for a session uses nothing any more: it has a clock of its own."""
        for client in self.clients.values():
            if client.member_id not in self.group.members_by_id and client.epoch > 0:
                client.starts_again()

    @rule(are_written=st.booleans())
    def coordinator_dies(self, are_written: bool) -> None:
        """Another coordinator continues with the log: writes under way may be in it, in order, or not."""
        if are_written:
            for write in self.writes.values():
                self.applied(write)
        self.writes.clear()
        for client in self.clients.values():
            client.asks.clear()
            client.says_all = True
        self.group = ConsumerGroup("g", LIMITS, self.log, self.now_ms)
        self.group.check_invariants()

    # What holds -----------------------------------------------------------------------------------------------------
    @invariant()
    def no_shard_is_used_twice(self) -> None:
        used = [
            shard
            for client in self.clients.values()
            if client.member_id in self.group.members_by_id
            for shard in client.owned
        ]
        assert len(used) == len(set(used)), "two members use a shard"

    def teardown(self) -> None:
        """Without further events, every member reaches its target, and each shard has a member."""
        if not self.clients:
            return
        for _ in range(12):
            self.now_ms += 12_000
            self.write_all()
            self.do(self.group.step(TimePassed(), self.now_ms))
            for client in list(self.clients.values()):
                client.asks.clear()
                client.gives_up()
                self.beat(client, is_heard=True)
        members = self.group.members_by_id
        assert set(members) == set(self.clients), "who is silent is gone, who is not is there"
        assert self.group.state is (GroupState.STABLE if members else GroupState.EMPTY)
        wanted = {
            ShardKey(seen.topic_id, index)
            for client in self.clients.values()
            for name in {*client.names, *(self.topics.matching(client.regex) if client.regex else ())}
            if (seen := self.topics.topic(name)) is not None
            for index in range(seen.shards)
        }
        assert {shard for member in members.values() for shard in member.assigned} == wanted
        for client in self.clients.values():
            assert client.owned == members[client.member_id].assigned


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
