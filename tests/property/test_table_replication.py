"""Several nodes around the real shard table: whatever they lose and whatever comes late, what was acknowledged stays,
and nothing waits forever but for a disk that is gone.

Each seed is one life of a cluster, the same each time. Steps are weighed, so that segments get far enough to have
something to lose; the last tests show that forgetting a rule is found.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from stratalog.machines.copies import recovery_rule
from stratalog.machines.copies.recovery_rule import Decided, Waiting
from stratalog.machines.table import lives as table_lives
from stratalog.machines.table import recovery as table_recovery
from stratalog.machines.table import rolls as table_rolls
from stratalog.model.segment import Segment
from support.replicated_cluster import ReplicatedCluster

SEEDS: Final = 400
STEPS: Final = 120
WEIGHTS: Final = {
    "work": 12,
    "append": 4,
    "fetch": 8,
    "watch": 10,
    "propose": 5,
    "prepare": 2,
    "roll": 2,
    "promise": 8,
    "copy and report": 6,
    "flush": 2,
    "stop": 4,
    "start": 6,
    "note": 6,
    "deliver": 14,
    "deliver all": 8,
    "lose": 2,
    "move": 8,
    "settle": 1,
}


class ClusterLife:
    """One random life. `history` lists its steps, for the reader of a failure."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        nodes = self._chance.randint(2, 4)
        replicas = self._chance.randint(2, min(3, nodes))
        policy = self._chance.choice(["isr", "quorum"])
        self.cluster = ReplicatedCluster(nodes, self._chance.randint(1, 2), replicas, policy)
        self.history = [f"seed {seed}: {nodes} nodes, {replicas} replicas, {policy}"]
        for number in self.cluster.nodes:
            self.cluster.watch(number)

    def play(self) -> None:
        for _ in range(STEPS):
            (deed,) = self._chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
            self._do(deed)
            self.cluster.check()
        self._step("settle", self.cluster.settle)
        self.cluster.check()

    def _step(self, deed: str, step: Callable[..., Any], *args: Any, **named: Any) -> None:
        self.history.append(f"{deed} {args or ''} {named or ''}".strip())
        step(*args, **named)

    def _do(self, deed: str) -> None:
        cluster, chance = self.cluster, self._chance
        number = chance.choice(list(cluster.nodes))
        match deed:
            case "work":
                self._step(deed, self._work, chance.randint(1, 3))
            case "append":
                self._step(deed, cluster.append, number, chance.randint(1, 3))
            case "fetch":
                self._step(deed, cluster.fetch, number, chance.choice(list(cluster.nodes)), chance.randint(0, 4))
            case "propose":
                self._step(deed, cluster.propose, number, {node for node in cluster.nodes if chance.random() < 0.6})
            case "copy and report":
                self._step("copy", cluster.copy, number)
                self._step("report", cluster.report, number)
            case "stop":
                how = chance.choice(["killed"] * 3 + ["power cut"] * 4 + ["in order", "wiped"])
                self._step(deed, cluster.stop, number, how, chance.randint(0, 6))
            case "note":
                self._step(deed, cluster.note, number, is_alive=chance.random() < 0.5)
            case "deliver" | "lose" if cluster.wire:
                at = chance.randrange(len(cluster.wire))
                if deed == "lose":
                    self._step(deed, cluster.wire.pop, at)
                else:
                    is_kept, is_answered = chance.random() < 0.2, chance.random() < 0.8
                    self._step(deed, cluster.deliver, at, is_kept=is_kept, is_answered=is_answered)
            case "move":
                dead = [node for node in cluster.nodes if not cluster.table.state.is_alive(node)]
                away = {node for node in dead if chance.random() < 0.5}
                steady = {node for node in cluster.nodes if node not in dead and chance.random() < 0.7}
                self._step(deed, cluster.move, away, steady)
            case "deliver all":
                while cluster.wire:
                    self._step(deed, cluster.deliver, 0)
            case "settle":
                self._step(deed, cluster.settle)
            case "watch" | "prepare" | "roll" | "promise" | "flush" | "start":
                self._step(deed, getattr(cluster, deed), number)

    def _work(self, count: int) -> None:
        for number in self.cluster.nodes:
            self.cluster.append(number, count)
        for _ in range(2):
            for number in self.cluster.nodes:
                for leader in self.cluster.nodes:
                    self.cluster.fetch(number, leader, 3)


def play(seeds: range) -> None:
    for seed in seeds:
        life = ClusterLife(seed)
        try:
            life.play()
        except Exception as error:
            raise AssertionError("\n".join([*life.history, str(error)])) from error


@pytest.mark.parametrize("tenth", range(10))
def test_what_was_acknowledged_stays_and_nothing_is_stuck(tenth: int) -> None:
    play(range(tenth * SEEDS // 10, (tenth + 1) * SEEDS // 10))


# It bites -------------------------------------------------------------------------------------------------------
def _doubts_nobody(segment: Segment, *_: object, **__: object) -> Segment:
    return segment


def _decides_with_any_vote(segment: Segment, **how: Any) -> Decided | Waiting:
    decision = recovery_rule.decide(segment, **how)
    if isinstance(decision, Waiting) and decision.best is not None:
        return Decided(decision.best, is_certain=True)
    return decision


def _forgets_who_left_in_doubt(segment: Segment, **how: Any) -> Decided | Waiting:
    doubts = tuple(doubt for doubt in segment.handed.doubts if doubt.node_id in segment.isr)
    return recovery_rule.decide(replace(segment, handover=replace(segment.handed, doubts=doubts)), **how)


def _keeps_the_word_of_a_life_before(segment: Segment, *_: object, **__: object) -> Segment:
    return segment


def _is_enough(_: Segment) -> int:
    return 1


def _lets_an_earlier_leader_roll(*_: object) -> None:
    pass


@pytest.mark.parametrize(
    ("module", "rule", "wrong"),
    [
        (table_lives, "_doubted", _doubts_nobody),
        (table_lives, "_without_its_vote", _keeps_the_word_of_a_life_before),
        (table_recovery, "decide", _decides_with_any_vote),
        (table_recovery, "decide", _forgets_who_left_in_doubt),
        (recovery_rule, "majority", _is_enough),
        (table_rolls, "check_leader", _lets_an_earlier_leader_roll),
    ],
)
def test_a_forgotten_rule_is_found(
    module: object, rule: str, wrong: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, rule, wrong)
    with pytest.raises(AssertionError, match="seed"):
        play(range(10 * SEEDS))
