"""What the service tells of recoveries: over HTTP as long as it is so, in counters once."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import pytest

from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.commands.table_commands import (
    BeginRecovery,
    CreateTopic,
    PromiseFence,
    RegisterNode,
    ReportReplica,
    RollSegment,
    SealUnclean,
)
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import ChangeSet, Life, NodeInfo, SegmentChanged
from stratalog.model.segment import GapReason, GivenUp, Handover, Segment, SegmentState
from stratalog.telemetry.logs import configure_logs
from stratalog_meta.recovery_news import NAMED, RecoveryNews
from stratalog_meta.stats import MetaStats
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


async def test_a_recovery_and_what_it_gave_up_are_reported_and_counted_once(world: MetaWorld) -> None:
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
    assert isinstance(client, HttpMetaClient)
    assert [(one.topic, str(one.kind), one.segment) for one in await client.troubles()] == [
        ("orders", "no_leader", key)
    ]
    assert await client.troubles(0) == ()
    assert trouble["words"].startswith(
        "no leader; waiting for node 1 (has not answered yet) and node 2 (has not answered yet): wait; "
    )
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


@pytest.mark.parametrize(("dead", "lines"), [(1, 1), (NAMED, NAMED), (2_000, NAMED + 1)])
def test_of_a_node_that_led_thousands_a_few_segments_are_named_and_all_counted(dead: int, lines: int) -> None:
    log, stats = io.StringIO(), MetaStats()
    configure_logs("info", stream=log)
    keys = [SegmentKey(UUID(int=1), shard, 0, 0) for shard in range(dead)]
    fenced = [Segment(key, SegmentState.ACTIVE, None, (1, 2), (1, 2), 1, 0, fence=1) for key in keys]
    RecoveryNews(stats).follow(ChangeSet(1, tuple(map(SegmentChanged, fenced))))
    configure_logs("info")

    written = [json.loads(line) for line in log.getvalue().splitlines()]
    assert stats.recoveries == dead and len(written) == lines
    if dead > NAMED:
        assert (written[-1]["in_all"], written[-1]["not_named"]) == (dead, dead - NAMED)


@pytest.mark.parametrize(("end_offset", "level"), [(7, "error"), (5, "warning")])
def test_an_end_in_doubt_is_not_reported_as_lost_offsets(end_offset: int, level: str) -> None:
    """A rebuild and a restore leave an empty range at the end of each segment: nothing of it is known to be lost."""
    log, stats = io.StringIO(), MetaStats()
    configure_logs("info", stream=log)
    gap = GivenUp(5, end_offset, GapReason.UNCLEAN)
    ended = Segment(
        SegmentKey(UUID(int=1), 0, 0, 0),
        SegmentState.SEALED,
        None,
        (1,),
        (1,),
        0,
        0,
        5,
        handover=Handover(given_up=(gap,)),
    )
    RecoveryNews(stats).follow(ChangeSet(1, (SegmentChanged(ended),)))
    configure_logs("info")

    (line,) = [json.loads(line) for line in log.getvalue().splitlines()]
    assert (line["level"], "stored nowhere" in line["event"]) == (level, level == "error")
    assert stats.ranges_given_up == 1
