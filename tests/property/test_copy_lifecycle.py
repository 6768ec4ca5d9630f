"""Copies are lost, made again, told of late and twice, and nodes come and go: what the table says stays true."""

from __future__ import annotations

import random

import pytest

from stratalog.machines.copies.copy_repair import plan_moves
from stratalog.model.commands.table_commands import MoveReplicas, NodeCommand, ReportLostCopies, ReportReplica
from stratalog.model.ids import SegmentKey
from support.table_stories import TableStory, record_of

NODES = (1, 2, 3, 4, 5)
WANTED = 3


class World:
    """Each node's disk, and words on their way, which come in any order, and some of them twice."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.story = TableStory(nodes=len(NODES))
        topic = self.story.topic(replicas=WANTED, shards=3)
        self.keys: list[SegmentKey] = []
        self.disks: dict[int, set[SegmentKey]] = {node_id: set() for node_id in NODES}
        for shard in range(3):
            active = self.story.active(topic, shard)
            self.story.roll(active.key, 10)
            for node_id in active.replicas:
                self.story.report(active.key, node_id)
                self.disks[node_id].add(active.key)
            self.keys.append(active.key)
        self.words: list[NodeCommand[object]] = []
        self.owed: list[ReportLostCopies] = []
        """Losses that were not reported yet."""
        self.away: set[int] = set()

    def is_alive(self, node_id: int) -> bool:
        return self.story.table.state.is_alive(node_id)

    def step(self) -> None:
        key, node_id = self.random.choice(self.keys), self.random.choice(NODES)
        segment = self.story.segment(key)
        match self.random.randrange(8):
            case 0 if self.is_alive(node_id) and sum(map(self.is_alive, NODES)) > 1:
                self.story.die(node_id)
            case 1 if not self.is_alive(node_id):
                self.story.is_heard(node_id)
                self.away.discard(node_id)
            case 2 if not self.is_alive(node_id):
                self.away.add(node_id)
            case 3 if self.is_alive(node_id):
                self.free_files(node_id, key)
            case 4 if node_id in segment.local_nodes and key in self.disks[node_id]:
                if sum(key in self.disks[holder] for holder in segment.local_nodes) > 1:
                    self.disks[node_id].discard(key)
                    self.owed.append(ReportLostCopies((key,), caller=self.story.life(node_id)))
            case 5 if self.owed:
                self.tell_loss(self.random.choice(self.owed))
            case 6 if self.words:
                self.deliver()
            case _:
                self.repair()
        self.check()

    def free_files(self, node_id: int, key: SegmentKey) -> None:
        """A node sees the record: it copies what it is asked for, and frees what is not its own any more."""
        segment = self.story.segment(key)
        if node_id not in segment.replicas and node_id not in segment.local_nodes:
            self.disks[node_id].discard(key)
        elif node_id not in segment.local_nodes and any(key in self.disks[n] for n in (node_id, *segment.local_nodes)):
            self.disks[node_id].add(key)
            proof = record_of(key, 10, (node_id,))
            self.words.append(ReportReplica(key, proof, segment.isr_version, caller=self.story.life(node_id)))

    def tell_loss(self, word: ReportLostCopies) -> None:
        """Again and again while it is said to hold it: the only holder stays one."""
        self.words.append(word)
        self.story.do(word)
        assert word.caller is not None
        if word.caller.node_id not in self.story.segment(word.segments[0]).local_nodes:
            self.owed.remove(word)

    def deliver(self) -> None:
        number = self.random.randrange(len(self.words))
        word = self.words[number] if self.random.random() < 0.5 else self.words.pop(number)
        self.story.do(word)

    def repair(self) -> None:
        steady = frozenset(filter(self.is_alive, NODES))
        steps = plan_moves(self.story.table.snapshot(), frozenset(self.away), steady)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                self.story.do(MoveReplicas(tuple(done.value.moves)))
                return

    def check(self) -> None:
        owed = {(word.caller.node_id, key) for word in self.owed if word.caller for key in word.segments}
        for key in self.keys:
            holders = self.story.segment(key).local_nodes
            assert holders, "the last copy is never given up"
            for node_id in holders:
                assert key in self.disks[node_id] or (node_id, key) in owed, f"node {node_id} is said to have {key}"


@pytest.mark.fault("report-message-copy-gone")
@pytest.mark.parametrize("seed", range(150))
def test_no_word_that_comes_late_lists_a_copy_that_is_gone_and_in_the_end_there_are_as_many_as_asked_for(
    seed: int,
) -> None:
    world = World(seed)
    for _ in range(120):
        world.step()
    for node_id in NODES:
        if not world.is_alive(node_id):
            world.story.is_heard(node_id)
    world.away.clear()
    for _ in range(12):
        for word in list(world.owed):
            world.tell_loss(word)
        world.repair()
        for key in world.keys:
            for node_id in NODES:
                world.free_files(node_id, key)
        while world.words:
            world.deliver()
        world.check()
    for key in world.keys:
        segment = world.story.segment(key)
        assert len(segment.local_nodes) == len(segment.replicas) == WANTED
