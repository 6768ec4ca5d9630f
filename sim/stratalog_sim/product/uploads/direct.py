"""A Direct topic: what is acknowledged is in the bucket, whatever happens to nodes and disks.

All kinds of faults happen (`faults.py`), power cuts among them, and disks are lost for good: one at a time, or those of
all nodes at the same moment. Nothing of that excuses a loss. In half of the seeds the topic changes to Replicated and
back; then no disk is lost, for a Replicated segment is owed to disks.
"""

from __future__ import annotations

import asyncio
from typing import Final

from stratalog.model.commands.table_commands import AlterTopic
from stratalog.model.errors import StratalogError
from stratalog.model.storage_policy import STORAGE_POLICY, StoragePolicy
from stratalog_sim.product.faults import Faults
from stratalog_sim.product.losses import segments_of
from stratalog_sim.product.world import TOPIC, ProductWorld

_ALL_AT_ONCE: Final = 0.3
"""Of the moments at which disks are lost."""
_PATIENCE_S: Final = 1.0
"""With a service that may die before it answers."""


class DirectTopics:
    def __init__(self, world: ProductWorld) -> None:
        self._world = world
        self._rng = world.rng
        self._changes_policy = self._rng.random() < 0.5
        world.topic_settings = {STORAGE_POLICY: StoragePolicy.DIRECT, "acks.policy": "isr"}
        world.node_settings = {
            "direct_commit_interval_ms": self._rng.choice((5, 50, 250)),
            "direct_max_unacknowledged_bytes": self._rng.choice((2_000, 1 << 20)),
            "remote_upload_timeout_ms": 300,
        }

    async def run(self) -> None:
        world, faults = self._world, Faults(self._world)
        ends_s = world.loop.now_s + world.shape.seconds
        policies = [StoragePolicy.REPLICATED, StoragePolicy.DIRECT]
        while world.loop.now_s < ends_s:
            await asyncio.sleep(0.2 + self._rng.random())
            if self._changes_policy:
                await self._change(policies[0])
                policies.reverse()
            else:
                self._lose_disks()
        faults.end()

    def _lose_disks(self) -> None:
        hosts = list(self._world.hosts)
        lost = hosts if self._rng.random() < _ALL_AT_ONCE else [self._rng.choice(hosts)]
        for node_id in lost:
            self._world.kill(node_id, down_s=0.2 + self._rng.random())
            self._world.hosts[node_id].machine.get_new_disk()
            self._lost(node_id)
        self._world.say(f"the disks of {lost} are lost")

    def _lost(self, node_id: int) -> None:
        """The metadata may list its copies for a while."""
        truth, table = self._world.truth, self._world.meta.last_table
        for segments in ({} if table is None else segments_of(table)).values():
            for segment in segments:
                truth.may_lack(node_id, segment.key)
                truth.damaged[node_id, segment.key] = 1 << 62
        truth.disk_lost_something(node_id, table)

    async def _change(self, policy: StoragePolicy) -> None:
        world, service = self._world, self._world.meta.service
        if service is None:
            return
        try:
            async with asyncio.timeout(_PATIENCE_S):
                topic = next(one for one in (await service.snapshot()).topics if one.name == TOPIC)
                await service.perform(AlterTopic(topic.topic_id, {**topic.settings, STORAGE_POLICY: policy}))
        except (StratalogError, TimeoutError) as error:
            world.say(f"the policy is not known to have changed: {error!r}")
        else:
            world.say(f"the topic is {policy} from now on")
