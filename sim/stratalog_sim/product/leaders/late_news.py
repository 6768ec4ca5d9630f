"""Leaders that hear too late, or not at all, what the meta service and their followers did.

Little else is wrong. In each round the leader of one shard is without one piece of news, at the moment when it matters
most: that it is fenced, while followers have batches that they have not confirmed; that its ISR proposal was accepted;
that the ISR is another one by now. Or a power cut takes what others count on: the unflushed tail of a replica that then
is alone, or the end of a segment that has just rolled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from stratalog.machines.copies.internal_topics import GROUP_LOG
from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import ChangeSet
from stratalog.model.segment import Segment
from stratalog_sim.product.faults import end_faults, roll_all
from stratalog_sim.product.world import LEASE_MS, TOPIC, ProductWorld

_ROUNDS: Final = 4
_FIRST_S: Final = 0.8
_LEASE_S: Final = LEASE_MS / 1_000
_ATTEMPT_S: Final = 0.5
"""How long a node waits for an answer of the meta service."""
_PATIENCE_S: Final = 2.0
"""How long a round waits for what it needs."""
_POLL_S: Final = 0.002
KINDS: Final = (
    "fenced late",
    "fenced late",
    "proposal unanswered",
    "ISR heard late",
    "alone after a power cut",
    "power cut at a roll",
)
"""Of rounds."""


class LateNews:
    def __init__(self, world: ProductWorld) -> None:
        self._world = world
        self._rng = world.rng
        self._on_isr: Callable[[Segment, tuple[int, ...]], None] = lambda *_: None
        """Called with a segment whose ISR changes now, and with the ISR before: no node has heard of it yet."""
        self._isr: dict[SegmentKey, tuple[int, ...]] = {}
        world.truth.after_publish.append(self._published)

    async def run(self) -> None:
        world = self._world
        await asyncio.sleep(_FIRST_S)
        for _ in range(_ROUNDS):
            led = self._led()
            if led is not None:
                await self._play_round(led)
            self._on_isr = lambda *_: None
            world.network.cut.clear()
            world.network.late_s.clear()
            world.network.join()
            world.meta.release()
            world.meta.late_s.clear()
            await asyncio.sleep(0.4 + 0.4 * self._rng.random())
        end_faults(world)

    def _led(self) -> Segment | None:
        """An active segment whose leader runs."""
        table, world = self._world.meta.table, self._world
        assert table is not None, "the meta service runs throughout"
        name = GROUP_LOG if world.has_groups and self._rng.random() < 0.2 else TOPIC
        topics = {one.topic_id for one in table.state.topics.values() if one.name == name}
        found = [table.state.shard(key).last for key in table.state.shards if key.topic_id in topics]
        led = [one for one in found if one.leader is not None and world.hosts[one.leader].node is not None]
        return self._rng.choice(led) if led else None

    async def _play_round(self, led: Segment) -> None:
        world, rng, leader = self._world, self._rng, led.leader
        assert leader is not None
        kind = rng.choice(world.shape.late_news)
        world.say(f"node {leader}: {kind}")
        others = [node_id for node_id in world.hosts if node_id != leader]
        if kind == "power cut at a roll" or not others:
            await self._lose_power_at_a_roll(leader)
            return
        follower = rng.choice(others)
        match kind:
            case "fenced late":
                await self._fence_late(led, leader, others)
            case "proposal unanswered":
                await self._leave_proposal_unanswered(led, leader, follower)
            case "ISR heard late":
                await self._tell_isr_late(led, leader, follower)
            case "alone after a power cut":
                await self._leave_alone(follower)

    # What happens in a round ----------------------------------------------------------------------------------------
    async def _fence_late(self, led: Segment, leader: int, others: list[int]) -> None:
        """The meta service hears nothing of it, and lets others continue. When it learns of that, producers wait for
        batches that a follower has, because requests of followers are slow."""
        world, rng, own = self._world, self._rng, self._name(leader)
        slow = others if world.is_quorum else [rng.choice(others)]
        for other in slow:
            world.network.late_s[self._name(other), own] = 0.1 + 0.2 * rng.random()
        await asyncio.sleep(0.3)
        world.network.cut.update({(own, "meta"): None, ("meta", own): None})
        await self._until(lambda: self._leader(led) not in (leader, None))
        await asyncio.sleep(0.05 * rng.random())
        world.network.cut.clear()
        await asyncio.sleep(0.3)

    async def _leave_proposal_unanswered(self, led: Segment, leader: int, follower: int) -> None:
        """The answer to a proposal that takes a follower in is lost, and so is the change. The follower stays behind
        from then on, and the high watermark must wait for it."""
        world, own = self._world, self._name(leader)

        def fall_silent(segment: Segment, before: tuple[int, ...]) -> None:
            if segment.leader == leader and follower in segment.isr and follower not in before:
                world.network.cut["meta", own] = None
                self._cut(follower, leader)

        self._cut(follower, leader)
        if await self._until(lambda: follower not in self._known(led).isr):
            self._on_isr = fall_silent
            self._carry_again()
            await self._until(lambda: ("meta", own) in world.network.cut)
            await asyncio.sleep(_ATTEMPT_S * (1.5 + self._rng.random()))

    async def _tell_isr_late(self, led: Segment, leader: int, follower: int) -> None:
        """A follower leaves the ISR and returns, as its leader knows from the answers to its proposals. Then it hears
        of the first of these changes, and later of the second, while the follower is behind."""
        world, own = self._world, self._name(leader)

        def hold(segment: Segment, before: tuple[int, ...]) -> None:
            if segment.leader == leader and follower not in segment.isr and follower in before:
                world.meta.hold(own)

        self._on_isr = hold
        self._cut(follower, leader)
        if await self._until(lambda: follower not in self._known(led).isr):
            self._carry_again()
            await self._until(lambda: follower in self._known(led).isr)
            await asyncio.sleep(0.005)
            self._cut(follower, leader)
            await asyncio.sleep(0.1 * self._rng.random())
            world.meta.late_s[own] = 0.3
            world.meta.release()
            await asyncio.sleep(_ATTEMPT_S)

    async def _leave_alone(self, follower: int) -> None:
        """A replica loses its power, and all others die. It returns first, perhaps without its tail."""
        world, rng = self._world, self._rng
        world.kill(follower, down_s=0.1 + 0.3 * rng.random(), is_power=True)
        await asyncio.sleep(0.05 * rng.random())
        for node_id in world.hosts:
            if node_id != follower:
                world.kill(node_id, down_s=1.5 + rng.random())
        await asyncio.sleep(_PATIENCE_S)

    async def _lose_power_at_a_roll(self, leader: int) -> None:
        roll_all(self._world, leader)
        await asyncio.sleep(0.02 * self._rng.random())
        self._world.kill(leader, down_s=0.2 + self._rng.random(), is_power=True)
        await asyncio.sleep(_LEASE_S)

    # Links and news -------------------------------------------------------------------------------------------------
    def _name(self, node_id: int) -> str:
        return self._world.hosts[node_id].machine.name

    def _cut(self, one: int, other: int) -> None:
        one_name, other_name = self._name(one), self._name(other)
        self._world.network.cut.update({(one_name, other_name): None, (other_name, one_name): None})

    def _carry_again(self) -> None:
        self._world.network.cut.clear()
        self._world.network.join()

    def _leader(self, segment: Segment) -> int | None:
        """Of its shard, as the meta service has it now."""
        table = self._world.meta.table
        assert table is not None, "the meta service runs throughout"
        return table.state.shard(segment.key.shard_key).last.leader

    def _known(self, segment: Segment) -> Segment:
        """As the meta service has it now."""
        table = self._world.meta.table
        assert table is not None, "the meta service runs throughout"
        return table.state.find_segment(segment.key) or segment

    async def _until(self, is_so: Callable[[], bool]) -> bool:
        ends_s = self._world.loop.now_s + _PATIENCE_S
        while not is_so():
            if self._world.loop.now_s > ends_s:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    def _published(self, table: ShardTable, change_set: ChangeSet) -> None:
        for change in change_set.changes:
            segment = getattr(change, "segment", None)
            if isinstance(segment, Segment):
                before = self._isr.get(segment.key, segment.replicas)
                self._isr[segment.key] = segment.isr
                if before != segment.isr:
                    self._on_isr(segment, before)
