"""A simulated cluster whose nodes join and leave: the seed determines what users ask for, and faults happen meanwhile.

A node is added; one to three nodes leave, in either mode, together or one after another; users cancel some of these
retirements. A node that was released in offload mode loses its disk, and all that only this disk held is gone. After a
release in volume mode, another process reads the node's directory. The meta service dies after any change of a
retirement; the holder of a data set dies before or after it takes the data set.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final
from uuid import UUID

from stratalog.model.commands.mount_commands import (
    BeginMount,
    CloseVolume,
    CreateMount,
    DoubtMount,
    MoveMount,
    OpenVolume,
    ReleaseMount,
    TakeMount,
)
from stratalog.model.commands.retirement_commands import (
    AdvanceRetirement,
    CancelRetirement,
    ReleaseNode,
    ReportInventory,
    ReportSighting,
    RetireNode,
)
from stratalog.model.commands.table_commands import CommitParts
from stratalog.model.ids import ShardKey
from stratalog.model.mounts import Mount, MountState, data_set_name
from stratalog.model.retirement import RetireMode, RetireStep
from stratalog.model.segment import Segment
from stratalog_sim.broken import Broken
from stratalog_sim.clients.clients import MountReader
from stratalog_sim.clients.people import MOST_ROUNDS, People
from stratalog_sim.clients.volume import VolumeLife
from stratalog_sim.worlds.simulated_machines import Shape
from stratalog_sim.worlds.world import SimulatedWorld

STEPS: Final = (
    RetireNode,
    CancelRetirement,
    AdvanceRetirement,
    ReportSighting,
    ReportInventory,
    ReleaseNode,
    BeginMount,
    TakeMount,
    ReleaseMount,
    DoubtMount,
    OpenVolume,
    CloseVolume,
)
"""Behind each of them the meta service may die."""
DEATHS: Final = (
    "RetireNode",
    "preflight",
    "cordon",
    "seal",
    "offload",
    "verify",
    "ReportSighting",
    "snapshot",
    "ReportInventory",
    "ReleaseNode",
    "mount",
    "BeginMount",
    "TakeMount",
    "done",
    "CancelRetirement",
    "OpenVolume",
)
"""Behind which of them it dies in each seed in turn, where the seed comes to that; behind others at random."""
_MAX_TIME_MS = 1 << 50
_ENDS_WITHIN_MS = 40_000
_WAITS_MS = 4_000
"""A reason to wait that still holds this long after all faults ended is permanent."""


class LeavingWorld(SimulatedWorld):
    def __init__(self, seed: int, shape: Shape) -> None:
        super().__init__(seed, shape)
        self.may_wipe = False
        rng = self.rng
        self._has_racks = rng.random() < 0.3
        self._deaths = rng.choice((0, 2, 5))
        """Of the meta service, behind any steps."""
        self._dies_behind: str | None = DEATHS[(seed // 5 + 3 * (seed % 5)) % len(DEATHS)]
        """And once behind this one. Both seeds that follow each other and those of `world.shape_of` come to all."""
        self._kills = rng.choice((0, 1, 3))
        """Of holders."""
        chances = Random(f"slow {seed}")  # of their own, so that the others stay as they are
        self._is_slow = {node_id: chances.random() < 0.5 for node_id in self.disks}
        """Whose uploads get stuck before it is retired with its volume."""
        self._volumes: dict[int, VolumeLife] = {}
        self._is_over = False
        self._held: dict[str, tuple[int, MountState]] = {}
        self.mount_readers: list[MountReader] = []
        self.happened: dict[str, None] = {}
        """The events of this history, for tests that check that the seeds play every kind of event."""
        self.people = People("people", self.scheduler, self.network)
        self.people.judge = self.judge
        self.network.join("people", self.people)

    def rack_of(self, node_id: int) -> str | None:
        return "ab"[node_id % 2] if self._has_racks else None

    # What is wished for ---------------------------------------------------------------------------------------------
    def _set_up(self) -> None:
        super()._set_up()
        rng = self.rng
        for node_id in range(self.shape.nodes + 1, self.shape.nodes + self.shape.spares + 1):
            self.after(rng.randrange(self.shape.trouble_ms * 2 // 3), self._add, node_id)
        first_ms, are_together = 200 + rng.randrange(1_500), rng.random() < 0.5
        if rng.random() < 0.4:
            self.after(first_ms + rng.randrange(1_000), self._store_goes_away, 500 + rng.randrange(2_000))
        leaving = rng.sample(self.node_ids, rng.choice((1, 1, 2, 2, 3)))
        # If both of two replicas have to acknowledge, a shard cannot continue without one of them.
        if rng.random() < 0.3 and not self.is_quorum:
            dead, leaving = leaving[0], leaving[1:2]
            self.after(first_ms + rng.randrange(2_000), self._dies_for_good, dead)
        for node_id in leaving:
            mode = rng.choice(list(RetireMode))
            at_ms = first_ms if are_together else first_ms + rng.randrange(self.shape.trouble_ms - first_ms)
            self.after(at_ms, self.people.request, RetireNode(node_id, mode))
            if mode is RetireMode.VOLUME and self._is_slow[node_id]:
                self.after(max(0, at_ms - 500), self._stall_uploads, node_id)
            if rng.random() < 0.25:
                taken_back_ms = at_ms + rng.randrange(3_500)
                self.after(taken_back_ms, self.people.request, CancelRetirement(node_id))
                if rng.random() < 0.3:
                    self.after(taken_back_ms + rng.randrange(800), self.people.request, RetireNode(node_id, mode))
            elif rng.random() < 0.3:  # it may be too late
                self.after(at_ms + 3_000 + rng.randrange(4_000), self.people.request, CancelRetirement(node_id))
            if rng.random() < 0.3:
                self.after(self.shape.trouble_ms * 3 // 4, self.people.request, MoveMount(data_set_name(node_id)))
        if rng.random() < 0.4:
            mount = CreateMount("by-hand", ("topic",), 0, _MAX_TIME_MS)
            self.after(rng.randrange(self.shape.trouble_ms), self.people.request, mount)
        if rng.random() < 0.3:
            self.after(rng.randrange(self.shape.trouble_ms), lambda: self.people.spawn(self.people.rebalance()))

    def _dies_for_good(self, node_id: int) -> None:
        """A person waits for the node for a while, then retires it like any other, and in the end by force."""
        self.say(f"node {node_id} dies, and never comes back")
        self._note("a node dies for good")
        self.end_process(node_id)
        self.judge.leaving.dead[node_id] = False
        self._is_gone(node_id)
        self.node_names.remove(f"node-{node_id}")
        self.after(self.rng.randrange(1_500), self.people.request, RetireNode(node_id))
        forced = RetireNode(node_id, RetireMode.OFFLOAD, f"storage-{node_id}-{self.disks[node_id].storage}")
        self.after(1_500 + self.rng.randrange(4_000), self.people.force, forced)

    def _is_gone(self, node_id: int) -> None:
        self.gone[node_id] = None
        self.node_ids.remove(node_id)

    def _stall_uploads(self, node_id: int) -> None:
        """What it has not uploaded when it is released is in its directory alone."""
        node = self.nodes.get(node_id)
        if node is not None:
            self.say(f"uploads of node {node_id} get stuck")
            node.uploads.stalled_until_ms = self.scheduler.now_ms + self.shape.trouble_ms

    def _store_goes_away(self, lasting_ms: int) -> None:
        if not self._is_over:
            self.store.refuses = 1.0
            self.say("the store is away")
            self.after(lasting_ms, self._store_is_back)
            if any(entry.is_leaving for entry in self.meta.table.state.nodes.values()):
                self._note("the store is away while a node leaves")

    def _store_is_back(self) -> None:
        self.store.refuses = 0.0

    def _note(self, what: str) -> None:
        self.happened[what] = None

    def _add(self, node_id: int) -> None:
        if self._is_over:
            return
        self.say(f"node {node_id} is added")
        self._note("a node is added")
        self.node_ids.append(node_id)
        self.node_names.append(f"node-{node_id}")
        self.start_node(node_id)

    # What happens -----------------------------------------------------------------------------------------------------
    def applied(self, command: Any, result: Any, changed: list[Segment]) -> None:
        super().applied(command, result, changed)
        if isinstance(command, CancelRetirement):
            self._note("a retirement is taken back")
        if isinstance(command, CreateMount) and not self.mount_readers:
            self._note("a client reads a mount that a person made")
            self._read_mount(command.name, result.topics[0].topic_id)
        if isinstance(command, ReleaseNode) and result:
            leaving = [one for one, entry in self.meta.table.state.nodes.items() if entry.is_leaving]
            self._note(f"released in {command.seen.mode} mode")
            if len(leaving) > 1:
                self._note("two leave at once")
            self._released(command.node_id, command.seen.mode)
        if isinstance(command, CommitParts) and any(self._is_from_a_directory(command, one) for one in changed):
            self._note("what a directory alone has is uploaded")
        for mount in self.meta.table.state.mounts.values():
            if mount.holder is not None and self._held.get(mount.name) != (mount.token, mount.state):
                self._held[mount.name] = mount.token, mount.state
                self._may_kill(mount)
        if isinstance(command, STEPS):
            self._may_die_behind(command.step if isinstance(command, AdvanceRetirement) else type(command).__name__)

    def _may_die_behind(self, step: str) -> None:
        if step == self._dies_behind:
            self._dies_behind = None
        elif self._deaths and self.rng.random() < 0.25:
            self._deaths -= 1
        else:
            return
        self._note(f"the service dies behind {step}")
        self.restart_meta(down_ms=50 + self.rng.randrange(500))

    @staticmethod
    def _is_from_a_directory(command: CommitParts, segment: Segment) -> bool:
        """Who commits has no copy of what is sealed."""
        caller = command.caller
        return segment.seal is not None and caller is not None and caller.node_id not in segment.local_nodes

    def _may_kill(self, mount: Mount) -> None:
        """Its holder, before it took the set, or behind that."""
        if self._kills and mount.holder is not None and self.rng.random() < 0.5:
            self._kills -= 1
            self._note(f"a holder dies {'behind' if mount.state is MountState.SERVING else 'before'} its taking a set")
            self.after(
                self.rng.randrange(120), lambda: self.kill(mount.holder or 0, down_ms=200 + 2_000 * (mount.token % 2))
            )

    def _released(self, node_id: int, mode: RetireMode) -> None:
        """Its process ends, and is not meant to be started again."""
        rng = self.rng
        if node_id in self.judge.leaving.dead:
            record = self.meta.table.state.nodes[node_id].node.retirement
            if record is not None and record.given_up:
                self._note("what a dead node alone had is given up")
            return
        self._is_gone(node_id)
        self.after(100 + rng.randrange(900), self._end_of, node_id, mode)
        if rng.random() < 0.5:
            self.after(200 + rng.randrange(2_500), self._started_by_mistake, node_id)

    def _end_of(self, node_id: int, mode: RetireMode) -> None:
        self.end_process(node_id)
        self.node_names.remove(f"node-{node_id}")
        if mode is RetireMode.OFFLOAD:
            self.say(f"node {node_id} is gone, with its disk")
            self.disks[node_id].files.clear()
            self.disks[node_id].sealed.clear()
            self.disks[node_id].tables.clear()
            self.disks[node_id].led_to_the_end.clear()
        else:
            self._read_directory(node_id)

    def _started_by_mistake(self, node_id: int) -> None:
        if self.nodes.get(node_id) is None:
            self.say(f"node {node_id} is started again by mistake")
            self._note("who was released is started again")
            self._start_process(node_id)

    def _read_mount(self, name: str, topic_id: UUID) -> None:
        for key in [key for key in self.judge.shards if key.topic_id == topic_id]:
            self._new_mount_reader(f"m{key.shard}", name, key)

    def _new_mount_reader(self, name: str, mount: str, key: ShardKey) -> MountReader:
        place = {"judge": self.judge, "nodes": self.node_names, "scheduler": self.scheduler, "network": self.network}
        reader = MountReader(mount, shard=key, name=name, **place)
        self.network.join(reader.name, reader)
        self.mount_readers.append(reader)
        reader.begin()
        return reader

    def _other_readers(self) -> list[MountReader]:
        """New readers of the manual mounts, from their start, now that all faults have ended."""
        during = list(self.mount_readers)
        for reader in during:
            reader.is_over = True
        return [self._new_mount_reader(f"{one.name}e", one.mount, one.shard) for one in during]

    # Directories of retired nodes -------------------------------------------------------------------------------------
    def _read_directory(self, node_id: int) -> None:
        self._starts += 1
        name = f"volume-{node_id}-{self._starts}"
        volume = VolumeLife(
            node_id,
            self.disks[node_id],
            self.judge,
            lambda *words: self.say(f"{name}:", *words),
            name=name,
            scheduler=self.scheduler,
            network=self.network,
        )
        self.network.join(name, volume)
        self._volumes[node_id] = volume
        volume.begin()
        if not self._is_over and self.rng.random() < 0.4:
            self.after(self.rng.randrange(3_000), self._kill_directory, node_id)

    def _kill_directory(self, node_id: int) -> None:
        if not self._is_over and self._volumes[node_id].is_alive:
            self._volumes[node_id].is_alive = False
            self.say(f"{self._volumes[node_id].name} is killed")
            self._note("what reads a directory dies")
            self.after(300 + self.rng.randrange(2_500), self._read_again, node_id)

    def _read_again(self, node_id: int) -> None:
        if not self._volumes[node_id].is_alive:
            self._read_directory(node_id)

    # The end ----------------------------------------------------------------------------------------------------------
    def _settle(self) -> None:
        """Each retirement is over, or waits for what is so; then the load is evened out."""
        self._is_over = True
        self.run(self.scheduler.now_ms + _ENDS_WITHIN_MS, self._is_settled)
        wrong = {node_id: self._why_waits(node_id) for node_id in self._undone()}
        if any(wrong.values()):
            raise Broken(
                "a retirement ends, or reports why it waits",
                "; ".join(f"node {one} {why}" for one, why in wrong.items()),
            )
        self.people.spawn(self.people.rebalance())
        if not self.run(self.scheduler.now_ms + MOST_ROUNDS * 2_000, lambda: self.people.is_even):
            raise Broken("rounds of rebalancing end", f"after {self.people.rounds} there is more to do")

    def _undone(self) -> list[int]:
        records = {one: entry.node.retirement for one, entry in self.meta.table.state.nodes.items()}
        return [one for one, record in records.items() if record is not None and record.step is not RetireStep.DONE]

    def _why_waits(self, node_id: int) -> str:
        volumes = {one for one, volume in self._volumes.items() if volume.is_alive}
        return self.judge.leaving.why_waits(node_id, volumes)

    def _is_settled(self) -> bool:
        undone = self._undone()
        if any(self._why_waits(node_id) for node_id in undone):
            self._settled_ms = None
            return False
        if self._settled_ms is None:
            self._settled_ms = self.scheduler.now_ms
        return not undone or self.scheduler.now_ms - self._settled_ms > _WAITS_MS

    _settled_ms: int | None = None


def world_of(seed: int, shape: Shape) -> SimulatedWorld:
    return LeavingWorld(seed, shape) if shape.spares else SimulatedWorld(seed, shape)
