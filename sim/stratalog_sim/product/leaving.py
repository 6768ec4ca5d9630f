"""Nodes come and go in a world of the product's own processes: the seed says what people ask for, and all usual faults
happen meanwhile.

A node is added; one to three nodes leave, in either mode, together or one after another; people cancel some of these
retirements, in time or too late. A node that was released in offload mode loses its disk, and all that only this disk
held is gone. After a release in volume mode another process reads the node's directory. The meta service dies after
any change of a retirement or a mount, before any node hears of it; the holder of a data set dies before or after it
takes the data set. A node dies for good, and is given up by force. People mount a topic, read it, and rebalance.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from functools import partial
from random import Random
from typing import Final

from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.commands.mount_commands import CreateMount, MoveMount
from stratalog.model.commands.retirement_commands import CancelRetirement, RetireNode
from stratalog.model.metadata import ChangeSet, MountChanged, MountEnded, Node, NodeChanged
from stratalog.model.mounts import Mount, MountState, data_set_name
from stratalog.model.retirement import Retirement, RetireMode, RetireStep
from stratalog_node.leaving.node_verifier import NodeVerifier, Verified
from stratalog_node.shards.catalog import lost_segments
from stratalog_node.volume import volume_node
from stratalog_sim.planting import planted
from stratalog_sim.product.clients import Consumer
from stratalog_sim.product.faults import Faults
from stratalog_sim.product.files import FileSystem
from stratalog_sim.product.leaving_courses import Course, Courses
from stratalog_sim.product.leaving_people import People
from stratalog_sim.product.leaving_truth import LeavingTruth
from stratalog_sim.product.leaving_volumes import Volumes, listen_on
from stratalog_sim.product.why_waits import why_waits
from stratalog_sim.product.world import TOPIC, ProductWorld

DEATHS: Final = (
    "wished",
    "cancelled",
    *(step.value for step in RetireStep if step is not RetireStep.PREFLIGHT),
    "checked",
    "inventory",
    *(state.value for state in MountState),
    "volume opened",
)
"""Changes of a retirement or a mount. In each seed in turn the service dies after one of them."""
_MOUNT: Final = "by-hand"
_MAX_TIME_MS: Final = 1 << 50
_ENDS_WITHIN_S: Final = 40.0
_WAITS_S: Final = 3.0
"""A reason to wait that still holds this long after all faults ended is permanent."""
_POLL_S: Final = 0.1
_PATIENCE_MS: Final = 3_000
"""How long a living replica may still report a copy of what seems lost. A minute in production."""


def copies_of(seed: int) -> int:
    """Of usual seeds only each twentieth has nodes that come and go, and these are all odd: so the twenties count."""
    return 1 + (seed + seed // 20) % 2


def death_of(seed: int) -> str:
    """After which change the service dies: each in turn, with one copy and with two."""
    number = seed + seed // 20
    return DEATHS[(number + number // len(DEATHS)) % len(DEATHS)]


class LeavingNodes:
    def __init__(self, world: ProductWorld) -> None:
        self._world = world
        self._rng = rng = Random(f"leaving {world.seed}")
        self.truth = LeavingTruth(world.truth)
        self.people = People(world, self.truth)
        self.volumes = Volumes(world)
        self.happened: dict[str, None] = {}
        """The events of this history, for tests that check that the seeds play every kind of event."""
        self._dies_behind: str | None = death_of(world.seed)
        self._deaths = rng.choice((0, 2, 5))
        """Of the meta service, behind any steps."""
        self._kills = rng.choice((0, 1, 3))
        """Of holders."""
        self._is_over = False
        self._courses = Courses(world, self.people, self._note)
        self._records: dict[int, Retirement | None] = {}
        self._mounts: dict[str, Mount] = {}
        self._readers: list[Consumer] = []
        if rng.random() < 0.3:
            world.rack_of = lambda node_id: "ab"[node_id % 2]
        world.meta.loses_answers = rng.choice((0.01, 0.1))
        world.truth.after_publish.append(self._published)
        world.truth.on_served = self.truth.served
        world.other_seams.append(self._seams)

    async def run(self) -> None:
        world = self._world
        for consumer in world.consumers:
            self._watch(consumer)
        world.on_reader = self._watch
        self._plan()
        faults = Faults(world)
        await asyncio.sleep(world.shape.seconds)
        self._is_over = True
        self._courses.end()
        faults.end()
        world.start_wanted()
        await self._settle()

    def _seams(self) -> AbstractContextManager[None]:
        """Each check of a leaving node is known to the truth, and what reads a directory listens in the simulation."""
        verify = NodeVerifier.verify

        async def verify_seen(verifier: NodeVerifier, node: Node) -> Verified:
            found = await verify(verifier, node)
            self.truth.looked(node, self._world.loop.now_s * 1_000, is_clean=not found.unconfirmed_count)
            return found

        return planted(
            lambda: [
                (NodeVerifier, "verify", verify_seen),
                (volume_node, "listen_on", listen_on),
                (lost_segments, "PATIENCE_MS", _PATIENCE_MS),
            ]
        )

    # What clients may see -------------------------------------------------------------------------------------------
    def _watch(self, consumer: Consumer) -> None:
        place = consumer.topic, consumer.shard
        consumer.past_lost = partial(self.truth.past_lost, place)
        consumer.may_skip = partial(self.truth.may_skip, place)

    # What is wished for ---------------------------------------------------------------------------------------------
    def _plan(self) -> None:
        rng, world, seconds = self._rng, self._world, self._world.shape.seconds
        for node_id in range(world.shape.nodes + 1, world.shape.nodes + world.shape.spares + 1):
            world.after(rng.random() * seconds * 0.6, self._add, node_id)
        first_s, are_together = 0.2 + rng.random() * 0.3 * seconds, rng.random() < 0.5
        if rng.random() < 0.4:
            world.after(first_s + rng.random(), self._store_goes_away, 0.5 + 2 * rng.random())
        leaving = rng.sample(range(1, world.shape.nodes + 1), rng.choice((1, 1, 2, 2, 3)))
        # If both of two replicas have to acknowledge, a shard cannot continue without one of them. A group log whose
        # only copy is gone is never read.
        may_die = not world.is_quorum and not world.has_groups
        dies_rolling = self._courses.is_on(Course.DIES_ROLLING)
        if (rng.random() < 0.3 and may_die) or dies_rolling:
            dead, leaving = leaving[0], leaving[1:2]
            if dies_rolling:
                world.after(first_s, self._courses.dies_rolling, dead, self._dies_for_good)
            else:
                world.after(first_s + 2 * rng.random(), self._dies_for_good, dead)
        for node_id in leaving:
            at_s = first_s if are_together else first_s + rng.random() * (seconds - first_s)
            self._wish(node_id, at_s)
        if rng.random() < 0.5:
            mount = CreateMount(_MOUNT, (TOPIC,), 0, _MAX_TIME_MS)
            world.after(0.3 * seconds + 0.6 * rng.random() * seconds, self.people.request, mount)
        if rng.random() < 0.3:
            world.after(rng.random() * seconds, self._rebalance)

    def _wish(self, node_id: int, at_s: float) -> None:
        rng, world = self._rng, self._world
        mode = rng.choice(list(RetireMode))
        world.after(at_s, self.people.request, RetireNode(node_id, mode))
        if rng.random() < 0.25:
            taken_back_s = at_s + 3.5 * rng.random()
            world.after(taken_back_s, self.people.request, CancelRetirement(node_id))
            if rng.random() < 0.5:
                world.after(taken_back_s + rng.random(), self.people.request, RetireNode(node_id, mode))
        if rng.random() < 0.3:
            world.after(at_s + 2.5 + 2 * rng.random(), self.people.request, MoveMount(data_set_name(node_id)))

    def _rebalance(self) -> None:
        self._world.say("a person rebalances")
        self._world.spawn(self._world.clients, self.people.rebalance())

    def _add(self, node_id: int) -> None:
        self._world.say(f"node {node_id} is added")
        self._note("a node is added")
        self._world.hosts[node_id].is_wanted = True
        self._world.start(node_id)

    def _store_goes_away(self, lasting_s: float) -> None:
        if self._is_over:
            return
        self._world.say("the bucket is away")
        self._world.bucket.refuses = 1.0
        self._world.after(lasting_s, self._store_is_back)
        if any(record is not None and not record.step.is_released for record in self._records.values()):
            self._note("the store is away while a node leaves")

    def _store_is_back(self) -> None:
        self._world.bucket.refuses = 0.0

    def _note(self, what: str) -> None:
        self.happened[what] = None

    # What happens ---------------------------------------------------------------------------------------------------
    def _dies_for_good(self, node_id: int) -> None:
        """A person waits for the node for a while, then retires it like any other, and in the end by force."""
        rng, world = self._rng, self._world
        world.say(f"node {node_id} dies, and never comes back")
        self._note("a node dies for good")
        self.truth.dead[node_id] = None
        world.hosts[node_id].is_wanted = False
        world.kill(node_id, down_s=0.1)
        world.after(1.5 * rng.random(), self.people.request, RetireNode(node_id))
        world.after(1.5 + 4 * rng.random(), self.people.force, node_id)

    def _published(self, table: ShardTable, change_set: ChangeSet) -> None:
        self.truth.published(table, change_set)
        for change in change_set.changes:
            match change:
                case NodeChanged(node):
                    self._node_changed(table, node)
                case MountChanged(mount):
                    self._mount_changed(mount)
                case MountEnded(name):
                    self._mounts.pop(name, None)
                case _:
                    pass
        self._courses.published(table, change_set)

    def _node_changed(self, table: ShardTable, node: Node) -> None:
        before, after = self._records.get(node.node_id), node.retirement
        self._records[node.node_id] = after
        if before == after:
            return
        if after is not None:
            self._courses.retirement_changed(table, node, after)
        if after is None:
            self._note("a retirement is taken back")
            self._may_die_behind("cancelled")
        elif before is None:
            self._may_die_behind("wished")
        elif after.step is not before.step:
            if after.step is RetireStep.RELEASE:
                self._released(table, node.node_id, after)
            self._may_die_behind(after.step.value)
        elif after.sightings != before.sightings:
            self._may_die_behind("checked")
        elif after.inventory_key != before.inventory_key:
            self._may_die_behind("inventory")

    def _mount_changed(self, mount: Mount) -> None:
        before = self._mounts.get(mount.name)
        self._mounts[mount.name] = mount
        if mount.topics:
            if before is None:
                self._note("a client reads a mount that a person made")
                for shard in range(self._world.shards):
                    self._read_mount(f"m{shard}", mount.name, shard)
            return
        if mount.volume is not None and (before is None or before.volume != mount.volume):
            self._may_die_behind("volume opened")
        if before is None or (before.token, before.state) != (mount.token, mount.state):
            self._may_kill(mount)
            self._courses.mount_given(mount)
            self._may_die_behind(mount.state.value)

    def _may_die_behind(self, step: str) -> None:
        if self._is_over:
            return
        if step == self._dies_behind:
            self._dies_behind = None
        elif self._deaths and self._rng.random() < 0.25:
            self._deaths -= 1
        else:
            return
        self._note(f"the service dies behind {step}")
        self._world.say(f"behind: {step}")
        self._world.restart_meta(0.05 + 0.5 * self._rng.random())

    def _may_kill(self, mount: Mount) -> None:
        """Its holder, before it took the set, or behind that."""
        if self._kills and mount.holder is not None and not self._is_over and self._rng.random() < 0.5:
            self._kills -= 1
            self._note(f"a holder dies {'behind' if mount.state is MountState.SERVING else 'before'} its taking a set")
            down_s = 0.2 + 2 * (mount.token % 2)
            self._world.after(self._rng.random() * 0.12, lambda: self._world.kill(mount.holder or 0, down_s=down_s))

    def _released(self, table: ShardTable, node_id: int, record: Retirement) -> None:
        """Its process ends, and is not meant to be started again."""
        rng, world = self._rng, self._world
        self._note(f"released in {record.mode} mode")
        world.say(f"node {node_id} is released")
        if sum(entry.is_leaving for entry in table.state.nodes.values()) > 1:
            self._note("two leave at once")
        if node_id in self.truth.dead:
            if record.given_up:
                self._note("what a dead node alone had is given up")
            self._wipe(node_id)
            return
        world.hosts[node_id].is_wanted = False
        if rng.random() < 0.3 and not self._is_over:  # a person restarts it by mistake
            self._note("who was released is started again")
            world.hosts[node_id].is_wanted = True
            world.kill(node_id, down_s=0.1)
        world.after(0.1 + 0.9 * rng.random(), self._ends, node_id, record.mode)
        if rng.random() < 0.3:  # after that it would be too late
            world.after(0.5 + 3 * rng.random(), self.people.request, CancelRetirement(node_id))

    def _ends(self, node_id: int, mode: RetireMode) -> None:
        world = self._world
        world.hosts[node_id].is_wanted = False
        world.kill(node_id, down_s=0.1)
        if mode is RetireMode.OFFLOAD:
            self._wipe(node_id)
            return
        self.volumes.begin(node_id)
        if self._rng.random() < 0.4:
            world.after(3 * self._rng.random(), self._kill_volume, node_id)

    def _wipe(self, node_id: int) -> None:
        """All that only this disk held is gone."""
        self._world.say(f"node {node_id} is gone, with its disk")
        machine = self._world.hosts[node_id].machine
        machine.files = FileSystem(Random(node_id))
        self._world.truth.in_doubt[node_id] = None

    def _kill_volume(self, node_id: int) -> None:
        if not self._is_over:
            self._note("what reads a directory dies")
            self.volumes.kill(node_id, down_s=0.3 + 2.5 * self._rng.random())

    # Readers of a mount ---------------------------------------------------------------------------------------------
    def _read_mount(self, name: str, mount: str, shard: int) -> Consumer:
        world, place = self._world, (TOPIC, shard)
        reader = Consumer(name, f"{TOPIC}@{mount}", shard, world.wire(), Random(self._rng.random()))
        reader.on_shown = lambda one, offset, value: self.truth.mount_shown(one.name, mount, place, offset, value)
        reader.on_back = lambda one, what: world.truth.fail("a mount shows the same each time", f"{one.name} {what}")
        reader.past_lost = partial(self.truth.past_lost, place)
        reader.may_skip = partial(self.truth.may_skip, place)
        self._readers.append(reader)
        world.spawn(world.clients, reader.run())
        return reader

    # The end --------------------------------------------------------------------------------------------------------
    async def _settle(self) -> None:
        """Each retirement is over, or waits for what is so; then the load is evened out, and the mount read again."""
        world = self._world
        ends_s, settled_s = world.loop.now_s + _ENDS_WITHIN_S, -1.0
        while True:
            undone = self._undone()
            wrong = self._wrong(undone)
            if wrong:
                settled_s = -1.0
            elif settled_s < 0:
                settled_s = world.loop.now_s
            if not wrong and (not undone or world.loop.now_s - settled_s > _WAITS_S):
                break
            if world.loop.now_s > ends_s:
                world.truth.fail("a retirement ends, or reports why it waits", "; ".join(wrong))
                return
            await asyncio.sleep(_POLL_S)
        await self.people.rebalance()
        await self._read_mounts()

    def _undone(self) -> list[int]:
        found = self._records.items()
        return [one for one, record in found if record is not None and record.step is not RetireStep.DONE]

    def _wrong(self, undone: list[int]) -> list[str]:
        table = self._world.meta.table
        if table is None:
            return ["the meta service is away"]
        state, volumes = table.state, self.volumes.read
        found = [f"node {one} {why}" for one in undone if (why := why_waits(state, one, volumes))]
        for mount in state.mounts.values():
            is_held = mount.holder is not None and state.is_alive(mount.holder)
            if not mount.topics and not is_held and any(entry.is_alive for entry in state.nodes.values()):
                found.append(f"{mount.name} has no holder that is alive")
        return found

    async def _read_mounts(self) -> None:
        """New readers of the manual mount, from its start."""
        for reader in self._readers:
            reader.is_over = True
        for mount, topics in self.truth.mounted.items():
            again = [self._read_mount(f"n{shard}", mount, shard) for shard in range(self._world.shards)]
            ends_s = self._world.loop.now_s + _ENDS_WITHIN_S
            ranges = topics[0].ranges
            while any(one.position < ranges[one.shard].end_offset for one in again):
                if self._world.loop.now_s > ends_s:
                    late = [f"{one.name} at {one.position} of {ranges[one.shard]}" for one in again]
                    self._world.truth.fail("a mount can be read once all faults have ended", f"{late}")
                    return
                await asyncio.sleep(_POLL_S)
