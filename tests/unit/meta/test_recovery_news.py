"""What the service tells of recoveries: over HTTP as long as it is so, in counters once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from stratalog.model.commands import (
    BeginRecovery,
    CreateTopic,
    PromiseFence,
    RegisterNode,
    ReportReplica,
    RollSegment,
    SealUnclean,
)
from stratalog.model.metadata import Life, NodeInfo
from stratalog.model.segment import SegmentState
from support.meta_worlds import MetaWorld, running, seal_record


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[MetaWorld]:
    async with running("http/memory", tmp_path) as started:
        for number in (1, 2):
            await started.client.perform(RegisterNode(NodeInfo(number, f"disk-{number}", "host", 9092)))
        yield started


async def told(world: MetaWorld) -> Any:
    assert world.url is not None
    async with aiohttp.ClientSession(world.url) as http, http.get("/v1/troubles") as response:
        return (await response.json())["items"]


async def test_a_recovery_and_what_it_gave_up_are_told_and_counted_once(world: MetaWorld) -> None:
    client, stats = world.client, world.service.stats
    await client.perform(CreateTopic("orders", 1, 2))
    (shard,) = (await client.snapshot()).shards
    key = shard.segments[-1].key
    assert await told(world) == []
    for _ in range(2):
        await client.perform(BeginRecovery(key))
    assert (stats.recoveries, stats.ranges_given_up) == (1, 0)
    (trouble,) = await told(world)
    assert (trouble["topic"], trouble["kind"], trouble["nodes"]) == ("orders", "no_leader", [1, 2])
    assert trouble["words"].startswith("waits: node 1 has not answered yet, node 2 has not answered yet: ")
    await client.perform(PromiseFence(key, 1, 5, 7, is_tail_whole=False, caller=Life(1, 1)))
    await client.perform(SealUnclean(key))
    await client.perform(PromiseFence(key, 1, 4, 4, is_tail_whole=True, caller=Life(2, 1)))
    assert (stats.recoveries, stats.ranges_given_up) == (1, 1)
    (trouble,) = await told(world)
    assert trouble["given_up"] == {"base_offset": 5, "end_offset": 7, "reason": "unclean"}


async def test_a_copy_that_differs_is_counted_once(world: MetaWorld) -> None:
    client, stats = world.client, world.service.stats
    await client.perform(RegisterNode(NodeInfo(3, "disk-3", "host", 9092)))
    await client.perform(CreateTopic("orders", 1, 3))
    (shard,) = (await client.snapshot()).shards
    segment = shard.segments[-1]
    await client.perform(RollSegment(segment.key, 5))
    for node_id in (*segment.replicas, segment.replicas[0]):  # reports come again until the segment is sealed
        proof = seal_record(segment.key, 5, digest=b"other" if node_id == 3 else b"digest")
        await client.perform(ReportReplica(segment.key, proof, caller=Life(node_id, 1)))
    assert (await world.service.segment(segment.key)).state is SegmentState.SEALED
    assert stats.copies_differing == 1
