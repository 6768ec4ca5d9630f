"""Leaders that are cut off, or end in the middle of their work, while their clients still reach them.

Little else is wrong. In each round something happens to the leader of one shard, as often of the group log as of the
topic. What it has only told or only promised must not be missed at its successor: what it acknowledged, the producers
that it knows, the ISR that it proposed, and what it coordinates.
"""

from __future__ import annotations

import asyncio
from typing import Final

from stratalog.machines.copies.internal_topics import GROUP_LOG
from stratalog_sim.product.faults import end_faults, roll_all
from stratalog_sim.product.world import LEASE_MS, TOPIC, ProductWorld

_ROUNDS: Final = 4
_FIRST_S: Final = 0.8
_LEASE_S: Final = LEASE_MS / 1_000
_LAG_S: Final = 0.6
"""A follower that is away longer than this is not in sync any more."""
_KINDS: Final = (
    "alone",
    "alone",
    "dies alone",
    "without acks",
    "without acks",
    "unanswered",
    "lagging",
    "lagging",
    "dies",
)


class Failovers:
    def __init__(self, world: ProductWorld) -> None:
        self._world = world
        self._rng = world.rng

    async def run(self) -> None:
        world = self._world
        await asyncio.sleep(_FIRST_S)
        for _ in range(_ROUNDS):
            leader = self._leader()
            if leader is not None:
                await self._play_round(leader)
            self._join()
            await asyncio.sleep(0.3 + 0.4 * self._rng.random())
        end_faults(world)

    def _leader(self) -> int | None:
        table = self._world.meta.table
        assert table is not None, "the meta service runs throughout"
        name = self._rng.choice((TOPIC, GROUP_LOG)) if self._world.has_groups else TOPIC
        topics = {one.topic_id for one in table.state.topics.values() if one.name == name}
        led = [key for key in table.state.shards if key.topic_id in topics]
        leader = table.state.shard(self._rng.choice(led)).last.leader if led else None
        return leader if leader is not None and self._world.hosts[leader].node is not None else None

    async def _play_round(self, leader: int) -> None:
        world, rng = self._world, self._rng
        kind = rng.choice(_KINDS)
        world.say(f"node {leader}: {kind}")
        others = [node_id for node_id in world.hosts if node_id != leader]
        match kind:
            case "alone":
                await self._have_one_leave()
                self._cut(leader, others, is_meta=True)
                await asyncio.sleep(_LEASE_S * (1 + 2 * rng.random()))
            case "dies alone":
                await self._have_one_leave()
                self._cut(leader, others, is_meta=True)
                await asyncio.sleep(_LEASE_S * rng.random())
                self._end(leader)
            case "without acks":
                self._world.network.cut.update({(self._name(one), self._name(leader)): None for one in others})
                await asyncio.sleep(0.3 * rng.random())
                self._end(leader)
                await asyncio.sleep(0.1)
            case "unanswered":
                self._world.network.cut[self._name(leader), "clients"] = None
                await asyncio.sleep(0.1 + 0.3 * rng.random())
                self._end(leader)
            case "lagging":
                await self._lag(leader, rng.choice(others))
            case "dies":
                self._end(leader)

    async def _have_one_leave(self) -> None:
        """So that the group gets another generation while its coordinator is cut off."""
        if self._world.members:
            self._rng.choice(self._world.members).leaves_next = True
            await asyncio.sleep(0.2 * self._rng.random())

    def _name(self, node_id: int) -> str:
        return self._world.hosts[node_id].machine.name

    def _cut(self, node_id: int, others: list[int], *, is_meta: bool) -> None:
        own = self._name(node_id)
        for other in [*map(self._name, others), *(["meta"] if is_meta else [])]:
            self._world.network.cut.update({(own, other): None, (other, own): None})

    def _join(self) -> None:
        world = self._world
        world.network.cut.clear()
        world.network.join()
        world.network.slow_s = 0.0
        world.meta.loses_answers = 0.01
        world.meta.late_s.clear()
        for host in world.hosts.values():
            host.machine.files.is_full = False

    def _end(self, leader: int) -> None:
        """Its process dies, or it gives its shards up."""
        world, rng = self._world, self._rng
        down_s = 0.2 + 1.5 * rng.random()
        match rng.choice(("kill", "kill", "stop", "full", "roll")):
            case "kill":
                world.kill(leader, down_s=down_s)
            case "stop":
                world.stop(leader, down_s=down_s)
            case "full":
                world.hosts[leader].machine.files.is_full = True
                world.say(f"node {leader}: disk full")
            case "roll":
                roll_all(world, leader)

    async def _lag(self, leader: int, follower: int) -> None:
        """The ISR shrinks and grows, and what the leader hears of it is late or lost."""
        world, rng = self._world, self._rng
        if rng.random() < 0.5:
            world.meta.loses_answers = 0.8
        else:
            world.meta.late_s[self._name(leader)] = 2 * _LAG_S
        for _ in range(2):
            self._cut(follower, [leader], is_meta=False)
            await asyncio.sleep(_LAG_S * (1 + 0.5 * rng.random()))
            world.network.cut.clear()
            world.network.join()
            world.network.slow_s = rng.choice((0.0, 0.05))
            await asyncio.sleep(0.2 + 0.3 * rng.random())
