"""Disks that hang while nodes die: within a bound each shard has a leader that can do its work.

Nothing else is wrong. In each round the disk of one of three nodes hangs, or takes long for each job, and in some
rounds another node is killed as well. All three have every segment. A node without a fault that is in the ISR has all
that was acknowledged, so it, or another one whose disk works, must lead before `BOUND_S` have passed.
"""

from __future__ import annotations

import asyncio
from typing import Final

from stratalog.machines.copies.recovery_rule import is_quorum, least_in_sync, majority
from stratalog.machines.leading.shard_life import StopCause
from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.ids import ShardKey
from stratalog.model.segment import Segment
from stratalog_sim.product.pools import HANGS_UNTIL_S, SLOW_S
from stratalog_sim.product.world import LEASE_MS, PATIENCE_MS, STALL_MS, ProductWorld

ROUNDS: Final = 2
BOUND_S: Final = (2 * LEASE_MS + STALL_MS + PATIENCE_MS + 1_000) / 1_000
"""The node is found lost or stuck, the recovery waits for silent replicas, and a second for messages and seals."""
_FIRST_S: Final = 1.0
_WELL_S: Final = 4.0
"""All nodes are back, in sync, and their disks count again."""
_SLOW_S: Final = 4.0
_LATE_S: Final = 0.05
_WRITE_S: Final = 0.3
"""What a write of the meta service takes at most where the network is slow."""
_POLL_S: Final = 0.1


class HangingDisks:
    def __init__(self, world: ProductWorld) -> None:
        self._world = world

    async def run(self) -> None:
        await asyncio.sleep(_FIRST_S)
        network, meta, rng = self._world.network, self._world.meta, self._world.rng
        network.slow_s = rng.choice((0.0, _LATE_S))  # promises come apart then
        if network.slow_s:
            meta.disk.flush_s = _WRITE_S  # and some share a write with the report of silent nodes
        for _ in range(ROUNDS):
            await self._play_round()
            await asyncio.sleep(_WELL_S)

    async def _play_round(self) -> None:
        world = self._world
        stuck = self._stuck_next()
        dying = world.rng.choice([one for one in world.hosts if one != stuck])
        is_slow, kills = world.rng.random() < 0.3, world.rng.random() < 0.6
        owed = self._owed(stuck, dying if kills else None)
        machine = world.hosts[stuck].machine.name
        if is_slow:
            SLOW_S[machine] = _SLOW_S
        else:
            HANGS_UNTIL_S[machine] = world.loop.now_s + 2 * BOUND_S
        world.say(f"node {stuck}: the disk {'is slow' if is_slow else 'hangs'}")
        if kills:
            await asyncio.sleep(world.rng.choice((0.0, 0.2, 2 * STALL_MS / 1_000)))
            world.kill(dying, down_s=2 * BOUND_S)
        led = [key for key in owed if kills or not is_slow]  # a slow disk works: its node keeps what it leads
        hung = None if is_slow else stuck
        ends_s = world.loop.now_s + BOUND_S
        while not all(self._is_led(key, hung) for key in led):
            if world.loop.now_s > ends_s:
                late = next(key for key in led if not self._is_led(key, hung))
                what = f"shard {late.shard} has none after {BOUND_S} s"
                world.truth.fail("a shard has a leader that can work", what)
                return
            await asyncio.sleep(_POLL_S)
        SLOW_S.clear()
        HANGS_UNTIL_S.clear()
        world.start(dying)

    def _stuck_next(self) -> int:
        """Most often a leader: all others of the ISR have to promise then, and it never does."""
        shards = list(self._table().state.shards)
        leader = self._table().state.shard(self._world.rng.choice(shards)).last.leader
        others = list(self._world.hosts)
        return leader if leader is not None and self._world.rng.random() < 0.7 else self._world.rng.choice(others)

    def _table(self) -> ShardTable:
        table = self._world.meta.table
        assert table is not None, "the meta service is never at fault here"
        return table

    def _owed(self, stuck: int, dying: int | None) -> list[ShardKey]:
        """Shards that the nodes without a fault can continue to serve."""
        found = []
        for key in self._table().state.shards:
            active = self._table().state.shard(key).last
            able = [node_id for node_id in active.isr if node_id not in (stuck, dying)]
            if len(able) >= self._needed(key, active, stuck) and not active.is_fenced:
                found.append(key)
        return found

    def _needed(self, key: ShardKey, active: Segment, stuck: int) -> int:
        """A leader that is stuck stays where too few others work for acks=all; one that is dead leads no more."""
        settings = self._table().state.topic(key.topic_id).settings
        if is_quorum(settings):
            return majority(active)
        return max(1, least_in_sync(settings, 1)) if active.leader == stuck else 1

    def _is_led(self, key: ShardKey, hung: int | None) -> bool:
        """By a node that lives, knows it, and has a disk that works. Where a disk is slow, the leader may wait for the
        seals of earlier segments."""
        active = self._table().state.shard(key).last
        host = self._world.hosts.get(active.leader or 0)
        if active.leader == hung or host is None or host.node is None:
            return False
        shard = next((one for one in host.node.shards.all() if one.key == key), None)
        if shard is None or not shard.is_leader:
            return False
        return shard.stop is None or (hung is None and shard.stop.cause is StopCause.HEALING)
