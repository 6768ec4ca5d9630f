"""Recoveries of segments with one replica: begun by a person, who may give up what it has, or wait for it
(docs/replication.md section 6)."""

from __future__ import annotations

import pytest

from stratalog.model.commands import BeginRecovery, SealUnclean
from stratalog.model.ids import ShardKey
from support.node_cluster import NodeCluster
from support.waiting import eventually


async def three_records(cluster: NodeCluster) -> ShardKey:
    await cluster.start(1, 2)
    key = await cluster.shard(1)
    for value in (b"0", b"1", b"2"):
        await cluster.append(key, value)
    return key


@pytest.mark.parametrize("is_started_twice", [False, True])
async def test_the_only_replica_that_was_given_up_comes_back_and_is_sealed_where_it_was_cut(
    cluster: NodeCluster, is_started_twice: bool
) -> None:
    key = await three_records(cluster)
    leader = cluster.leader(key)
    segment = cluster.segments(key)[0].key
    await cluster.kill(leader)
    await cluster.lose(leader)
    await cluster.meta.service.perform(BeginRecovery(segment))
    await cluster.meta.service.perform(SealUnclean(segment))
    await cluster.start(leader)
    if is_started_twice:
        await cluster.kill(leader)
        await cluster.start(leader)
    sealed = await cluster.is_sealed(key)
    assert sealed.end_offset == 0
    assert await cluster.append(key, b"later") == 0
    assert await cluster.values(key) == [b"later"]


async def test_the_only_replica_that_comes_back_in_a_recovery_decides_it_and_loses_nothing(
    cluster: NodeCluster,
) -> None:
    key = await three_records(cluster)
    leader = cluster.leader(key)
    await cluster.kill(leader)
    await cluster.lose(leader)
    await cluster.meta.service.perform(BeginRecovery(cluster.segments(key)[0].key))
    await cluster.start(leader)
    sealed = await cluster.is_sealed(key)
    assert sealed.end_offset == 3
    assert await cluster.append(key, b"later") == 3
    assert await cluster.values(key) == [b"0", b"1", b"2", b"later"]


async def test_the_only_replica_that_runs_and_whose_recovery_is_begun_loses_nothing(cluster: NodeCluster) -> None:
    key = await three_records(cluster)
    segment = cluster.segments(key)[0].key
    await cluster.meta.service.perform(BeginRecovery(segment))
    await eventually(lambda: cluster.segments(key)[0].end_offset is not None)
    sealed = await cluster.is_sealed(key)
    assert sealed.end_offset == 3
    assert await cluster.append(key, b"later") == 3
    assert await cluster.values(key) == [b"0", b"1", b"2", b"later"]
