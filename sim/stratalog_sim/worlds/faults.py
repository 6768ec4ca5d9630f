"""What befalls the world: a plan of faults drawn from the seed, each with the moment when it ends.

Every fault is something that happens to machines: nothing here knows how the product works.
"""

from __future__ import annotations

from stratalog_sim.environment.network import Weather
from stratalog_sim.service.meta import REPLACE_AFTER_MS
from stratalog_sim.worlds.simulated_machines import SimulatedMachines

_KINDS = (
    "crash",
    "crash",
    "away",
    "power",
    "power",
    "stop",
    "pause",
    "die within",
    "die within",
    "partition",
    "partition",
    "storm",
    "meta down",
    "store refuses",
    "clock",
    "disk full",
    "flush fails",
    "disk hangs",
    "disk slow",
    "roll",
    "roll",
)


class Faults:
    """Causes a fault every now and then until `is_over` is set."""

    def __init__(self, world: SimulatedMachines) -> None:
        self._world = world
        self.is_over = False
        rng = world.rng
        self.kinds = (*_KINDS, "wipe") if world.may_wipe else _KINDS
        # Some seeds are rough and some are nearly calm, so that long quiet runs are looked at too.
        self._pause_ms = rng.choice((300, 800, 2_000))
        self._usual = rng.choice((Weather(), Weather(0.01, 0.02, 0.05), Weather(0.05, 0.05, 0.2)))
        world.network.weather = self._usual
        self._plan()

    def _plan(self) -> None:
        world = self._world
        world.after(50 + world.rng.randrange(2 * self._pause_ms), self._act)

    def _act(self) -> None:
        if self.is_over:
            return
        world, rng = self._world, self._world.rng
        node_id = rng.choice(world.node_ids)
        lasting_ms = 50 + rng.randrange(1_500)
        match rng.choice(self.kinds):
            case "crash":
                world.kill(node_id, down_ms=lasting_ms)
            case "away":
                world.kill(node_id, down_ms=2 * REPLACE_AFTER_MS + lasting_ms)
            case "power":
                world.cut_power(node_id, down_ms=lasting_ms)
            case "stop":
                world.stop(node_id, down_ms=lasting_ms)
            case "pause":
                world.pause(node_id, lasting_ms)
            case "die within":
                disk = world.disks[node_id]
                disk.dies_in, disk.dies_of_power = rng.randrange(12), rng.random() < 0.6
                world.say(f"node {node_id}: will die in {disk.dies_in} disk operations")
            case "partition":
                self._partition(lasting_ms)
            case "storm":
                world.network.weather = Weather(0.3, 0.2, 0.5)
                world.say("storm")
                world.after(lasting_ms, self._calm)
            case "meta down":
                world.restart_meta(down_ms=lasting_ms)
            case "store refuses":
                world.store.refuses = 0.7
                world.say("the store refuses most requests")
                world.after(lasting_ms, self._store_calm)
            case "clock":
                world.jump_clock(rng.choice([*world.node_ids, 0]), rng.choice((-5_000, 3_000, 60_000)))
            case "disk full":
                world.disks[node_id].is_full = True
                world.say(f"node {node_id}: disk full")
                world.after(lasting_ms, self._has_room, node_id)
            case "flush fails":
                world.disks[node_id].fails_flushes = True
                world.say(f"node {node_id}: flushes fail")
                world.after(lasting_ms // 4, self._flushes_again, node_id)
            case "disk hangs":
                world.hang_disk(node_id, 2 * lasting_ms)
            case "disk slow":
                world.disks[node_id].slow_ms = rng.choice((50, 300))
                world.say(f"node {node_id}: disk slow")
                world.after(lasting_ms, self._quick_again, node_id)
            case "roll":
                world.ask_roll(node_id)
            case "wipe":
                if world.wipe(node_id, down_ms=lasting_ms):
                    self.kinds = _KINDS
        self._plan()

    def _partition(self, lasting_ms: int) -> None:
        """One way or both, between two places."""
        world, rng = self._world, self._world.rng
        places = [*(f"node-{node_id}" for node_id in world.node_ids), "meta", "store"]
        if rng.random() < 0.3:
            places += world.client_names
        one, other = rng.sample(places, 2)
        links = [(one, other)] if rng.random() < 0.5 else [(one, other), (other, one)]
        world.network.cut.update(dict.fromkeys(links))
        world.say(f"cut {' and '.join(f'{a} -> {b}' for a, b in links)}")
        world.after(lasting_ms, self._join, links)

    def _join(self, links: list[tuple[str, str]]) -> None:
        for link in links:
            self._world.network.cut.pop(link, None)
        self._world.say(f"{' and '.join(f'{a} -> {b}' for a, b in links)} carries again")

    def _calm(self) -> None:
        if not self.is_over:
            self._world.network.weather = self._usual

    def _store_calm(self) -> None:
        self._world.store.refuses = 0.0

    def _has_room(self, node_id: int) -> None:
        self._world.disks[node_id].is_full = False

    def _flushes_again(self, node_id: int) -> None:
        self._world.disks[node_id].fails_flushes = False

    def _quick_again(self, node_id: int) -> None:
        self._world.disks[node_id].slow_ms = 0

    def end(self) -> None:
        """All is well from now on, but for what is broken already."""
        self.is_over = True
        world = self._world
        world.network.weather = Weather()
        world.network.cut.clear()
        world.store.refuses = 0.0
        for disk in world.disks.values():
            disk.is_full = disk.fails_flushes = False
            disk.dies_in = -1
            disk.hangs_until_ms = disk.slow_ms = 0
        world.say("all faults end")
