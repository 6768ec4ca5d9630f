"""A world in which nothing is wrong but disks that hang or are slow, and nodes that die meanwhile: within a bound each
shard has a leader that can do its work.

Rounds, one after another: the disk of one of three nodes hangs, or takes long for each flush; in some rounds another
node is killed at the same time. All three have every segment. A node without a fault holds all that was acknowledged
if it is in the ISR, so this node, or another one whose disk works, has to lead before `BOUND_MS` have passed, however
long the disk hangs. Then the faults end, and the next round begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from stratalog.machines.copies.recovery_rule import is_quorum, least_in_sync, majority
from stratalog.machines.leading.shard_life import StopCause
from stratalog.model.ids import ShardKey
from stratalog.model.segment import Segment
from stratalog_sim.broken import Broken
from stratalog_sim.environment.network import Weather
from stratalog_sim.service.meta import LEASE_MS, PATIENCE_MS, STALL_MS
from stratalog_sim.worlds.world import SimulatedWorld

ROUNDS: Final = 2
BOUND_MS: Final = 2 * LEASE_MS + STALL_MS + PATIENCE_MS + 1_000
"""The node is found lost or stuck, the recovery waits for silent replicas, and a second left for messages and seals."""
_FIRST_MS: Final = 1_500
"""Before the first round, for records to be written."""
_WELL_MS: Final = 5_000
"""All nodes are back, in sync, and their disks count again."""
_SLOW_MS: Final = 4_000


class HangingWorld(SimulatedWorld):
    def _cause_faults(self) -> Callable[[], None]:
        """Instead of faults of all kinds. Returns what ends them."""
        self.network.weather = Weather()
        self.run(self.scheduler.now_ms + _FIRST_MS)
        for _ in range(ROUNDS):
            self._play_round()
            self.run(self.scheduler.now_ms + _WELL_MS)
        return lambda: None

    def _play_round(self) -> None:
        stuck, dying, _ = self.rng.sample(self.node_ids, 3)
        disk, is_slow = self.disks[stuck], self.rng.random() < 0.3
        kills = self.rng.random() < 0.6
        owed = self._owed(stuck, dying if kills else None)
        if is_slow:
            disk.slow_ms = _SLOW_MS
            self.say(f"node {stuck}: each flush takes {_SLOW_MS} ms")
        else:
            self.hang_disk(stuck, 2 * BOUND_MS)
        if kills:
            self.run(self.scheduler.now_ms + self.rng.choice((0, 200, 2 * STALL_MS)))
            self.kill(dying, down_ms=2 * BOUND_MS)
        led = [key for key in owed if kills or not is_slow]  # a slow disk works: its node keeps what it leads
        hung = None if is_slow else stuck
        if not self.run(self.scheduler.now_ms + BOUND_MS, lambda: all(self._is_led(key, hung) for key in led)):
            late = next(key for key in led if not self._is_led(key, hung))
            self._say_state_of([reader for reader in self.consumers if reader.shard == late])
            raise Broken("a shard has a leader that can work", f"shard {late.shard} has none after {BOUND_MS} ms")
        disk.slow_ms = disk.hangs_until_ms = 0
        self.start_node(dying)

    def _owed(self, stuck: int, dying: int | None) -> list[ShardKey]:
        """Shards that the nodes without a fault can continue to serve."""
        hit = {stuck, dying}
        found = []
        for key in self.meta.table.state.shards:
            active = self._active(key)
            able = [node_id for node_id in active.isr if node_id not in hit]
            if len(able) >= self._needed(key, active, stuck) and not active.is_fenced:
                found.append(key)
        return found

    def _needed(self, key: ShardKey, active: Segment, stuck: int) -> int:
        """A leader that is stuck stays where too few others work for acks=all; one that is dead leads no more."""
        settings = self.meta.table.state.topic(key.topic_id).settings
        if is_quorum(settings):
            return majority(active)
        return max(1, least_in_sync(settings, 1)) if active.leader == stuck else 1

    def _active(self, key: ShardKey) -> Segment:
        return self.meta.table.state.shard(key).last

    def _is_led(self, key: ShardKey, hung: int | None) -> bool:
        """By a node that lives, knows it, and has a disk that works. Where no disk hangs but one is slow, the leader
        may wait for the seals of what ended before: these wait for the slow disk."""
        active = self._active(key)
        node = None if active.leader in (None, hung) else self.nodes.get(active.leader or 0)
        if node is None or key not in node.shards:
            return False
        stop = node.shards[key].chain.stop
        is_serving = stop is None or (hung is None and stop.cause is StopCause.HEALING)
        return is_serving and node.view.active(key) == active
