"""Asks the meta service whether this node still leads a shard, before an answer that clients take as final.

A leader that was replaced learns it from the watch, with a delay. Once the catalog is as new as the question and the
shard still leads, no other node led it when the question was asked.
Lives on the event loop. Cost: one read of the meta service for all questions that are asked together.
"""

from __future__ import annotations

from typing import Protocol

from stratalog.event_loop.task_set import TaskSet
from stratalog.machines.leading.chain_events import ChainEvent, LeadershipChecked
from stratalog.machines.leading.shard_chain import ShardChain
from stratalog_node.shards.copies.context import ShardContext


class ShardInDoubt(Protocol):
    chain: ShardChain

    def handle(self, event: ChainEvent) -> None: ...


class LeadershipCheck:
    def __init__(self, context: ShardContext) -> None:
        self._lag = context.lag
        self._tasks = TaskSet()

    async def close(self) -> None:
        await self._tasks.cancel()

    def ask(self, shard: ShardInDoubt, question: int) -> None:
        self._tasks.start(self._ask(shard, shard.chain, question))

    async def _ask(self, shard: ShardInDoubt, chain: ShardChain, question: int) -> None:
        is_known = await self._lag.catch_up()
        if shard.chain is chain:  # else it stopped, and its waiting clients were answered
            shard.handle(LeadershipChecked(question, is_known))
