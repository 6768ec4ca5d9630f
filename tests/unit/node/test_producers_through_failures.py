"""A correct idempotent producer, five batches in flight, while its shard rolls, moves, loses leaders and has two nodes
that each claim to lead: it gets no final error, and its records are there once and in order."""

from __future__ import annotations

import asyncio
import random
from collections import deque

import pytest

from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.ids import ShardKey
from stratalog_node.shards.log.shard_log import ShardLog
from support.node_cluster import NodeCluster
from support.sequences import offer_sequenced
from support.shard_rig import Asked
from support.waiting import eventually

pytestmark = pytest.mark.fault("replaced-leader-learned-batches")

IN_FLIGHT = 5
PATIENCE_S = 0.3
"""Of the producer with one node: then it asks another."""
FINAL = {
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    ErrorCode.INVALID_PRODUCER_EPOCH,
}


class Producer:
    """Sends what is not acknowledged, oldest first, all of it to one node and then to another.

    Never to two at a time: a node that knows nothing of a producer takes whatever comes first for its beginning, as
    Kafka does, and what was sent before that is out of order from then on.
    """

    def __init__(self, cluster: NodeCluster, key: ShardKey, rng: random.Random) -> None:
        self.acknowledged = 0
        self._cluster = cluster
        self._key = key
        self._rng = rng
        self._line: deque[int] = deque()
        self._next = 0

    async def go(self) -> None:
        while True:
            while len(self._line) < IN_FLIGHT:
                self._line.append(self._next)
                self._next += 1
            await self.send()

    async def finish(self) -> int:
        """Everything that was begun is acknowledged. Returns: how many records."""
        while self._line:
            await self.send()
        return self._next

    async def send(self) -> None:
        node = self._some_node()
        asked = [(sequence, offer_sequenced(node, sequence)) for sequence in self._line]
        try:
            async with asyncio.timeout(PATIENCE_S):
                await eventually(lambda: all(one.is_answered for _, one in asked))
        except TimeoutError:
            pass
        for sequence, one in asked:
            if not self._take(sequence, one):
                break
        await asyncio.sleep(0.005)

    def _some_node(self) -> ShardLog:
        """The leader according to most nodes, or a node that claims to lead, or any node."""
        shards = [shard for node in self._cluster.nodes.values() if (shard := node.shards.get(self._key)) is not None]
        leading = [shard for shard in shards if shard.is_leader and shard.stop is None]
        return self._rng.choice(leading if leading and self._rng.random() < 0.9 else shards)

    def _take(self, sequence: int, one: Asked) -> bool:
        """Whether what was sent behind it may have been acknowledged, too."""
        assert sequence == self._line[0]
        if one.is_acknowledged:
            self._line.popleft()
            self.acknowledged += 1
            return True
        assert not one.is_answered or one.error not in FINAL, f"{sequence} is refused for good: {one.error.name}"
        return False


class Trouble:
    def __init__(self, cluster: NodeCluster, key: ShardKey) -> None:
        self._cluster = cluster
        self._key = key

    async def roll(self) -> None:
        (await self._cluster.leads_again(self._key)).ask_roll(0)

    async def lose_leader(self) -> None:
        leader = (await self._cluster.leads_again(self._key)).context.node_id
        await self._cluster.lose(leader)
        await self._leads_elsewhere(leader)
        await self._cluster.restore_heartbeats(leader)

    async def lose_leader_that_does_not_hear(self) -> None:
        leader = (await self._cluster.leads_again(self._key)).context.node_id
        with self._cluster.deaf(leader):
            await self._cluster.lose(leader)
            await self._leads_elsewhere(leader)
            await asyncio.sleep(PATIENCE_S)  # so that the producer continues at one node and asks the other
        await self._cluster.restore_heartbeats(leader)

    async def kill_leader(self) -> None:
        leader = (await self._cluster.leads_again(self._key)).context.node_id
        await self._cluster.kill(leader)
        await self._cluster.start(leader)

    async def _leads_elsewhere(self, old: int) -> None:
        others = [node for number, node in self._cluster.nodes.items() if number != old]

        def is_led() -> bool:
            shards = [shard for node in others if (shard := node.shards.get(self._key)) is not None]
            return any(shard.is_leader and shard.stop is None for shard in shards)

        await eventually(is_led)


@pytest.mark.parametrize("seed", range(2))
async def test_a_correct_producer_gets_no_final_error(cluster: NodeCluster, seed: int) -> None:
    rng = random.Random(seed)
    await cluster.start(1, 2, 3)
    key = await cluster.shard(3)
    producer, trouble = Producer(cluster, key, rng), Trouble(cluster, key)
    strikes = [trouble.roll, trouble.lose_leader, trouble.lose_leader_that_does_not_hear, trouble.kill_leader]
    writing = asyncio.create_task(producer.go())
    for _ in range(2):
        rng.shuffle(strikes)
        for strike in strikes:
            await strike()
            before = producer.acknowledged
            await eventually(lambda before=before: writing.done() or producer.acknowledged > before + 3)
            if writing.done():
                writing.result()
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    count = await producer.finish()
    assert await cluster.values(key) == [b"%d" % number for number in range(count)]
