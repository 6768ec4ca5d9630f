"""Faults at the moments that decide what becomes of a leaving node's data.

The usual faults seldom meet such a moment. Each course waits for one kind of it, which the metadata show, and lets
something happen to a machine, a link or the bucket then:

* uploads stuck: a node that leaves in offload mode cannot reach the bucket any more once parts of all that it must
  still upload are there;
* claims lost: a node that was given a data set cannot reach the meta service before it said that it serves it, or a
  person moves the mount just then;
* holders die: a node dies after it was given a data set, or once it serves it, for longer than its lease;
* checks blind: nodes that are asked for their copies are away, and the bucket refuses, while another node checks
  whether a leaving node is needed;
* dies rolling: a node dies for good after a segment that it leads has ended and before that is sealed, and is given up.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from random import Random
from typing import Final

from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.commands.mount_commands import MoveMount
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import ChangeSet, Node, SegmentChanged
from stratalog.model.mounts import Mount, MountState
from stratalog.model.retirement import Retirement, RetireMode, RetireStep
from stratalog.model.segment import RemoteState, Segment, SegmentState
from stratalog_sim.product.leaving_people import People
from stratalog_sim.product.world import LEASE_MS, ProductWorld

_LEASE_S: Final = LEASE_MS / 1_000
_BUCKET: Final = "bucket"
_META: Final = "meta"


class Course(StrEnum):
    USUAL = "usual"
    UPLOADS_STUCK = "uploads stuck"
    CLAIMS_LOST = "claims lost"
    HOLDERS_DIE = "holders die"
    CHECKS_BLIND = "checks blind"
    DIES_ROLLING = "dies rolling"


class Courses:
    """`note` gets what happened, for tests that check that the seeds play it."""

    def __init__(self, world: ProductWorld, people: People, note: Callable[[str], None]) -> None:
        self._world = world
        self._people = people
        self._note = note
        self._rng = rng = Random(f"course {world.seed}")
        self._is_over = False
        self._times = rng.choice((1, 2, 4))
        """How often what the course is about happens, at most."""
        self._stuck: dict[int, None] = {}
        """Nodes that leave in offload mode, and reach the bucket."""
        self._dies: int | None = None
        self._rolls_before = rng.choice((0, 0, 2, 4))
        """How many segments the node ends before it dies rolling: some are sealed, and only its disk has them."""
        self._ended: dict[SegmentKey, None] = {}
        self._die: Callable[[int], None] = lambda _: None
        drawn = rng.choice([*Course, Course.USUAL])
        self.course = drawn if world.shape.course is None else Course(world.shape.course)
        if self.course is Course.DIES_ROLLING and (world.is_quorum or world.has_groups):
            self.course = Course.USUAL

    def end(self) -> None:
        self._is_over = True

    def is_on(self, course: Course) -> bool:
        return self.course is course and not self._is_over and self._times > 0

    def dies_rolling(self, node_id: int, die: Callable[[int], None]) -> None:
        """From now on `die` is called once the node has ended a segment that is not sealed yet."""
        self._dies, self._die = node_id, die

    # What the metadata show -----------------------------------------------------------------------------------------
    def published(self, table: ShardTable, change_set: ChangeSet) -> None:
        for change in change_set.changes:
            if isinstance(change, SegmentChanged):
                self._may_die_rolling(change.segment)
        for node_id in list(self._stuck):
            self._may_lose_bucket(table, node_id)

    def retirement_changed(self, table: ShardTable, node: Node, record: Retirement) -> None:
        if record.step.is_released:
            self._stuck.pop(node.node_id, None)
        elif self.is_on(Course.UPLOADS_STUCK) and record.mode is RetireMode.OFFLOAD and self._world.has_bucket:
            self._stuck.setdefault(node.node_id)
        if record.step is RetireStep.VERIFY and self.is_on(Course.CHECKS_BLIND):
            self._blind(table, node)

    def mount_given(self, mount: Mount) -> None:
        """To another life, or its holder has said that it serves."""
        if mount.holder is None:
            return
        if mount.state is MountState.TAKING and self.is_on(Course.CLAIMS_LOST):
            self._times -= 1
            self._lose_claim(mount, mount.holder)
        elif self.is_on(Course.HOLDERS_DIE) and self._rng.random() < 0.7:
            self._times -= 1
            self._note("a holder is away for longer than its lease")
            down_s = _LEASE_S * (1.5 + 2 * self._rng.random())
            self._world.after(self._rng.random() * 0.05, lambda: self._world.kill(mount.holder or 0, down_s=down_s))

    # What happens then ----------------------------------------------------------------------------------------------
    def _may_lose_bucket(self, table: ShardTable, node_id: int) -> None:
        segments = [one for shard in table.state.shards.values() for one in shard.segments.values()]
        own = [one for one in segments if node_id in one.replicas or node_id in one.local_nodes]
        with_batches = [one for one in own if one.end_offset != one.base_offset]
        left = [one for one in with_batches if one.remote.state is not RemoteState.COMPLETE]
        if not left or any(one.seal is None or one.remote.state is RemoteState.NONE for one in left):
            return
        del self._stuck[node_id]
        self._times -= 1
        self._note("uploads of a leaving node get stuck")
        name = self._name(node_id)
        self._cut([(name, _BUCKET), (_BUCKET, name)], 2 + 4 * self._rng.random())

    def _lose_claim(self, mount: Mount, holder: int) -> None:
        rng = self._rng
        if rng.random() < 0.3:
            self._note("a person moves a mount before its holder serves it")
            self._people.request(MoveMount(mount.name))
            return
        self._note("a holder is cut off before it says that it serves")
        self._cut([(self._name(holder), _META)], _LEASE_S * (1.2 + rng.random()))

    def _blind(self, table: ShardTable, leaving: Node) -> None:
        world, rng = self._world, self._rng
        self._times -= 1
        self._note("a check cannot see copies")
        world.bucket.refuses = 1.0
        world.after(1.0 + 2 * rng.random(), self._bucket_answers)
        for entry in table.state.nodes.values():
            node_id = entry.info.node_id
            if entry.is_alive and node_id != leaving.node_id and rng.random() < 0.5:
                world.kill(node_id, down_s=_LEASE_S * (0.3 + 0.5 * rng.random()))

    def _bucket_answers(self) -> None:
        self._world.bucket.refuses = 0.0

    def _may_die_rolling(self, segment: Segment) -> None:
        is_ended = segment.state is SegmentState.SEALING and segment.end_offset is not None
        if not is_ended or self._dies is None or segment.leader != self._dies or self._is_over:
            return
        self._ended[segment.key] = None
        if len(self._ended) > self._rolls_before:
            node_id, self._dies = self._dies, None
            self._note("a node dies for good before what it rolled is sealed")
            self._world.after(0.0, self._die, node_id)

    # Links ----------------------------------------------------------------------------------------------------------
    def _name(self, node_id: int) -> str:
        return self._world.hosts[node_id].machine.name

    def _cut(self, links: list[tuple[str, str]], lasting_s: float) -> None:
        self._world.network.cut.update(dict.fromkeys(links))
        self._world.say(f"cut {' and '.join(f'{a} -> {b}' for a, b in links)}")
        self._world.after(lasting_s, self._join, links)

    def _join(self, links: list[tuple[str, str]]) -> None:
        for link in links:
            self._world.network.cut.pop(link, None)
        self._world.network.join()
