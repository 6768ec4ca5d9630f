"""A segment that is full while the meta service is away: producers keep writing to it (docs/replication.md section
5)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stratalog.model.commands.table_commands import PrepareSegment, RollSegment
from stratalog_node.node import monotonic_ms
from stratalog_node.shards.seal.successors import FRESH_MS
from support.node_cluster import NodeCluster
from support.waiting import eventually

WENT_MS = FRESH_MS + 1
"""So long ago the service was heard: far less than a lease."""


@pytest.mark.fault("meta-service-becomes-unavailable")
async def test_a_service_that_went_away_just_before_a_roll_does_not_block_producers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1, 2)
        key = await cluster.shard(2, segment_bytes="1000")
        values = [bytes([number]) * 300 for number in range(5)]
        for value in values[:2]:
            await cluster.append(key, value)
        await eventually(lambda: cluster.segments(key)[0].handed.prepared is not None)
        heard_ms = monotonic_ms()
        for call in (PrepareSegment, RollSegment, "heartbeat"):
            cluster.meta.hold(call)
        await eventually(lambda: monotonic_ms() - heard_ms >= WENT_MS)
        async with asyncio.timeout(10):
            assert [await cluster.offer(key, value) for value in values[2:4]] == [2, 3]
        shard = await cluster.leads_again(key)
        assert shard.active is not None and shard.active.key.epoch == 0
        for call in (PrepareSegment, RollSegment, "heartbeat"):
            cluster.meta.release(call)
        await eventually(lambda: len(cluster.segments(key)) == 2)
        assert await cluster.append(key, values[4]) == 4
        assert (await cluster.is_sealed(key, copies=2)).end_offset == 4
        assert await cluster.values(key) == values
