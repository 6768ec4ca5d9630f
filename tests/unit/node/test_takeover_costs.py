"""A node dies that led many shards: how often the nodes that stay go to the disk, and which shards do any work."""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stratalog.formats.segments.index_block import decode_index_block
from stratalog.formats.segments.producers import tally_of
from stratalog.machines.following.follower_events import FollowerEvent, RangeRefused
from stratalog.machines.leading.chain_events import ChainEvent, SegmentEventReceived
from stratalog.model.commands.table_commands import CreateTopic, ProposeIsr, ReportReplica
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.producers import ProducerTally
from stratalog_node.replication.replica import Replica
from stratalog_node.shards.catalog.lag import CatalogLag
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.shards.seal import producers_before
from support.node_cluster import NodeCluster
from support.waiting import eventually

SHARDS = 30
DEAD, OTHERS = 1, (2, 3)


async def written_shards(cluster: NodeCluster, replicas: int = 3) -> list[ShardKey]:
    """With a record each."""
    topic = await cluster.meta.service.perform(CreateTopic("many", SHARDS, replicas, {}))
    keys = [ShardKey(topic.topic_id, number) for number in range(SHARDS)]
    await eventually(lambda: all(node.shards.get(key) is not None for node in cluster.nodes.values() for key in keys))
    for key in keys:
        await cluster.append(key, b"before")
    return keys


@pytest.fixture
def flushed_files(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Small files that were flushed, by the names that they had then."""
    flushed: list[Path] = []
    fsync = os.fsync

    def noted(fd: int) -> None:
        flushed.append(Path(os.readlink(f"/proc/self/fd/{fd}")))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    return flushed


@pytest.mark.fault("node-leads-thousands-shards")
async def test_each_copy_flushes_one_index_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flushed_files: list[Path]
) -> None:
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(DEAD, *OTHERS)
        keys = [key for key in await written_shards(cluster) if cluster.leader(key) == DEAD]
        await cluster.kill(DEAD)
        flushed_files.clear()
        await cluster.lose(DEAD)
        for key in keys:
            await cluster.append(key, b"behind")
            await cluster.is_sealed(key, copies=len(OTHERS))
        ended = [SegmentKey(key.topic_id, key.shard, 0, 0) for key in keys]
        paths = [cluster.layout(node_id).index(segment) for node_id in OTHERS for segment in ended]
        await eventually(lambda: all(path.exists() and decode(path).seal.replicas == OTHERS for path in paths))
        names = Counter(path for path in flushed_files if path.suffix == ".tmp" and path.with_suffix("") in paths)
        assert names == Counter(path.with_name(path.name + ".tmp") for path in paths)


def decode(path: Path) -> Any:
    return decode_index_block(path.read_bytes(), source=str(path))


@pytest.mark.fault("power-cut-proven-index")
async def test_an_index_block_that_a_proof_left_damaged_is_whole_once_the_segment_is_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(DEAD, *OTHERS)
        key = await cluster.shard(3)
        await cluster.append(key, bytes(300_000))  # a small copy gets its block with the seal
        follower = next(node_id for node_id in cluster.nodes if node_id != cluster.leader(key))
        path = cluster.layout(follower).index(SegmentKey(key.topic_id, key.shard, 0, 0))
        cluster.meta.hold(ReportReplica)
        assert cluster.nodes[cluster.leader(key)].ask_roll(key)
        await eventually(path.exists)
        path.write_bytes(b"")
        cluster.meta.release(ReportReplica)
        sealed = await cluster.is_sealed(key, copies=3)
        await eventually(lambda: path.stat().st_size > 0)
        assert decode(path).seal == sealed.seal


@pytest.mark.fault("node-leads-thousands-shards")
async def test_a_shard_that_others_lead_has_no_work_when_its_segments_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[int, SegmentKey]] = []
    tell = ShardLog.handle

    def noted(shard: ShardLog, event: ChainEvent) -> None:
        if isinstance(event, SegmentEventReceived):
            led = shard.chain.active
            assert led is not None and led.key.epoch == event.epoch, "a segment that this node does not lead"
            heard.append((shard.context.node_id, led.key))
        tell(shard, event)

    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(DEAD, *OTHERS)
        keys = await written_shards(cluster)
        lost = {key for key in keys if cluster.leader(key) == DEAD}
        await cluster.kill(DEAD)
        monkeypatch.setattr(ShardLog, "handle", noted)
        await cluster.lose(DEAD)
        for key in lost:
            await cluster.append(key, b"behind")
            await cluster.is_sealed(key, copies=len(OTHERS))
        assert all(segment.epoch == 1 or segment.shard_key not in lost for _, segment in heard)


@pytest.mark.fault("node-leads-thousands-shards")
async def test_copies_whose_only_source_is_dead_do_nothing_until_its_segments_are_fenced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their one connection is tried again. Each of them to pause and ask again costs seconds with thousands."""
    heard: list[FollowerEvent] = []
    hear = Replica.handle

    def noted(replica: Replica, event: FollowerEvent) -> None:
        heard.append(event)
        hear(replica, event)

    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(DEAD, *OTHERS)
        keys = await written_shards(cluster)
        await cluster.kill(DEAD)
        monkeypatch.setattr(Replica, "handle", noted)
        stats = [cluster.nodes[node_id].following.stats for node_id in OTHERS]
        await eventually(lambda: all(one.connections_lost >= 4 for one in stats))
        assert not [event for event in heard if isinstance(event, RangeRefused)]
        await cluster.lose(DEAD)
        for key in keys:
            await cluster.append(key, b"behind")


@pytest.mark.fault("node-leads-thousands-shards")
async def test_leaders_propose_nothing_when_a_follower_dies_that_they_can_do_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(DEAD, *OTHERS)
        keys = [key for key in await written_shards(cluster) if cluster.leader(key) != DEAD]
        before = cluster.meta.calls[ProposeIsr]
        await cluster.kill(DEAD)
        await cluster.lose(DEAD)
        for key in keys:
            assert await cluster.append(key, b"behind") == 1
            assert set(cluster.segments(key)[-1].isr) == {*OTHERS}
        await eventually(lambda: not any(node.shards.news.is_under_way for node in cluster.nodes.values()))
        assert cluster.meta.calls[ProposeIsr] == before
        await cluster.start(DEAD)
        await eventually(lambda: all(DEAD in cluster.segments(key)[-1].isr for key in keys))


@pytest.mark.fault("node-leads-thousands-shards")
async def test_segments_whose_isr_may_have_changed_are_read_back_by_shared_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers to all proposals are lost, as when the meta service needs too long for thousands of them. Each shard
    has two replicas: its leader must itself agree to be the last in the ISR."""
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(DEAD, OTHERS[0])
        keys = [key for key in await written_shards(cluster, replicas=2) if cluster.leader(key) != DEAD]
        cluster.meta.hold(ProposeIsr)
        before = cluster.meta.calls[ProposeIsr]
        await cluster.kill(DEAD)
        await cluster.lose(DEAD)
        await eventually(lambda: cluster.meta.calls[ProposeIsr] >= before + len(keys))
        asked: list[CatalogLag] = []
        catch_up = CatalogLag.catch_up

        async def noted(lag: CatalogLag) -> bool:
            asked.append(lag)
            return await catch_up(lag)

        monkeypatch.setattr(CatalogLag, "catch_up", noted)
        reads = cluster.meta.calls["read_version"]
        cluster.meta.hold("read_version")
        cluster.meta.lose_answer(ProposeIsr, len(keys))
        cluster.meta.release(ProposeIsr)
        await eventually(lambda: len(asked) >= len(keys))  # as beside a service that takes time for its answers
        cluster.meta.release("read_version")
        for key in keys:
            await eventually(lambda key=key: DEAD not in cluster.segments(key)[-1].isr)
            assert await cluster.append(key, b"behind") == 1
        assert cluster.meta.calls["read_version"] - reads < len(keys) // 2


@pytest.mark.fault("node-leads-thousands-shards")
async def test_tallies_of_few_producers_are_made_without_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_on: list[threading.Thread] = []

    def noted(*what: Any) -> ProducerTally:
        made_on.append(threading.current_thread())
        return tally_of(*what)

    monkeypatch.setattr(producers_before, "tally_of", noted)
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(DEAD, *OTHERS)
        keys = [key for key in await written_shards(cluster) if cluster.leader(key) == DEAD]
        await cluster.kill(DEAD)
        await cluster.lose(DEAD)
        for key in keys:
            await cluster.is_sealed(key, copies=len(OTHERS))
    assert len(made_on) >= len(OTHERS) * len(keys)
    assert set(made_on) == {threading.main_thread()}
