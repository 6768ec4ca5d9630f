"""Notifies each shard of nodes that died, came back, or have disks without progress, so that its leader proposes
another ISR.

Shards with activity are notified first. Idle ones follow in slices while nothing rolls: after a node was killed, the
proposals of thousands of idle shards would delay the recovery of those without a leader. An idle shard that is written
to is notified at that moment.
Lives on the event loop. Cost: as the step of each shard that this node has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import islice

from stratalog.event_loop.task_set import TaskSet
from stratalog.machines.leading.leader_events import NodeUpdated
from stratalog_node.shards.copies.context import ShardContext
from stratalog_node.shards.copies.due_shards import TimedShard
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.slices import UNITS_PER_SLICE, Slices


class NodeNews:
    def __init__(self, context: ShardContext, shards: Callable[[], Iterable[ShardLog]]) -> None:
        self._context = context
        self._shards = shards
        self._nodes: dict[int, None] = {}
        """Nodes whose latest state some shards have not processed yet."""
        self._untold: dict[TimedShard, ShardLog] = {}
        self._tasks = TaskSet()

    async def close(self) -> None:
        await self._tasks.cancel()

    @property
    def is_under_way(self) -> bool:
        """Whether a shard is still to be notified."""
        return bool(self._untold)

    def changed(self, node_id: int) -> None:
        """The catalog says something else of another node."""
        self._nodes[node_id] = None
        is_under_way = self.is_under_way
        self._untold = {shard: shard for shard in self._shards()}
        if is_under_way:
            return
        if len(self._untold) <= UNITS_PER_SLICE:
            for shard in list(self._untold):
                self._notify(shard)
            return
        self._context.due_shards.on_stir = self._notify_soon
        self._tasks.start(self._notify_all(), name="node-news")

    async def _notify_all(self) -> None:
        slices = Slices()
        for shard in self._context.due_shards.changed():
            self._notify(shard)
            await slices.did()
        while self._untold:
            await self._context.rolls_in_progress.wait_until_none()
            for shard in list(islice(self._untold, UNITS_PER_SLICE)):
                self._notify(shard)
            await asyncio.sleep(0)

    def _notify_soon(self, shard: TimedShard) -> None:
        """It is in the middle of a step."""
        if shard in self._untold:
            asyncio.get_running_loop().call_soon(self._notify, shard)

    def _notify(self, shard: TimedShard) -> None:
        """Tells the shard the present state of each changed node."""
        news = self._untold.pop(shard, None)
        nodes = list(self._nodes)
        if not self._untold:
            self._nodes.clear()
            self._context.due_shards.on_stir = None
        if news is None or news.chain.leads_nothing:
            return
        try:
            for node_id in nodes:
                if (node := self._context.catalog.node(node_id)) is not None:
                    news.handle(NodeUpdated(node.node_id, node.epoch, node.is_alive, node.can_write))
        except Exception as error:  # the other shards must still be notified (F48)
            news.turn_failed(error)
