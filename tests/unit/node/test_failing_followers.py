"""A follower that cannot write, or cannot flush: its leader continues without it, it reports that, and it heals."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stratalog.machines.following.follower_events import FollowerLife
from stratalog.model.errors import DiskFull
from stratalog_node.admin.followed import replication_status
from stratalog_node.disk.files import FlushLost
from stratalog_node.node import wall_ms
from stratalog_node.replication import following
from stratalog_node.replication.replica_copy import ReplicaCopy
from support.follower_rig import FollowerRig, LeadingRig, led_shards
from support.node_cluster import NodeCluster
from support.waiting import eventually

SOON_MS = 100


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NodeCluster]:
    monkeypatch.setattr("stratalog_node.shards.log.ages._POLL_S", 0.05)
    monkeypatch.setattr(following, "_ANEW_S", 0.01)
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1, 2, replica_lag_time_max_ms=SOON_MS)
        yield cluster


@pytest.mark.fault("follower-disk-full-accepts")
@pytest.mark.parametrize("policy", ["replicated", "fsync"])
async def test_a_follower_whose_disk_takes_nothing_leaves_the_isr_says_so_and_comes_back(
    cluster: NodeCluster, policy: str
) -> None:
    key = await cluster.shard(replicas=2, flush_policy=policy)
    leader = cluster.leader(key)
    other = 3 - leader
    node = cluster.nodes[other]
    await cluster.append(key, b"one")
    with cluster.full_disk(other):
        assert await cluster.append(key, b"two") == 1, "its leader goes on"
        assert cluster.segments(key)[-1].isr == (leader,)
        await eventually(lambda: node.following.stats.refused_appends > 0)
        told = replication_status(node.following, node.catalog)
        (behind,) = [one for one in told.worst if one.topic == "flights"]
        assert (behind.shard, behind.lag_offsets, behind.lag_bytes > 0) == (0, 1, True)
        assert f'stratalog_replication_lag_offsets{{leader="{leader}"}} 1\n' in (await node.metrics.page()).decode()
    await eventually(lambda: set(cluster.segments(key)[-1].isr) == {1, 2})
    await cluster.append(key, b"three")
    replica = cluster.replica(other, key)
    assert replica is not None and replica.copy.end_offset == 3
    assert not [one for one in replication_status(node.following, node.catalog).worst if one.topic == "flights"]


@pytest.mark.fault("follower-flush-fails")
@pytest.mark.parametrize("policy", ["replicated", "fsync"])
async def test_a_follower_whose_flush_failed_is_out_until_the_next_segment_and_copies_this_one_again(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    key = await cluster.shard(replicas=2, flush_policy=policy)
    leader = cluster.leader(key)
    other = 3 - leader
    await cluster.append(key, b"one")
    replica = cluster.replica(other, key)
    assert replica is not None
    flush = ReplicaCopy.flush

    def failing(copy: ReplicaCopy) -> tuple[int, int]:
        if copy is replica.copy:
            raise FlushLost("the disk did not take it")
        return flush(copy)

    monkeypatch.setattr(ReplicaCopy, "flush", failing)
    if policy == "replicated":
        await cluster.append(key, b"two")
        await replica.flush_behind()
    else:
        cluster.offer(key, b"two", acks=1)
    await eventually(lambda: replica.follower.life is FollowerLife.FAULTY)
    await eventually(lambda: cluster.nodes[other].following.stats.faulty_copies == 1)
    await cluster.append(key, b"three")
    assert cluster.segments(key)[-1].isr == (leader,)
    (await cluster.leads_again(key)).ask_roll(wall_ms())
    await eventually(lambda: cluster.segments(key)[-1].epoch == 1 and set(cluster.segments(key)[-1].isr) == {1, 2})
    await cluster.append(key, b"four")
    sealed = await cluster.is_sealed(key, copies=2)
    assert set(sealed.local_nodes) == {1, 2}, "copied again"
    assert cluster.nodes[other].following.stats.faulty_copies == 0


@pytest.mark.fault("node-stops-cannot-flush")
async def test_a_stop_that_cannot_flush_a_copy_is_not_clean(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await cluster.shard(replicas=2)
    other = 3 - cluster.leader(key)
    await cluster.append(key, b"one")
    flush = ReplicaCopy.flush

    def failing(copy: ReplicaCopy) -> tuple[int, int]:
        if copy.key.topic_id == key.topic_id:
            raise FlushLost("the disk did not take it")
        return flush(copy)

    monkeypatch.setattr(ReplicaCopy, "flush", failing)
    await cluster.stop(other)
    assert not cluster.layout(other).clean_file.exists()
    monkeypatch.setattr(ReplicaCopy, "flush", flush)
    await cluster.start(other)
    await cluster.stop(other)
    assert cluster.layout(other).clean_file.exists()


@pytest.mark.fault("follower-disk-full-accepts")
async def test_a_node_without_room_asks_for_nothing_until_there_is_some(tmp_path: Path) -> None:
    async with LeadingRig(tmp_path / "1") as rig, FollowerRig(rig, tmp_path / "2") as follower:
        (shard,) = await led_shards(rig)
        await rig.acknowledged(shard, b"one")
        replica = await follower.replica_of(shard)
        gate, following_ = follower.context.gate, follower.following
        gate.no_room = "less is free than disk.reserve.bytes"
        following_.check_room()
        assert following_.stats.is_without_room == 1
        before = following_.stats.fetched_bytes
        rig.append(shard, b"two")
        await eventually(lambda: shard.end_offset == 2)
        await eventually(lambda: not shard.waiters)
        assert (following_.stats.fetched_bytes, replica.copy.end_offset) == (before, 1)
        gate.no_room = None
        following_.check_room()
        await eventually(lambda: replica.copy.end_offset == 2)
        assert following_.stats.is_without_room == 0


@pytest.mark.fault("follower-disk-full-accepts")
async def test_an_impossible_write_is_reported_as_a_failed_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with LeadingRig(tmp_path / "1") as rig, FollowerRig(rig, tmp_path / "2") as follower:
        (shard,) = await led_shards(rig)
        await rig.acknowledged(shard, b"one")
        append = ReplicaCopy.append
        monkeypatch.setattr(ReplicaCopy, "append", _full)
        rig.append(shard, b"two")
        await eventually(lambda: follower.context.stats.write_failures > 0)
        monkeypatch.setattr(ReplicaCopy, "append", append)
        replica = await follower.replica_of(shard)
        await eventually(lambda: replica.copy.end_offset == 2)


def _full(copy: ReplicaCopy, batches: object) -> None:
    raise DiskFull("no space left")


@pytest.mark.fault("follower-isr-restarts-file")
async def test_a_copy_that_cannot_be_read_and_is_not_counted_on_is_made_again_without_a_word(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_OPEN_AGAIN_S", 0.01)
    key = await cluster.shard(2)
    await cluster.append(key, b"one")
    leader = cluster.leader(key)
    follower = 3 - leader
    await cluster.until(lambda: (one := cluster.replica(follower, key)) is not None and one.end_offset == 1)
    await cluster.kill(follower)
    await cluster.lose(follower)
    await eventually(lambda: cluster.segments(key, leader)[-1].isr == (leader,))
    version = cluster.segments(key, leader)[-1].isr_version
    path = cluster.layout(follower).segment(cluster.segments(key, leader)[-1].key)
    path.write_bytes(b"\xff" * path.stat().st_size)
    await cluster.start(follower)
    await eventually(lambda: set(cluster.segments(key, leader)[-1].isr) == {1, 2})
    assert cluster.segments(key, leader)[-1].isr_version == version + 1, "it was taken in, and nothing else"
    assert await cluster.values(key) == [b"one"]
