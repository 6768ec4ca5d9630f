"""A node joins a cluster that writes: rolls give it its share, and nothing old moves."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from stratalog.machines.copies.rebalance import Move, plan_rebalance
from stratalog.model.errors import StratalogError
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Snapshot
from stratalog_cli.admin.rebalance import even_out
from support.node_cluster import NodeCluster
from support.waiting import eventually

SHARDS = 6


class Writing:
    """Idempotent producers, one a shard, that send each batch until it is acknowledged, and once more after that."""

    def __init__(self, cluster: NodeCluster, keys: Sequence[ShardKey]) -> None:
        self.cluster = cluster
        self.acknowledged: dict[ShardKey, list[tuple[int, bytes]]] = {key: [] for key in keys}
        self._is_over = asyncio.Event()
        self._tasks = [asyncio.create_task(self._produce(number, key)) for number, key in enumerate(keys)]

    async def _produce(self, producer: int, key: ShardKey) -> None:
        sequence = 0
        while not self._is_over.is_set():
            value = b"%d-%d" % (producer, sequence)
            options = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
            offset = await self._until_taken(key, value, options)
            assert await self._until_taken(key, value, options) == offset, "it was there already"
            self.acknowledged[key].append((offset, value))
            sequence += 1
            await asyncio.sleep(0.005)

    async def _until_taken(self, key: ShardKey, value: bytes, options: dict[str, int]) -> int:
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(StratalogError):  # as a client finds the leader
                    return await self.cluster.append(key, value, **options)
                await asyncio.sleep(0.01)

    async def end(self) -> None:
        self._is_over.set()
        await asyncio.gather(*self._tasks)


async def rebalanced(cluster: NodeCluster) -> int:
    """As the command does it: from a thread of its own, each leader is asked for what it leads."""
    loop = asyncio.get_running_loop()

    def read() -> Snapshot:
        return asyncio.run_coroutine_threadsafe(cluster.meta.service.snapshot(), loop).result(20)

    async def asked(moves: Sequence[Move]) -> set[SegmentKey]:
        keys = {move.segment.key for move in moves}
        return {key for node in cluster.nodes.values() for key in keys if node.roll_elsewhere(key)}

    def roll(moves: Sequence[Move]) -> set[SegmentKey]:
        return asyncio.run_coroutine_threadsafe(asked(moves), loop).result(20)

    plan, rounds = await asyncio.to_thread(even_out, read, roll, 30.0)
    assert plan.is_even or not plan.moves
    return rounds


async def test_a_new_node_takes_its_share_at_once_and_no_old_byte_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1, 2)
        keys = [await cluster.shard(2, f"flights-{number}") for number in range(SHARDS)]
        for key in keys:
            await cluster.append(key, b"old")
            shard = await cluster.leads_again(key)
            shard.workers.sealing.successors.prepare(shard, cluster.segments(key)[0].key)  # as when it is half full
        await eventually(lambda: all(cluster.segments(key)[0].handed.prepared is not None for key in keys))
        writing = Writing(cluster, keys)
        await eventually(lambda: all(len(some) > 3 for some in writing.acknowledged.values()))
        await cluster.start(3)
        old = {segment.key for key in keys for segment in cluster.segments(key)}
        assert await rebalanced(cluster) >= 2, "it follows first, and leads then"
        before = {key: len(some) for key, some in writing.acknowledged.items()}
        await eventually(lambda: all(len(some) > before[key] + 3 for key, some in writing.acknowledged.items()))
        await writing.end()

        plan = plan_rebalance(await cluster.meta.service.snapshot())
        assert [share.leaders for share in plan.shares] == [SHARDS / 3] * 3, "new writes are even"
        assert all(node.following.stats.catch_up_bytes == 0 for node in cluster.nodes.values()), "no old byte moved"
        assert all(3 not in segment.replicas for key in keys for segment in cluster.segments(key) if segment.key in old)
        for key in keys:
            values = await cluster.values(key)
            assert values[0] == b"old"
            assert all(values[offset] == value for offset, value in writing.acknowledged[key]), "none is lost"
            assert max(Counter(value for value in values if value is not None).values()) == 1, "none is there twice"
