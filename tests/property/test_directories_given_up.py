"""Nodes leave with their directories, die and come back; directories are mounted, read, ended and given up by force, in
any order: nothing is given up that a living node, another directory or the object store has, and what is lost was given
up by name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from property.test_retirements import NODES, World
from stratalog.machines.copies.leaving import is_lost_for_good
from stratalog.machines.plans.retirement import Served
from stratalog.model.commands.mount_commands import BeginMount, CloseVolume, DoubtMount, EndMount, OpenVolume, TakeMount
from stratalog.model.commands.retirement_commands import RetireNode
from stratalog.model.errors import Rejected
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Life
from stratalog.model.mounts import Mount, MountMode, MountState
from stratalog.model.retirement import RetireMode
from stratalog.model.segment import RemoteState, Segment, SegmentState


class Directories(World):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.story.mount = self.random.choice((Served.NOT_NEEDED, Served.PENDING))
        for node_id in self.random.sample(NODES, self.random.randrange(3)):
            self.leave_with_volume(node_id)
        self.given_up: set[SegmentKey] = set()
        """By the end of a mount."""
        self.refused = 0

    def leave_with_volume(self, node_id: int) -> None:
        """As far as it gets: the segments that others led, and the nodes that have reported their copy, vary."""
        story, is_forced = self.story, self.random.random() < 0.3
        story.roll_away(node_id)
        story.report_all(only={node_id, self.random.choice(NODES)})
        if is_forced:
            story.die(node_id)
        story.do(RetireNode(node_id, RetireMode.VOLUME, f"storage-{node_id}" if is_forced else None))
        for _ in range(12):
            self.nodes_look()
            self.leader_looks()
            story.roll_away(node_id)
            if self.random.random() < 0.5:
                story.report_all()
        if node_id in self.released:
            story.do(BeginMount(node_id, f"storage-{node_id}", MountMode.VOLUME))

    def step(self) -> None:
        if self.random.random() < 0.6:
            super().step()
            return
        story, node_id = self.story, self.random.choice(NODES)
        mount = story.table.state.mount_of(node_id)
        with contextlib.suppress(Rejected):
            match self.random.randrange(10):
                case 0 if len(self.staying()) > 2 and node_id not in self.released:
                    story.do(RetireNode(node_id, RetireMode.VOLUME))
                case 1 | 2 if node_id in self.released:
                    story.do(BeginMount(node_id, f"storage-{node_id}", MountMode(story.record(node_id).mode)))
                case 3:
                    story.do(OpenVolume(node_id, f"storage-{node_id}", "host", 9, "start"))
                case 4 | 5 if mount is not None and mount.holder is not None:
                    kind = TakeMount if mount.volume is not None else DoubtMount
                    story.do(kind(mount.name, mount.token, caller=Life(mount.holder, mount.holder_epoch)))
                case 6:
                    story.do(CloseVolume(node_id, "start"))
                case 7 if mount is not None:
                    self.end(mount, None)
                case 8 | 9 if mount is not None:
                    self.end(mount, f"storage-{self.random.choice((node_id, node_id, 9))}")
                case _:
                    pass

    def segments(self) -> Iterator[Segment]:
        for shard in self.story.table.snapshot().shards:
            yield from shard.segments

    def has_other(self, segment: Segment, node_id: int) -> bool:
        """Whether anything but what that node left has it, by what is true before its mount ends. An empty one has
        nothing."""
        if segment.end_offset == segment.base_offset:
            return True
        return segment.remote.state is RemoteState.COMPLETE or any(
            self.is_alive(one) or self.is_directory(one) for one in segment.local_nodes if one != node_id
        )

    def is_directory(self, node_id: int) -> bool:
        mount = self.story.table.state.mount_of(node_id)
        if mount is None or mount.mode is not MountMode.VOLUME:
            return False
        return mount.volume is not None or not self.story.record(node_id).is_forced

    def end(self, mount: Mount, force: str | None) -> None:
        story, node_id = self.story, mount.node_id
        listed = [one for one in self.segments() if node_id in one.local_nodes]
        alone = {one.key for one in listed if one.state is SegmentState.SEALED and not self.has_other(one, node_id)}
        before = story.record(node_id)
        is_over = before.is_forced and before.mode is RetireMode.OFFLOAD
        try:
            story.do(EndMount(mount.name, force))
        except Rejected:
            assert story.record(node_id) == before and mount.name in story.table.state.mounts
            self.refused += 1
            raise
        assert force is None or force == mount.storage_id
        after = story.record(node_id)
        new = {one.segment for one in after.given_up[len(before.given_up) :]}
        assert new == (set() if is_over else alone), "just what nothing else has"
        assert after.given_up_count == len(after.given_up)
        if new:
            assert force is not None and after.is_volume_lost
            assert mount.volume is None or mount.state is MountState.TAKING, "nobody reads it"
        self.given_up |= new
        for segment in listed:
            is_kept = segment.key in alone and segment.local_nodes == (node_id,)
            assert (node_id in story.segment(segment.key).local_nodes) is is_kept

    def check_nothing_is_lost_in_silence(self) -> None:
        nodes = {node.node_id: node for node in self.story.table.snapshot().nodes}
        records = [node.retirement for node in nodes.values() if node.retirement is not None]
        told = {one.segment for record in records for one in record.given_up}
        for segment in self.segments():
            if segment.end_offset != segment.base_offset and is_lost_for_good(segment, nodes.get, self.is_read):
                assert segment.key in told

    def is_read(self, node_id: int) -> bool:
        mount = self.story.table.state.mount_of(node_id)
        return self.is_alive(node_id) if mount is None else mount.volume is not None


@pytest.mark.fault("disk-node-dies-node")
@pytest.mark.parametrize("seed", range(80))
def test_nothing_is_given_up_with_a_directory_that_anything_else_has(seed: int) -> None:
    world = Directories(seed)
    for _ in range(250):
        world.step()
        world.check_nothing_is_lost_in_silence()
    world.story.table.check_invariants()
