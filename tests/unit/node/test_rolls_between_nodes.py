"""Rolls that move the leader of a shard from one real node to another (docs/replication.md section 5)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stratalog.model.commands import CreateTopic, PrepareSegment, ProposeIsr, ReportReplica, RollSegment
from stratalog.model.errors import Fenced
from stratalog.model.ids import ShardKey
from support.node_cluster import NodeCluster
from support.shard_rig import make_batch
from support.waiting import eventually

PRODUCER = {"producer_id": 7, "producer_epoch": 0}


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NodeCluster]:
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        yield cluster


async def burdened(cluster: NodeCluster) -> tuple[ShardKey, int, int]:
    """A shard of two replicas whose leader leads so much else that the next roll moves it. Who leads, and who will."""
    await cluster.start(1, 2)
    key = await cluster.shard(2)
    old = cluster.leader(key)
    (new,) = (number for number in (1, 2) if number != old)
    await cluster.lose(new)
    for number in range(4):
        await cluster.meta.service.perform(CreateTopic(f"burden-{number}", 1, 1))
    await cluster.hear(new)
    await cluster.append(key, b"0", **PRODUCER, base_sequence=0)
    await eventually(lambda: set(cluster.segments(key)[0].isr) == {1, 2})
    cluster.meta.calls.clear()
    return key, old, new


async def test_a_roll_that_moves_the_leader_takes_two_commits_and_no_seal(cluster: NodeCluster) -> None:
    key, old, new = await burdened(cluster)
    cluster.meta.hold(ReportReplica)
    shard = cluster.nodes[old].shards.get(key)
    assert shard is not None
    shard.ask_roll(0)
    await eventually(lambda: cluster.led(key) is not None and cluster.leader(key) == new)
    with pytest.raises(Fenced):
        await shard.append([make_batch([b"to the old leader"])])
    assert shard.leader == (new, 1), "it says who leads now"
    assert await cluster.append(key, b"0", **PRODUCER, base_sequence=0) == 0, "a repetition is known as one"
    assert await cluster.append(key, b"1", **PRODUCER, base_sequence=1) == 1
    asked = cluster.meta.calls
    assert (asked[PrepareSegment], asked[RollSegment], asked[ProposeIsr]) == (1, 1, 0)
    assert cluster.segments(key)[0].seal is None, "nothing waited for the seal"
    cluster.meta.release(ReportReplica)
    segment = await cluster.is_sealed(key, copies=2)
    assert segment.seal is not None and [one.producer_id for one in segment.seal.producers] == [7]
