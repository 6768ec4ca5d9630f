"""Groups with members of both protocols under any order of events: no shard is used twice, the group changes its
protocol when it is to, what is in the log is what lives, and all settle.

The group lives as in a node: it becomes a consumer group when a consumer member joins, and a classic one when only such
are left. Its log is the real one, bytes and replay. Answers are lost, writes fail, coordinators die, members vanish.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stratalog.formats.groups.group_log import (
    ConsumersChangedEntry,
    ConsumersEntry,
    GroupEntry,
    LogEntry,
    decode_entry,
    encode_entry,
)
from stratalog.kafka.subscription import read_subscription, write_assignment
from stratalog.machines.groups import group_events
from stratalog.machines.groups.consumer_group import ConsumerGroup
from stratalog.machines.groups.consumer_group_events import (
    AnswerConsumer,
    AnswerShare,
    ClassicBeat,
    ClassicJoined,
    ConsumerAnswer,
    ConsumerHeartbeat,
    ConsumerLimits,
    PersistConsumers,
)
from stratalog.machines.groups.group import Group
from stratalog.model.groups.consumer_group import ConsumerGroupRecord
from stratalog.model.groups.group import GroupError, GroupRecord, GroupState
from stratalog.model.ids import ShardKey
from stratalog_node.groups.migration import Migration
from stratalog_node.groups.replay import Replay
from stratalog_node.serve.connections.consumer_codec import CONSUMER_CODEC
from support.classic_clients import ClassicClient, by_name
from support.consumer_clients import Client
from support.seen_topics import Topics

LIMITS = group_events.GroupLimits(initial_rebalance_delay_ms=0)
CONSUMERS = ConsumerLimits()


class MixedGroups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.topics = Topics()
        self.migration = Migration(CONSUMER_CODEC, LIMITS, CONSUMERS, may_upgrade=True)
        self.group: Group | ConsumerGroup = Group("g", LIMITS)
        self.log = Replay(0)
        self.writes: dict[int, LogEntry] = {}
        self.clients: dict[str, Client | ClassicClient] = {}
        self.is_cooperative = False
        self.waiter = self.numbers = 0

    # The node -------------------------------------------------------------------------------------------------------
    def step(self, event: Any) -> None:
        for effect in self.group.step(event, self.now_ms):
            self.perform(effect)
        self.group.check_invariants()
        self.downgrade_if_due()

    def downgrade_if_due(self) -> None:
        if isinstance(self.group, ConsumerGroup) and self.group.is_to_be_classic:
            assert not self.writes
            self.group = self.migration.downgraded(self.group, self.now_ms)
            self.group.check_invariants()

    def perform(self, effect: Any) -> None:
        match effect:
            case PersistConsumers(ticket, ConsumerGroupRecord() as record):
                self.writes[ticket] = ConsumersEntry("g", record, 0)
            case PersistConsumers(ticket, change):
                self.writes[ticket] = ConsumersChangedEntry("g", change, 0)
            case group_events.PersistGroup(ticket, record):
                self.writes[ticket] = GroupEntry("g", record, 0)
            case AnswerConsumer(waiter, answer):
                self.deliver(waiter, answer)
            case AnswerShare(waiter, share):
                assignment = write_assignment(by_name(share.shards, self.topics))
                self.deliver(waiter, group_events.SyncAnswer(share.error, None, share.protocol_name, assignment))
            case group_events.AnswerJoin(waiter, answer) | group_events.AnswerSync(waiter, answer):
                self.deliver(waiter, answer)
            case group_events.AnswerHeartbeat(waiter, error):
                self.deliver(waiter, error)

    def deliver(self, waiter: int, answer: Any) -> None:
        for client in list(self.clients.values()):
            if waiter in client.asks and client.asks.pop(waiter):
                if isinstance(client, Client):
                    self.consumer_hears(client, answer)
                elif isinstance(answer, group_events.SyncAnswer):
                    client.hears_share(answer)
                elif isinstance(answer, GroupError):
                    if answer is not GroupError.NONE:
                        client.fails(answer)
                else:
                    client.hears_join(answer)

    def consumer_hears(self, client: Client, answer: ConsumerAnswer) -> None:
        if answer.error in (GroupError.FENCED_MEMBER_EPOCH, GroupError.UNKNOWN_MEMBER_ID):
            client.starts_again()
        elif answer.error is not GroupError.NONE:
            client.says_all = True
        else:
            client.epoch = answer.member_epoch
            if answer.assignment is not None:
                client.to_give_up = client.owned - answer.assignment
                client.owned = client.owned | answer.assignment

    def write_one(self, *, is_durable: bool = True) -> None:
        ticket, entry = next(iter(self.writes.items()))
        del self.writes[ticket]
        if is_durable:
            self.apply(entry)
            self.step(group_events.GroupPersisted(ticket))
        else:
            self.step(group_events.PersistFailed(ticket, GroupError.COORDINATOR_NOT_AVAILABLE))

    def write_all(self) -> None:
        while self.writes:
            self.write_one()

    def apply(self, entry: LogEntry) -> None:
        key, value = encode_entry(entry)
        self.log.apply(decode_entry(key, value, source="log", position=0))

    @property
    def durable(self) -> GroupRecord | ConsumerGroupRecord | None:
        kept = self.log.groups.get("g")
        return None if kept is None else kept.record

    # The clients ----------------------------------------------------------------------------------------------------
    def act(self, client: Client | ClassicClient, *, is_heard: bool = True) -> None:
        if client.asks:
            return  # one at a time, as clients do
        self.waiter += 1
        client.asks[self.waiter] = is_heard
        if isinstance(client, Client):
            self.act_consumer(client, is_heard=is_heard)
        else:
            self.act_classic(client)
        if not is_heard:
            client.asks.clear()

    def act_consumer(self, client: Client, *, is_heard: bool) -> None:
        event = client.heartbeat(self.waiter, self.topics)
        client.says_all = not is_heard
        if isinstance(self.group, Group):
            if client.epoch != 0:
                self.deliver(self.waiter, ConsumerAnswer(GroupError.UNKNOWN_MEMBER_ID))
                return
            if self.group.state is GroupState.EMPTY and not self.writes:
                self.group = ConsumerGroup("g", CONSUMERS, former_generation=self.group.generation)
            else:
                made = self.migration.upgraded(self.group, event, self.now_ms)
                if isinstance(made, ConsumerAnswer):
                    self.deliver(self.waiter, made)
                    return
                self.group = made
        self.step(event)

    def act_classic(self, client: ClassicClient) -> None:
        waiter = self.waiter
        if client.phase == "join" and client.to_give_up:
            client.asks.clear()  # it is still at giving up what it must
            return
        if client.phase == "sync":
            self.step(
                group_events.MemberSynced(waiter, client.member_id, None, client.generation, None, None, client.given)
            )
        elif client.phase == "beat":
            beat = group_events.HeartbeatReceived(waiter, client.member_id, None, client.generation)
            self.step(beat if isinstance(self.group, Group) else ClassicBeat(beat, self.topics))
        else:
            client.begins_to_join()
            self.numbers += 1
            join = group_events.MemberJoined(
                waiter,
                client.member_id,
                f"{client.name}-{self.numbers}",
                None,
                client.name,
                "host",
                10_000,
                60_000,
                "consumer",
                client.protocols,
                False,
                False,
            )
            if isinstance(self.group, ConsumerGroup) and self.group.state is GroupState.EMPTY and not self.writes:
                former = GroupRecord(self.group.generation, "consumer", None, None, ())
                self.group = Group("g", LIMITS, former)
            if isinstance(self.group, Group):
                self.step(join)
            else:
                self.step(ClassicJoined(join, read_subscription(join.protocols[0].metadata), self.topics))

    # What happens ---------------------------------------------------------------------------------------------------
    @initialize(is_cooperative=st.booleans(), classic=st.integers(0, 3), consumers=st.integers(0, 2))
    def some(self, is_cooperative: bool, classic: int, consumers: int) -> None:
        self.is_cooperative = is_cooperative
        for _ in range(classic):
            self.classic_starts(("a",))
        self.all_act(3)
        for _ in range(consumers):
            self.consumer_starts(("a",))

    @rule(names=st.sets(st.sampled_from("ab"), min_size=1).map(lambda found: tuple(sorted(found))))
    def consumer_starts(self, names: tuple[str, ...]) -> None:
        if len(self.clients) < 6:
            self.numbers += 1
            client = Client(f"m{self.numbers}", None, names, "", None)
            self.clients[client.member_id] = client
            self.act(client)

    @rule(names=st.sets(st.sampled_from("ab"), min_size=1).map(lambda found: tuple(sorted(found))))
    def classic_starts(self, names: tuple[str, ...]) -> None:
        if len(self.clients) < 6:
            self.numbers += 1
            client = ClassicClient(f"c{self.numbers}", names, self.is_cooperative, self.topics)
            self.clients[client.name] = client
            self.act(client)

    @rule(data=st.data(), is_heard=st.sampled_from((True, True, True, False)))
    @precondition(lambda self: self.clients)
    def one_acts(self, data: st.DataObject, is_heard: bool) -> None:
        self.act(self.clients[data.draw(st.sampled_from(sorted(self.clients)))], is_heard=is_heard)

    @rule(rounds=st.integers(1, 4))
    def all_act(self, rounds: int) -> None:
        for _ in range(rounds):
            for client in list(self.clients.values()):
                self.act(client)
                self.write_all()
                client.gives_up()

    @rule(data=st.data())
    @precondition(lambda self: self.clients)
    def gives_up(self, data: st.DataObject) -> None:
        self.clients[data.draw(st.sampled_from(sorted(self.clients)))].gives_up()

    @rule(data=st.data(), says_so=st.booleans())
    @precondition(lambda self: self.clients)
    def stops(self, data: st.DataObject, says_so: bool) -> None:
        client = self.clients.pop(data.draw(st.sampled_from(sorted(self.clients))))
        self.waiter += 1
        if not says_so:
            return
        if isinstance(client, ClassicClient):
            self.step(group_events.MembersLeft(self.waiter, (group_events.LeavingMember(client.member_id, None),)))
        elif isinstance(self.group, ConsumerGroup):
            self.step(ConsumerHeartbeat(self.waiter, client.member_id, -1, self.topics))

    @rule(name=st.sampled_from("ab"), more=st.integers(1, 2))
    def topic_grows(self, name: str, more: int) -> None:
        self.topics.version += 1
        self.topics.counts[name] = min(self.topics.counts.get(name, 0) + more, 6)

    @rule(is_durable=st.sampled_from((True, True, True, False)))
    @precondition(lambda self: self.writes)
    def write(self, is_durable: bool) -> None:
        self.write_one(is_durable=is_durable)

    @rule(seconds=st.integers(1, 30))
    def time(self, seconds: int) -> None:
        self.now_ms += seconds * 1000
        self.step(group_events.TimePassed())

    @rule(are_written=st.booleans())
    def coordinator_dies(self, are_written: bool) -> None:
        """Another coordinator continues with the log: writes under way may be in it or not."""
        if are_written:
            for entry in self.writes.values():
                self.apply(entry)
        self.writes.clear()
        for client in self.clients.values():
            if isinstance(client, ClassicClient) and client.asks:
                client.fails(GroupError.NOT_COORDINATOR)
            client.asks.clear()
            if isinstance(client, Client):
                client.says_all = True
        record = self.durable
        if isinstance(record, ConsumerGroupRecord):
            self.group = ConsumerGroup("g", CONSUMERS, record, self.now_ms)
        else:
            self.group = Group("g", LIMITS, record, self.now_ms)
        self.group.check_invariants()
        self.downgrade_if_due()

    # What holds -----------------------------------------------------------------------------------------------------
    def ids(self) -> set[str]:
        if isinstance(self.group, ConsumerGroup):
            return set(self.group.members_by_id)
        return {member.member_id for member in self.group.members}

    @pytest.mark.fault("consumers-move-protocol-group")
    @invariant()
    def no_shard_is_used_twice(self) -> None:
        present = self.ids()
        used = [shard for one in self.clients.values() if one.member_id in present for shard in one.owned]
        assert len(used) == len(set(used)), "two members use a shard"

    @invariant()
    def what_is_in_the_log_is_what_lives(self) -> None:
        group = self.group
        if not self.writes and isinstance(group, ConsumerGroup) and group.is_settled:
            assert self.durable == group.record()
        if not self.writes and isinstance(group, Group) and group.is_at_rest:
            kept = self.durable
            assert isinstance(kept, GroupRecord) and kept.generation == group.generation

    @invariant()
    def only_groups_with_consumer_members_are_consumer_groups(self) -> None:
        if isinstance(self.group, ConsumerGroup) and self.group.members_by_id and not self.writes:
            assert any(member.classic is None for member in self.group.members_by_id.values())

    def teardown(self) -> None:
        """Without further events, every member reaches its target, and each shard has a member."""
        if not self.clients:
            return
        for client in self.clients.values():
            if isinstance(client, ClassicClient) and client.phase == "beat":
                client.gives_up()
                client.phase = "join"  # as one does that leads, and sees that topics grew
        for _ in range(40):
            self.now_ms += 3_000
            self.write_all()
            self.step(group_events.TimePassed())
            for client in list(self.clients.values()):
                client.gives_up()
                self.act(client)
                self.write_all()
        has_consumers = any(isinstance(client, Client) for client in self.clients.values())
        assert isinstance(self.group, ConsumerGroup) is has_consumers
        assert self.ids() == {client.member_id for client in self.clients.values()}
        assert self.group.state is GroupState.STABLE
        used = sorted(shard for client in self.clients.values() for shard in client.owned)
        wanted = {
            ShardKey(seen.topic_id, index)
            for client in self.clients.values()
            for name in client.names
            if (seen := self.topics.topic(name)) is not None
            for index in range(seen.shards)
        }
        assert used == sorted(wanted)


TestMixedGroups = MixedGroups.TestCase
TestMixedGroups.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
