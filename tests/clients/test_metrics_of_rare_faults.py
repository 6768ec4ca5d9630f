"""Metrics that only a fault moves which no client and no store can cause from outside; see test_every_metric_moves."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stratalog.model.errors import Unavailable
from stratalog.model.groups.group import GroupError
from stratalog.settings.process import ProcessSettings
from stratalog_meta import open_service
from stratalog_node.node import Listen, StorageNode, wall_ms
from support.group_node import GroupNode, committing
from support.tier_rig import RIG_LIMITS, TierRig


async def test_a_segment_that_cannot_be_read_shows_as_held() -> None:
    async with TierRig(replace(RIG_LIMITS, hold_ms=5_000)) as rig:
        topic = await rig.create_topic()
        shard = rig.shard(topic)
        await rig.start_uploader()
        rig.append(shard)
        shard.copies[shard.segments[0].key].is_damaged = True
        await rig.until(lambda: rig.uploader.status().uploader.held)

        assert rig.stats.held_segments == 1


async def test_a_group_log_that_cannot_be_written_is_counted_and_the_client_told() -> None:
    node = await GroupNode().start()
    node.shard_of("g").fail(Unavailable("the disk is away"))

    errors = await node.groups.commit_offsets(committing("g", ("orders", 0, 1)))

    assert errors == [GroupError.COORDINATOR_NOT_AVAILABLE]
    assert node.groups.stats.append_failures == 1


@pytest.mark.fault("request-handler-fails")
async def test_a_handler_that_breaks_costs_its_connection_and_nothing_else(tmp_path: Path) -> None:
    """F48: one request's bug must not take the node down."""
    settings = ProcessSettings(metrics_listen="", offsets_topic_num_partitions=1)
    meta = open_service(tmp_path / "meta", wall_ms)
    await meta.start()
    node = StorageNode(settings, tmp_path / "node", Listen("127.0.0.1", 29_999), meta, None)
    await node.start()
    try:

        async def broken(*_: Any) -> Any:
            raise ZeroDivisionError("a bug")

        key, version = 60, 0  # DescribeCluster
        node.server._apis[key] = replace(node.server._apis[key], handler=broken)
        header = struct.pack(">hhih1sB", key, version, 7, 1, b"x", 0)
        request = header + b"\x00\x00"
        reader, writer = await asyncio.open_connection(*node.address)
        writer.write(struct.pack(">i", len(request)) + request)
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        assert node.server.stats.control_errors == 1
        _, again = await asyncio.open_connection(*node.address)
        again.close()
    finally:
        await node.close()
        await meta.close()
