"""Shards that move from leader to leader while nothing else is wrong, and metadata that come late to the node that
handed its shard over.

In each round people retire the leader of one shard and take that back once another node leads it. In most rounds
producers are silent meanwhile, and the next leader is retired, too: it hands over a segment without batches. What the
meta service says about a hand-over comes late to the old leader, which clients still ask.
"""

from __future__ import annotations

import asyncio
from typing import Final

from stratalog.machines.copies.internal_topics import GROUP_LOG
from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.commands.retirement_commands import CancelRetirement, RetireNode
from stratalog.model.errors import Rejected, StratalogError
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import ChangeSet, SegmentChanged
from stratalog.model.segment import Segment, SegmentState
from stratalog_sim.product.faults import end_faults
from stratalog_sim.product.meta_host import MetaLink
from stratalog_sim.product.world import TOPIC, ProductWorld

_ROUNDS: Final = 5
_FIRST_S: Final = 0.6
_LATE_S: Final = 0.8
_POLL_S: Final = 0.05
_POLLS: Final = 30
_SILENCE_S: Final = 0.3
"""Then all that was sent is written."""


class HandOvers:
    def __init__(self, world: ProductWorld) -> None:
        self._world = world
        self._rng = world.rng
        self._led: dict[SegmentKey, int | None] = {}
        self._link = MetaLink(world.meta, world.client_machine)
        self.count = 0
        """Segments after which another node led the shard, while both lived."""
        world.truth.after_publish.append(self._published)

    async def run(self) -> None:
        world, rng = self._world, self._rng
        await asyncio.sleep(_FIRST_S)
        for _ in range(_ROUNDS):
            await self._play_round(self._shard())
            await asyncio.sleep(0.3 + 0.5 * rng.random())
        end_faults(world)

    def _shard(self) -> ShardKey:
        table = self._table()
        name = self._rng.choice((TOPIC, TOPIC, GROUP_LOG)) if self._world.has_groups else TOPIC
        topics = {one.topic_id for one in table.state.topics.values() if one.name == name}
        found = [key for key in table.state.shards if key.topic_id in topics]
        return self._rng.choice(found or list(table.state.shards))

    def _table(self) -> ShardTable:
        table = self._world.meta.table
        assert table is not None, "the meta service runs throughout"
        return table

    async def _play_round(self, shard: ShardKey) -> None:
        world, rng = self._world, self._rng
        is_silent = rng.random() < 0.7
        if is_silent:
            self._silence(is_silent=True)
            await asyncio.sleep(_SILENCE_S)
        retired = []
        for _ in range(2 if is_silent else 1):
            leader = self._leader(shard)
            if leader is not None and await self._ask(RetireNode(leader)):
                retired.append(leader)
                await self._until_another_leads(shard, leader)
        for node_id in retired:
            await self._ask(CancelRetirement(node_id))
        self._silence(is_silent=False)
        await asyncio.sleep(_LATE_S * rng.random())
        world.say(f"hand-overs: {self.count}")

    def _leader(self, shard: ShardKey) -> int | None:
        return self._table().state.shard(shard).last.leader

    async def _until_another_leads(self, shard: ShardKey, leader: int) -> None:
        for _ in range(_POLLS):
            await asyncio.sleep(_POLL_S)
            if self._leader(shard) != leader:
                return

    async def _ask(self, command: RetireNode | CancelRetirement) -> bool:
        """As a person does, who repeats it until there is an answer: whether it was yes."""
        self._world.say(f"a person asks for {command}")
        while True:
            try:
                await self._link.perform(command)
                return True
            except Rejected as refusal:
                self._world.say(f"a person is refused: {refusal}")
                return False
            except StratalogError:
                await asyncio.sleep(_POLL_S)

    def _silence(self, *, is_silent: bool) -> None:
        for producer in self._world.producers:
            producer.is_silent = is_silent

    def _published(self, table: ShardTable, change_set: ChangeSet) -> None:
        for change in change_set.changes:
            if isinstance(change, SegmentChanged):
                self._segment_changed(table, change.segment)

    def _segment_changed(self, table: ShardTable, segment: Segment) -> None:
        """What ends a segment comes late to its leader, if that does not lead the next one."""
        if segment.state is SegmentState.ACTIVE:
            self._led[segment.key] = segment.leader
            return
        before = self._led.pop(segment.key, None)
        leader = table.state.shard(segment.key.shard_key).last.leader
        if before is None or leader in (None, before):
            return
        self.count += 1
        name = self._world.hosts[before].machine.name
        self._world.meta.late_s[name] = _LATE_S
        self._world.say(f"node {before} hears late that node {leader} leads behind {segment.end_offset}")
        self._world.after(_LATE_S, self._world.meta.late_s.pop, name, None)
