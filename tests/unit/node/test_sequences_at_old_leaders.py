"""What an idempotent producer gets from a leader that may have been replaced: no final error (docs/replication.md
section 5, "Sequences")."""

from __future__ import annotations

import pytest

from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.errors import Unavailable
from stratalog.model.ids import ShardKey
from stratalog_node.shards.log.shard_log import ShardLog
from support.node_cluster import NodeCluster
from support.sequences import offer_sequenced
from support.shard_rig import Asked
from support.waiting import eventually


async def answered(shard: ShardLog, sequence: int) -> Asked:
    asked = offer_sequenced(shard, sequence)
    await eventually(lambda: asked.is_answered)
    return asked


async def shard_of_three(cluster: NodeCluster) -> tuple[ShardKey, ShardLog]:
    await cluster.start(1, 2, 3)
    key = await cluster.shard(3)
    shard = await cluster.leads_again(key)
    assert (await answered(shard, 0)).is_acknowledged
    return key, shard


@pytest.mark.fault("replaced-leader-learned-batches")
async def test_a_replaced_leader_that_does_not_know_it_rejects_no_following_batch(cluster: NodeCluster) -> None:
    key, old = await shard_of_three(cluster)
    with cluster.deaf(old.context.node_id):
        await cluster.lose(old.context.node_id)
        others = [node.shards.get(key) for number, node in cluster.nodes.items() if number != old.context.node_id]
        await eventually(lambda: any(shard is not None and shard.is_leader for shard in others))
        new = next(shard for shard in others if shard is not None and shard.is_leader)

        async def takes(sequence: int) -> bool:
            return (await answered(new, sequence)).is_acknowledged

        while not await takes(1):  # until what was recovered is sealed
            await eventually(lambda: True)
        assert await takes(2)
        assert old.is_leader and old.stop is None, "it has heard of nothing"
        early = offer_sequenced(old, 3)
        await eventually(lambda: cluster.meta.calls["read_version"])
        assert not early.is_answered
    await eventually(lambda: early.is_answered)
    assert early.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await takes(3), "the producer goes on where it was"


async def test_the_present_leader_reports_a_gap(cluster: NodeCluster) -> None:
    _, shard = await shard_of_three(cluster)
    assert (await answered(shard, 2)).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert cluster.meta.calls["read_version"] == 1
    assert (await answered(shard, 1)).is_acknowledged


async def test_what_cannot_be_asked_is_asked_again_by_the_producer(cluster: NodeCluster) -> None:
    _, shard = await shard_of_three(cluster)
    cluster.meta.fail("read_version", Unavailable("away"))
    early = await answered(shard, 2)
    assert early.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await answered(shard, 1)).is_acknowledged and (await answered(shard, 2)).is_acknowledged
