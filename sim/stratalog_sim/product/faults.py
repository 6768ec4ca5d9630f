"""What befalls a world of product processes: drawn from the seed, each with the moment when it ends.

Every fault is something that happens to machines: nothing here knows how the product works.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stratalog_node.node import StorageNode
from stratalog_sim.product.directories import MOSTLY, BadDirectories
from stratalog_sim.product.pools import HANGS_UNTIL_S, SLOW_S
from stratalog_sim.product.world import ProductWorld

_KINDS = (
    "crash",
    "crash",
    "stop",
    "die within",
    "die within",
    "partition",
    "partition",
    "slow net",
    "meta down",
    "store refuses",
    "clock",
    "disk full",
    "disk slow",
    "disk hangs",
    "power",
    "roll",
    "roll",
)
_OF_DISKS = ("power", "flush fails")
"""Where what is acknowledged has been flushed."""


class Faults:
    def __init__(self, world: ProductWorld) -> None:
        self._world = world
        self.is_over = False
        self.kinds = (*_KINDS, *_OF_DISKS) if world.is_fsync else _KINDS
        self._more: dict[str, Callable[[int, float], None]] = {}
        if world.shape.directories:
            directories = BadDirectories(world)
            self._more = directories.kinds()
            self.kinds = MOSTLY if world.rng.random() < 0.6 else (*self.kinds, *self._more)
        self._pause_s = world.rng.choice((0.2, 0.4) if world.shape.directories else (0.3, 0.8, 2.0))
        self._plan()

    def _plan(self) -> None:
        self._world.after(0.05 + 2 * self._pause_s * self._world.rng.random(), self._act)

    def _act(self) -> None:
        if self.is_over:
            return
        world, rng = self._world, self._world.rng
        node_id = rng.choice(list(world.hosts))
        machine = world.hosts[node_id].machine
        lasting_s = 0.05 + 1.5 * rng.random()
        kind = rng.choice(self.kinds)
        match kind:
            case _ if kind in self._more:
                self._more[kind](node_id, lasting_s)
            case "crash":
                world.kill(node_id, down_s=lasting_s)
            case "power":
                world.kill(node_id, down_s=lasting_s, is_power=True)
            case "stop":
                world.stop(node_id, down_s=lasting_s)
            case "die within":
                machine.dies_in = rng.randrange(20)
                world.say(f"node {node_id} will die in {machine.dies_in} disk operations")
            case "partition":
                self._partition(lasting_s)
            case "slow net":
                world.network.slow_s = 0.2
                world.say("the network is slow")
                world.after(lasting_s, self._quick_net)
            case "meta down":
                world.restart_meta(lasting_s)
            case "store refuses":
                world.bucket.refuses = 0.7
                world.say("the bucket refuses most requests")
                world.after(lasting_s, self._store_calm)
            case "clock":
                one = rng.choice([*(host.machine for host in world.hosts.values()), world.meta_machine])
                one.clock_offset_ms += rng.choice((-5_000, 3_000, 60_000))
                world.say(f"the clock of {one.name} is off by {one.clock_offset_ms} ms")
            case "disk full":
                machine.files.is_full = True
                world.say(f"node {node_id}: disk full")
                world.after(lasting_s, self._has_room, node_id)
            case "flush fails":
                machine.files.fails_flushes = True
                world.say(f"node {node_id}: flushes fail")
                world.after(lasting_s / 4, self._flushes_again, node_id)
            case "disk slow":
                SLOW_S[machine.name] = rng.choice((0.05, 0.3))
                world.say(f"node {node_id}: disk slow")
                world.after(lasting_s, SLOW_S.pop, machine.name, None)
            case "disk hangs":
                HANGS_UNTIL_S[machine.name] = world.loop.now_s + 2 * lasting_s
                world.say(f"node {node_id}: disk hangs")
            case "roll":
                roll_all(world, node_id)
        self._plan()

    def _partition(self, lasting_s: float) -> None:
        """One way or both, between two places."""
        world, rng = self._world, self._world.rng
        places = [*(host.machine.name for host in world.hosts.values()), "meta", "bucket"]
        if rng.random() < 0.3:
            places.append("clients")
        one, other = rng.sample(places, 2)
        links = [(one, other)] if rng.random() < 0.5 else [(one, other), (other, one)]
        world.network.cut.update(dict.fromkeys(links))
        world.say(f"cut {' and '.join(f'{a} -> {b}' for a, b in links)}")
        world.after(lasting_s, self._join, links)

    def _join(self, links: list[tuple[str, str]]) -> None:
        for link in links:
            self._world.network.cut.pop(link, None)
        self._world.network.join()
        self._world.say(f"{' and '.join(f'{a} -> {b}' for a, b in links)} carries again")

    def _quick_net(self) -> None:
        self._world.network.slow_s = 0.0

    def _store_calm(self) -> None:
        self._world.bucket.refuses = 0.0

    def _has_room(self, node_id: int) -> None:
        self._world.hosts[node_id].machine.files.is_full = False

    def _flushes_again(self, node_id: int) -> None:
        self._world.hosts[node_id].machine.files.fails_flushes = False

    def end(self) -> None:
        self.is_over = True
        end_faults(self._world)


def end_faults(world: ProductWorld) -> None:
    """All is well from now on, but for what is broken already."""
    world.network.slow_s = 0.0
    world.network.cut.clear()
    world.network.join()
    world.bucket.refuses = world.bucket.loses_answers = world.meta.loses_answers = 0.0
    world.meta.late_s.clear()
    world.meta.release()
    world.network.late_s.clear()
    SLOW_S.clear()
    HANGS_UNTIL_S.clear()
    for node_id, host in world.hosts.items():
        files = host.machine.files
        files.is_full = files.fails_flushes = False
        host.machine.dies_in = -1
        if files.lost_flushes:
            files.lost_flushes = 0
            world.kill(node_id, down_s=0.2)  # in this life it serves nothing of such a file
    if world.meta.service is None:
        world.say("the meta service is on its way")
    world.say("all faults end")


async def cause_faults(world: ProductWorld) -> None:
    """All kinds of faults, for as long as the world's shape says."""
    faults = Faults(world)
    await asyncio.sleep(world.shape.seconds)
    faults.end()


def roll_all(world: ProductWorld, node_id: int) -> None:
    host = world.hosts[node_id]
    if host.node is not None and host.process is not None:
        world.spawn(host.process, _roll_all(host.node))


async def _roll_all(node: StorageNode) -> None:
    for shard in list(node.shards.all()):
        node.ask_roll(shard.key)
