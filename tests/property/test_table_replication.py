"""Several nodes around the real shard table: whatever they lose and whatever comes late, what was acknowledged stays,
and nothing waits for ever but for a disk that is gone."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from support.replicated_cluster import ReplicatedCluster

NODE = st.integers(1, 4)
HOW = st.sampled_from(["in order", "killed", "killed", "power cut", "power cut", "wiped"])


class ReplicationMachine(RuleBasedStateMachine):
    @initialize(
        nodes=st.integers(2, 4),
        shards=st.integers(1, 2),
        replicas=st.integers(2, 3),
        policy=st.sampled_from(["isr", "quorum"]),
    )
    def begin(self, nodes: int, shards: int, replicas: int, policy: str) -> None:
        self.cluster = ReplicatedCluster(nodes, shards, min(nodes, replicas), policy)
        for number in self.cluster.nodes:
            self.cluster.watch(number)

    def a_node(self, number: int) -> int:
        return (number - 1) % len(self.cluster.nodes) + 1

    @rule(number=NODE, count=st.integers(1, 3))
    def append(self, number: int, count: int) -> None:
        self.cluster.append(self.a_node(number), count)

    @rule(number=NODE, leader=NODE, count=st.integers(0, 4))
    def fetch(self, number: int, leader: int, count: int) -> None:
        self.cluster.fetch(self.a_node(number), self.a_node(leader), count)

    @rule(count=st.integers(1, 4))
    def all_append_and_follow(self, count: int) -> None:
        for number in self.cluster.nodes:
            self.cluster.append(number, count)
        for _ in range(2):
            for number in self.cluster.nodes:
                for leader in self.cluster.nodes:
                    self.cluster.fetch(number, leader, count)

    @rule(number=NODE)
    def watch(self, number: int) -> None:
        self.cluster.watch(self.a_node(number))

    @rule(number=NODE, wanted=st.sets(NODE))
    def propose(self, number: int, wanted: set[int]) -> None:
        self.cluster.propose(self.a_node(number), wanted)

    @rule(number=NODE)
    def prepare(self, number: int) -> None:
        self.cluster.prepare(self.a_node(number))

    @rule(number=NODE)
    def roll(self, number: int) -> None:
        self.cluster.roll(self.a_node(number))

    @rule(number=NODE)
    def promise(self, number: int) -> None:
        self.cluster.promise(self.a_node(number))

    @rule(number=NODE)
    def copy_and_report(self, number: int) -> None:
        self.cluster.copy(self.a_node(number))
        self.cluster.report(self.a_node(number))

    @rule(number=NODE)
    def flush(self, number: int) -> None:
        self.cluster.flush(self.a_node(number))

    @rule(number=NODE, how=HOW, kept=st.integers(0, 6))
    def stop(self, number: int, how: str, kept: int) -> None:
        self.cluster.stop(self.a_node(number), how, kept)

    @rule(number=NODE)
    def start(self, number: int) -> None:
        self.cluster.start(self.a_node(number))

    @rule(number=NODE, is_alive=st.booleans())
    def note(self, number: int, is_alive: bool) -> None:
        self.cluster.note(self.a_node(number), is_alive=is_alive)

    @precondition(lambda self: self.cluster.wire)
    @rule(chance=st.integers(0, 1_000), is_kept=st.booleans(), is_answered=st.booleans())
    def deliver(self, chance: int, is_kept: bool, is_answered: bool) -> None:
        self.cluster.deliver(chance % len(self.cluster.wire), is_kept=is_kept, is_answered=is_answered)

    @precondition(lambda self: self.cluster.wire)
    @rule()
    def deliver_all(self) -> None:
        while self.cluster.wire:
            self.cluster.deliver(0)

    @precondition(lambda self: self.cluster.wire)
    @rule(chance=st.integers(0, 1_000))
    def lose(self, chance: int) -> None:
        self.cluster.wire.pop(chance % len(self.cluster.wire))

    @rule()
    def settle(self) -> None:
        self.cluster.settle()

    @invariant()
    def what_must_hold(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.check()


ReplicationMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
test_any_failures_of_nodes_and_messages = ReplicationMachine.TestCase
