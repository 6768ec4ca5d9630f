"""Nodes leave while others die, come back, roll, upload and copy, and the service's leader changes at every pass: no
node with the last readable copy of anything is released, and in the end it is over or says why it waits."""

from __future__ import annotations

import random

import pytest

from stratalog.machines.plans.retirement import STALL_MS
from stratalog.machines.table.mount_ends import has_directory
from stratalog.model.commands.retirement_commands import AdvanceRetirement, CancelRetirement, ReleaseNode, RetireNode
from stratalog.model.ids import SegmentKey
from stratalog.model.retirement import Retirement, RetireMode, RetireStep
from stratalog.model.segment import RemoteState, SegmentState
from support.retirement_story import INTERVAL_MS, RetirementStory

NODES = (1, 2, 3, 4)


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.story = RetirementStory(nodes=len(NODES))
        for number, tiered in enumerate(("true", "false", "true")):
            settings = {"remote.storage.enable": tiered}
            self.story.topic(f"topic-{number}", shards=2, replicas=1 + number % 2, settings=settings)
        self.story.topic("quorum", shards=2, replicas=2, settings={"acks.policy": "quorum"})
        self.released: set[int] = set()
        self.readable_before: set[SegmentKey] = set()

    def is_alive(self, node_id: int) -> bool:
        return self.story.table.state.is_alive(node_id)

    def leaving(self) -> list[int]:
        nodes = self.story.table.snapshot().nodes
        return [node.node_id for node in nodes if node.retirement is not None]

    def staying(self) -> list[int]:
        return [node_id for node_id in NODES if self.story.table.state.is_staying(node_id)]

    def step(self) -> None:
        story, node_id = self.story, self.random.choice(NODES)
        is_member = node_id not in self.released
        match self.random.randrange(13):
            case 0 if is_member and not self.leaving():
                story.do(RetireNode(node_id, self.random.choice(list(RetireMode))))
            case 1 if is_member and self.random.random() < 0.2:
                story.do(CancelRetirement(node_id))
            case 2 if self.is_alive(node_id) and sum(map(self.is_alive, NODES)) > 2:
                story.die(node_id)
            case 3 | 4 if is_member and not self.is_alive(node_id):
                story.is_heard(node_id)
            case 5:
                for leaving in self.leaving():
                    story.roll_away(leaving)
            case 6:
                story.report_all(only={self.random.choice(NODES), self.random.choice(NODES)})
            case 7:
                story.report_all()
            case 8 if self.random.random() < 0.5:
                story.upload_all()
            case 9:
                self.story.repair()
            case 10:
                self.nodes_look()
            case 11 if self.random.random() < 0.3 and self.leaving():
                gone = [one for one in self.leaving() if not self.is_alive(one) and one not in self.released]
                if gone and self.random.random() < 0.1:
                    story.do(RetireNode(gone[0], story.record(gone[0]).mode, f"storage-{gone[0]}"))
            case _:
                self.leader_looks()

    def nodes_look(self) -> None:
        for node_id in self.leaving():
            self.story.now_ms += INTERVAL_MS // 2
            by_node = node_id if self.story.record(node_id).mode is RetireMode.VOLUME else None
            by_node = by_node or next(iter(self.staying()), None)
            if by_node is not None and self.is_alive(by_node):
                self.story.sight(node_id, by_node, unconfirmed=self.random.random() < 0.2)
                self.story.write_inventory(node_id, by_node)

    def leader_looks(self) -> None:
        """Another leader each time: nothing of an earlier look is known to it but the table."""
        for node_id in self.leaving():
            before = self.kept_without(node_id)
            self.story.run_pass(node_id)
            if self.story.node(node_id).is_retired and node_id not in self.released:
                self.released.add(node_id)
                self.check_release(node_id, before)

    def kept_without(self, node_id: int) -> dict[SegmentKey, bool]:
        """For each segment of the node: whether another node, or the object store, has all of it."""
        found = {}
        for shard in self.story.table.snapshot().shards:
            for segment in shard.segments:
                if node_id not in segment.replicas and node_id not in segment.local_nodes:
                    continue
                others = [one for one in segment.local_nodes if one != node_id and self.has(one)]
                is_volume = self.story.record(node_id).mode is RetireMode.VOLUME and node_id in segment.local_nodes
                is_complete = segment.remote.state is RemoteState.COMPLETE
                is_sealed = segment.state is SegmentState.SEALED
                is_empty = segment.end_offset == segment.base_offset
                found[segment.key] = is_sealed and bool(others or is_complete or is_volume or is_empty)
        return found

    def has(self, node_id: int) -> bool:
        """Whether what that node is listed for counts as a copy."""
        return self.is_alive(node_id) or has_directory(self.story.table.state, node_id)

    def check_release(self, node_id: int, before: dict[SegmentKey, bool]) -> None:
        record = self.story.record(node_id)
        lost = {key for key, is_kept in before.items() if not is_kept}
        assert lost == {one.segment for one in record.given_up}, "released with the last copy, and nobody gave it up"
        assert not lost or record.is_forced
        assert self.staying(), "somebody stays"


@pytest.mark.fault("node-released-last-readable")
@pytest.mark.parametrize("seed", range(120))
def test_no_node_is_released_that_has_the_last_readable_copy_and_each_retirement_ends(seed: int) -> None:
    world = World(seed)
    for _ in range(100):
        world.step()
    story = world.story
    for node_id in NODES:
        if node_id not in world.released and not world.is_alive(node_id):
            story.is_heard(node_id)
    for rounds in range(30):
        story.stalled_ms = STALL_MS if rounds > 20 else 0  # by then nothing moves that is going to
        for node_id in world.leaving():
            story.roll_away(node_id)
        story.report_all()
        story.upload_all()
        story.repair()
        story.now_ms += INTERVAL_MS
        for node_id in world.leaving():
            by_node = node_id if story.record(node_id).mode is RetireMode.VOLUME else min(world.staying())
            if node_id not in world.released:
                story.sight(node_id, by_node)
                story.write_inventory(node_id, by_node)
        world.leader_looks()
    for node_id in world.leaving():
        record = story.record(node_id)
        assert record.step is RetireStep.DONE or record.wait is not None, f"neither over nor waiting: {record}"


@pytest.mark.fault("meta-service-leader-dies")
@pytest.mark.parametrize("after", range(24))
def test_a_leader_that_ends_after_any_command_leaves_the_next_one_nothing_but_to_continue(after: int) -> None:
    """The commands of a retirement are counted; after the chosen number the leader dies between two commands, and its
    last command comes once more."""
    story = RetirementStory(nodes=4)
    topic = story.topic("orders", shards=2, replicas=2, settings={"remote.storage.enable": "true"})
    story.do(RetireNode(1))
    for done in range(1, 41):
        seen = story.record(1)
        story.run_pass(1)
        if done == after:
            repeat(story, seen)
        story.roll_away(1)
        story.report_all()
        story.upload_all()
        story.now_ms += INTERVAL_MS
        story.sight(1, by_node=2)
        story.write_inventory(1, by_node=2)
    assert story.record(1).step is RetireStep.DONE
    for shard in story.table.snapshot().shards:
        assert shard.key.topic_id == topic.topic_id
        for segment in shard.segments:
            assert 1 not in segment.local_nodes and (segment.leader != 1)


def repeat(story: RetirementStory, seen: Retirement) -> None:
    """What the dead leader had on its way rests on what it saw."""
    for command in (
        AdvanceRetirement(1, seen, RetireStep.VERIFY),
        AdvanceRetirement(1, seen, RetireStep.CORDON),
        ReleaseNode(1, seen),
    ):
        before = story.node(1)
        story.do(command)
        after = story.node(1)
        assert after == before or before.retirement == seen
