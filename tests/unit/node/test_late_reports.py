"""A copy that is reported late, when the object store has all of the segment: it is no longer listed, and is
removed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stratalog.model.commands.table_commands import AcquireLock, CommitParts, CompleteRemote, ReportReplica
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import PartCommit
from stratalog.model.segment import RemotePart
from support.node_cluster import NodeCluster
from support.waiting import eventually


async def stored(cluster: NodeCluster, key: SegmentKey, end_offset: int) -> None:
    """As an uploader says it."""
    service = cluster.meta.service
    lock = await service.perform(AcquireLock("tier/1", "node-1", 60_000))
    part = RemotePart("part", 0, 100, key.base_offset, end_offset)
    await service.perform(CommitParts(lock, (PartCommit(key, -1, part),)))
    await service.perform(CompleteRemote(lock, key, "manifest", b"digest", 10))


@pytest.mark.fault("node-reports-copy-completes")
async def test_a_follower_that_reports_its_copy_too_late_lets_it_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1, 2, 3)
        key = await cluster.shard(3)
        leader = cluster.leader(key)
        late = next(number for number in (1, 2, 3) if number != leader)
        following = cluster.nodes[late].following
        submit, gate, told = following.submit, asyncio.Event(), asyncio.Event()

        async def slow(command: Any) -> None:
            if isinstance(command, ReportReplica):
                told.set()
                await gate.wait()
            await submit(command)

        monkeypatch.setattr(following, "submit", slow)
        await cluster.append(key, b"0")
        segment = cluster.segments(key)[0].key
        path = cluster.layout(late).segment(segment)
        shard = await cluster.leads_again(key)
        shard.ask_roll(0)
        await told.wait()
        await cluster.lose(late)  # no client waits for it
        await cluster.is_sealed(key, copies=2)
        await cluster.restore_heartbeats(late)
        await stored(cluster, segment, 1)
        gate.set()
        await eventually(lambda: not path.exists())
        assert late not in (await cluster.is_sealed(key)).local_nodes
        assert cluster.replica(late, key) is None
