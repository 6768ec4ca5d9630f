"""The machines of one simulated cluster, drawn from a seed: nodes, the meta service, the object store and disks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from stratalog.machines.leading.leader_events import RollPolicy
from stratalog.machines.table.shard_table import ShardTable
from stratalog.machines.tiering.retention import NO_LIMIT, RetentionLimits
from stratalog.model.errors import StratalogError
from stratalog.model.segment import Segment
from stratalog_sim.broken import Broken
from stratalog_sim.clients.clients import Consumer, Producer
from stratalog_sim.environment.disk import Disk
from stratalog_sim.environment.network import Network
from stratalog_sim.environment.scheduler import EVER, Scheduler
from stratalog_sim.environment.store import Store
from stratalog_sim.judging.judge import Judge
from stratalog_sim.node.node import NodeLife
from stratalog_sim.service.meta import Meta, MetaStore
from stratalog_sim.worlds.event_text import in_words


@dataclass(frozen=True, slots=True)
class Shape:
    """What is simulated."""

    nodes: int = 1
    shards: int = 2
    replicas: int = 1
    trouble_ms: int = 6_000
    """Faults happen for this long."""
    calm_ms: int = 60_000
    """Within this all that is owed must be readable."""
    is_fsync: bool | None = None
    """None: the seed decides."""
    is_quorum: bool | None = None
    """Whether most of the replicas acknowledge, where there are several. None: the seed decides."""


def shape_of(seed: int) -> Shape:
    """One, two or three nodes, three fifths of the seeds with three; every fourth of these has two replicas."""
    nodes = (3, 1, 3, 2, 3)[seed % 5]
    replicas = 2 if nodes == 3 and seed % 20 in (4, 5, 12) else nodes
    return Shape(nodes=nodes, replicas=replicas, trouble_ms=(2_000, 4_000, 6_000)[seed % 3])


class SimulatedMachines:
    """Everything that faults may befall."""

    def __init__(self, seed: int, shape: Shape) -> None:
        self.seed = seed
        self.shape = shape
        self.rng = Random(seed)
        self.scheduler = Scheduler(self.rng)
        self._told: list[tuple[int, tuple[Any, ...]]] = []
        self.network = Network(self.scheduler, self.say)
        self.node_ids = list(range(1, shape.nodes + 1))
        """The nodes that exist, and that faults may hit."""
        ever = range(1, shape.nodes + 1)
        self.disks = {node_id: Disk(node_id) for node_id in ever}
        self.clock_offsets = dict.fromkeys([0, *ever], 0)
        self.gone: dict[int, None] = {}
        """The nodes that are never started again."""
        self.store = Store("store", self.scheduler, self.network, tell=self.say)
        self.network.join("store", self.store)
        self.meta_store = MetaStore()
        self.judge = Judge(self.disks, self.store)
        self.meta = self._new_meta()
        self.is_fsync = self.rng.random() < 0.5 if shape.is_fsync is None else shape.is_fsync
        self.has_store = self.rng.random() < 0.75
        self.retention = self.rng.choice(
            (
                RetentionLimits(NO_LIMIT, NO_LIMIT, NO_LIMIT, NO_LIMIT, True),
                RetentionLimits(NO_LIMIT, NO_LIMIT, 1_500, NO_LIMIT, True),
                RetentionLimits(NO_LIMIT, 900, NO_LIMIT, 200, True),
            )
        )
        least = self.rng.choice((1, 1, 2)) if shape.replicas > 1 else 1
        self.policy = RollPolicy(120, 4_000, min_insync_replicas=least, lag_ms=1_500)
        self.may_wipe = shape.nodes > 2 and self.rng.random() < 0.3
        """One disk is replaced by a new one."""
        self.is_quorum = shape.replicas > 1 and self.rng.random() < 0.35
        if shape.is_quorum is not None:
            self.is_quorum = shape.is_quorum
        self.restarts_at_the_end = self.rng.random() < 0.5
        """Else those alone whose disk lost a flush: what it had alone stays stopped until the next start."""
        self.nodes: dict[int, NodeLife | None] = {}
        self._starts = 0
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        self.client_names: list[str] = []
        self.node_names = [f"node-{node_id}" for node_id in self.node_ids]
        """The nodes that clients know."""
        for disk in self.disks.values():
            disk.on_written, disk.on_removed = self.judge.written, self.judge.removed

    # Telling ----------------------------------------------------------------------------------------------------------
    def say(self, *words: Any) -> None:
        self._told.append((self.scheduler.now_ms, words))

    def history(self, last: int | None = None) -> list[str]:
        """The history in words: all lines, or the `last` ones."""
        told = self._told if last is None else self._told[-last:]
        return [f"{now_ms:>7} {' '.join(map(in_words, words))}" for now_ms, words in told]

    def after(self, delay_ms: int, call: Callable[..., None], *args: Any) -> None:
        self.scheduler.after(delay_ms, EVER, call, *args)

    # Machines ---------------------------------------------------------------------------------------------------------
    def _new_meta(self) -> Meta:
        meta = Meta("meta", self.scheduler, self.network, store=self.meta_store, tell=self.say)
        self.meta_since_ms = self.scheduler.now_ms
        meta.on_applied, self.judge.table = self.applied, meta.table
        self.network.join("meta", meta)
        return meta

    def applied(self, command: Any, result: Any, changed: list[Segment]) -> None:
        """The meta service did this."""
        self.judge.applied(command, result, changed)

    def rack_of(self, node_id: int) -> str | None:
        return None

    def start_node(self, node_id: int) -> None:
        if self.nodes.get(node_id) is None and node_id not in self.gone:
            self._start_process(node_id)

    def _start_process(self, node_id: int) -> None:
        self._starts += 1
        self.disks[node_id].restarted()
        node = NodeLife(
            node_id,
            self.disks[node_id],
            self.judge,
            start_id=f"start-{self._starts}",
            has_store=self.has_store,
            retention=self.retention,
            policy=self.policy,
            clock_ms=lambda: 1_000_000 + self.scheduler.now_ms + self.clock_offsets[node_id],
            tell=lambda *words: self.say(f"node {node_id}:", *words),
            restart=lambda: self.kill(node_id, down_ms=50),
            refused=lambda: self.end_process(node_id),
            rack=self.rack_of(node_id),
            scheduler=self.scheduler,
            network=self.network,
        )
        self.nodes[node_id] = node
        self.network.join(node.name, node)
        node.begin()

    def end_process(self, node_id: int) -> bool:
        """It is not started again by itself."""
        node = self.nodes.get(node_id)
        if node is None:
            return False
        node.is_alive = False
        self.nodes[node_id] = None
        self.disks[node_id].dies_in = -1
        return True

    def _end(self, node_id: int, down_ms: int) -> bool:
        if not self.end_process(node_id):
            return False
        self.after(down_ms, self.start_node, node_id)
        return True

    def kill(self, node_id: int, *, down_ms: int) -> None:
        if self._end(node_id, down_ms):
            self.say(f"node {node_id}: killed")

    def cut_power(self, node_id: int, *, down_ms: int) -> None:
        if self._end(node_id, down_ms):
            self.say(f"node {node_id}: loses power")
            self.disks[node_id].power_cut(self.rng)
            self.judge.lost_power(node_id)

    def wipe(self, node_id: int, *, down_ms: int) -> bool:
        if not self._end(node_id, down_ms):
            return False
        self.say(f"node {node_id}: gets a new disk")
        self.disks[node_id].wipe()
        self.judge.lost_power(node_id)
        return True

    def stop(self, node_id: int, *, down_ms: int) -> None:
        node = self.nodes.get(node_id)
        if node is not None:
            node.stop_in_order()
            self._end(node_id, down_ms)
            self.say(f"node {node_id}: stops in order")

    def pause(self, node_id: int, lasting_ms: int) -> None:
        node = self.nodes.get(node_id)
        if node is not None:
            node.paused_until_ms = self.scheduler.now_ms + lasting_ms
            self.say(f"node {node_id}: paused for {lasting_ms} ms")

    def hang_disk(self, node_id: int, lasting_ms: int) -> None:
        self.disks[node_id].hang(self.scheduler.now_ms, lasting_ms)
        self.say(f"node {node_id}: disk hangs for {lasting_ms} ms")

    def restart_meta(self, *, down_ms: int) -> None:
        if self.meta.is_alive:
            self.meta.is_alive = False
            self.say("meta service killed")
            self.after(down_ms, self._meta_again)

    def _meta_again(self) -> None:
        before = self.meta.table
        try:
            self.meta = self._new_meta()
        except StratalogError as error:
            raise Broken("metadata survive a restart", str(error)) from error
        self.meta.clock_offset_ms = self.clock_offsets[0]
        was, loaded = _content(before), _content(self.meta.table)
        if was != loaded:
            differs = [f"{one} was loaded as {other}" for one, other in zip(was, loaded, strict=False) if one != other]
            raise Broken("metadata survive a restart", "; ".join(differs))
        self.say("meta service is back")

    def jump_clock(self, node_id: int, by_ms: int) -> None:
        """0: that of the meta service."""
        self.clock_offsets[node_id] += by_ms
        self.meta.clock_offset_ms = self.clock_offsets[0]
        self.say(f"clock of {f'node {node_id}' if node_id else 'meta'} jumps by {by_ms} ms")

    def ask_roll(self, node_id: int) -> None:
        node = self.nodes.get(node_id)
        if node is not None and node.is_serving and node.shards and node.paused_until_ms <= self.scheduler.now_ms:
            self.rng.choice(list(node.shards.values())).ask_roll()


def _content(table: ShardTable) -> list[Any]:
    """All that readers see; nodes in an order of their own."""
    snapshot = table.snapshot()
    return [snapshot.version, *snapshot.shards, *sorted(snapshot.nodes, key=lambda node: node.node_id)]
