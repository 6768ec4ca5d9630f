"""A fence of a segment that has ended takes that one from its leader, and nothing of what the node writes behind it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from stratalog.model.commands.table_commands import BeginRecovery, ProposeIsr, ReportReplica
from stratalog.model.errors import Unavailable
from stratalog.model.ids import ShardKey
from stratalog_node.disk.files import FlushLost
from stratalog_node.shards.copies.active import ActiveSegment
from stratalog_node.shards.seal.sealing import Sealing
from support.node_cluster import NodeCluster
from support.waiting import eventually


async def one_ended(cluster: NodeCluster) -> ShardKey:
    """Offsets 0 and 1, acknowledged; the segment of the first has ended, and all reports of it are lost."""
    await cluster.start(1, 2)
    key = await cluster.shard(2)
    await cluster.append(key, b"0")
    cluster.meta.hold(ReportReplica)
    shard = await cluster.leads_again(key)
    shard.ask_roll(0)
    await eventually(lambda: shard.epoch == 1)
    await cluster.append(key, b"1")
    return key


@pytest.mark.fault("segment-ended-fenced-lease")
async def test_a_leader_continues_behind_a_segment_whose_recovery_begins(cluster: NodeCluster) -> None:
    key = await one_ended(cluster)
    shard = await cluster.leads_again(key)
    old, active = cluster.segments(key)[0], shard.active
    await cluster.meta.service.perform(BeginRecovery(old.key))
    await eventually(lambda: cluster.replica(shard.context.node_id, key) is not None)
    assert shard.stop is None and shard.active is active
    assert await cluster.append(key, b"2") == 2
    cluster.meta.release(ReportReplica)
    sealed = await cluster.is_sealed(key, copies=2)
    assert sealed.local_nodes == (1, 2), "what it led it has proven as a replica"
    assert await cluster.append(key, b"3") == 3
    assert await cluster.values(key) == [b"0", b"1", b"2", b"3"]


@pytest.mark.fault("segment-ended-fenced-lease")
async def test_a_leader_learns_of_the_fence_of_what_ended_before_the_watch_shows_it(cluster: NodeCluster) -> None:
    key = await one_ended(cluster)
    shard = await cluster.leads_again(key)
    node_id = shard.context.node_id
    (follower,) = (number for number in (1, 2) if number != node_id)
    cluster.meta.hold(ProposeIsr)
    await cluster.lose(follower)  # it asks for an ISR without that one, of both
    await eventually(lambda: cluster.meta.calls[ProposeIsr] == 2)
    catalog = cluster.nodes[node_id].catalog
    with cluster.deaf(node_id):
        await cluster.meta.service.perform(BeginRecovery(catalog.segments(key)[0].key))
        cluster.meta.release(ProposeIsr)
        await eventually(lambda: not shard.ended)
        assert not catalog.segments(key)[0].is_fenced, "the watch has not told it"
        assert shard.stop is None and shard.is_leader
    await cluster.restore_heartbeats(follower)
    cluster.meta.release(ReportReplica)
    await cluster.is_sealed(key)
    assert await cluster.append(key, b"2") == 2
    assert await cluster.values(key) == [b"0", b"1", b"2"]


@pytest.mark.fault("segment-ended-fenced-lease")
async def test_a_node_that_went_on_alone_keeps_its_shard_when_its_lease_ends(cluster: NodeCluster) -> None:
    """The segments that it shares with others are fenced; those that it has alone stay its own, because no other node
    could continue them."""
    await cluster.start(1, 2)
    key = await cluster.shard(2)
    await cluster.append(key, b"0")
    shard = await cluster.leads_again(key)
    node_id = shard.context.node_id
    (follower,) = (number for number in (1, 2) if number != node_id)
    await cluster.kill(follower)
    await cluster.lose(follower)
    cluster.meta.hold(ReportReplica)
    shard.ask_roll(0)
    await eventually(lambda: shard.epoch == 1)
    assert cluster.segments(key)[1].replicas == (node_id,)
    assert await cluster.append(key, b"1") == 1
    await cluster.lose(node_id)
    await eventually(lambda: cluster.segments(key)[0].is_fenced)
    await cluster.restore_heartbeats(node_id)
    assert shard.stop is None and shard.is_leader
    assert await cluster.append(key, b"2") == 2
    cluster.meta.release(ReportReplica)
    await cluster.start(follower)
    await cluster.is_sealed(key)

    async def is_read() -> bool:
        try:
            return await cluster.values(key) == [b"0", b"1", b"2"]
        except Unavailable:  # a client asks again: a copy is served once this node has heard that it counts
            return False

    await eventually(is_read)


@pytest.mark.fault("segment-ended-fenced-lease")
async def test_a_flush_that_fails_for_what_others_seal_by_now_stops_nothing(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.start(1, 2)
    key = await cluster.shard(2)
    await cluster.append(key, b"0")
    shard = await cluster.leads_again(key)
    node_id = shard.context.node_id
    begun, gate, real = threading.Event(), threading.Event(), Sealing._make_seal

    def make_seal(sealing: Sealing, old: ActiveSegment, *before: Any) -> Any:
        if sealing is cluster.nodes[node_id].local.sealing:
            begun.set()
            assert gate.wait(30)
            raise FlushLost(f"{old.file.path}: the kernel dropped what it could not write")
        return real(sealing, old, *before)

    monkeypatch.setattr(Sealing, "_make_seal", make_seal)
    shard.ask_roll(0)
    await eventually(begun.is_set)
    await cluster.lose(node_id)
    await eventually(lambda: shard.active is None and not shard.ended)
    await cluster.restore_heartbeats(node_id)
    gate.set()
    await cluster.append(key, b"1")
    await cluster.is_sealed(key)
    assert shard.stop is None, "it follows, and may lead again"
