"""A node that comes into a shard late, and one that is gone and still listed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.machines.following.follower_events import FollowerLife
from stratalog.model.commands.table_commands import AdvanceLogStart
from stratalog.objects.obstore_store import open_memory
from stratalog.objects.settings import StoreSettings
from stratalog_node.disk.inspection import inspect_file
from support.node_cluster import NodeCluster
from support.waiting import eventually

NOBODY_WAITS = {"remote_delete_delay_ms": 0, "log_retention_check_interval_ms": 20}


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NodeCluster]:
    async with NodeCluster(tmp_path, monkeypatch, open_memory(StoreSettings())) as cluster:
        yield cluster


@pytest.mark.fault("node-joins-shard-later")
async def test_a_node_that_joins_a_shard_at_a_later_segment_begins_where_that_begins(cluster: NodeCluster) -> None:
    """F65: its end is the segment's base and never 0, nor does a restart begin it again."""
    await cluster.start(1, 2)
    key = await cluster.shard(2)
    for value in (b"0", b"1", b"2"):
        await cluster.append(key, value)
    leader = cluster.leader(key)
    other = 3 - leader
    await cluster.start(3)
    await cluster.kill(other)
    await cluster.lose(other)
    shard = await cluster.leads_again(key)
    shard.ask_roll(0)
    await eventually(lambda: shard.epoch == 1)
    await eventually(lambda: cluster.replica(3, key, 1) is not None)
    assert cluster.segments(key)[1].replicas == (leader, 3)
    replica = cluster.replica(3, key, 1)
    assert replica is not None and (replica.end_offset, replica.follower.high_watermark) == (3, 3)
    await cluster.append(key, b"3")
    for _ in range(2):
        await cluster.stop(3)
        await cluster.start(3)
        await eventually(lambda: cluster.replica(3, key, 1) is not None)
        replica = cluster.replica(3, key, 1)
        assert replica is not None and replica.end_offset == 4, "what it has it keeps"
        assert replica.follower.life is FollowerLife.FOLLOWING
    await cluster.lose(leader)
    shard = await cluster.leads_again(key)
    assert shard.context.node_id == 3, "it may lead what it joined"
    assert await cluster.append(key, b"4") == 4
    await cluster.restore_heartbeats(leader)
    assert await cluster.values(key) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.fault("follower-next-offset-longer", "segment-deleted-node-dead")
async def test_a_segment_is_deleted_though_a_dead_node_is_still_listed(cluster: NodeCluster) -> None:
    """F70: files, objects and the record go; a node that comes back has nothing of it, and brings nothing back."""
    await cluster.start(1, 2, **NOBODY_WAITS)
    key = await cluster.shard(2, retention_ms="-1")
    await cluster.append(key, b"0")
    leader = cluster.leader(key)
    dead = 3 - leader
    shard = await cluster.leads_again(key)
    shard.ask_roll(0)
    old = (await cluster.is_sealed(key, copies=2)).key
    await cluster.append(key, b"1")
    await cluster.kill(dead)
    await cluster.lose(dead)
    path = cluster.layout(leader).segment(old)
    kept = cluster.layout(dead).segment(old)
    assert path.exists() and kept.exists()
    await cluster.meta.service.perform(AdvanceLogStart(key, 1))
    await eventually(lambda: not path.exists())

    async def purged() -> bool:
        return old not in [segment.key for segment in await cluster.meta.service.deleted_segments()]

    await eventually(purged)
    assert kept.exists()
    await cluster.start(dead, **NOBODY_WAITS)
    await eventually(lambda: not kept.exists())
    assert [segment.epoch for segment in cluster.segments(key)] == [1]
    assert await cluster.values(key) == [b"1"]


@pytest.mark.fault("part-copy-remains-valid")
async def test_a_copy_without_valid_data_is_cut_to_its_base_however_many_epochs_it_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F18, F20: the leader alone had it, no other node knew of it, and two segments ended while it was away."""
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1, 2)
        key = await cluster.shard(2)
        leader = cluster.leader(key)
        other = 3 - leader
        with cluster.full_disk(other):
            await cluster.offer(key, b"never acknowledged by all", acks=1)
            await cluster.kill(leader)
            await cluster.lose(leader)
            shard = await cluster.leads_again(key)
        old = cluster.segments(key)[0]
        assert old.end_offset == 0
        await cluster.append(key, b"0")
        shard.ask_roll(0)
        await eventually(lambda: shard.epoch == 2)
        await cluster.append(key, b"1")
        await cluster.start(leader)
        await cluster.is_sealed(key, copies=2)
        with inspect_file(cluster.layout(leader).segment(old.key)) as file:
            assert file.holds_only_zeros_from(SEGMENT_HEADER_BYTES), "nothing of it is left"
        assert (await cluster.values(key), shard.log_start_offset) == ([b"0", b"1"], 0)
