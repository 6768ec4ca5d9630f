"""Recoveries of segments with one replica: begun by a person, with leave to give up its data, or wait for it
(docs/replication.md section 6)."""

from __future__ import annotations

import pytest

from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.model.commands.table_commands import BeginRecovery, ReportReplica, SealSegment, SealUnclean
from stratalog.model.ids import ShardKey
from support.node_cluster import NodeCluster
from support.waiting import eventually


async def three_records(cluster: NodeCluster) -> ShardKey:
    await cluster.start(1, 2)
    key = await cluster.shard(1)
    for value in (b"0", b"1", b"2"):
        await cluster.append(key, value)
    return key


@pytest.mark.fault("recovery-segment-replica-node")
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


@pytest.mark.fault("recovery-segment-replica-node")
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


@pytest.mark.fault("recovery-segment-replica-node")
async def test_the_only_replica_that_runs_and_whose_recovery_is_begun_loses_nothing(cluster: NodeCluster) -> None:
    key = await three_records(cluster)
    segment = cluster.segments(key)[0].key
    await cluster.meta.service.perform(BeginRecovery(segment))
    await eventually(lambda: cluster.segments(key)[0].end_offset is not None)
    sealed = await cluster.is_sealed(key)
    assert sealed.end_offset == 3
    assert await cluster.append(key, b"later") == 3
    assert await cluster.values(key) == [b"0", b"1", b"2", b"later"]


async def unsealed(cluster: NodeCluster) -> ShardKey:
    """Two segments that ended and are not sealed, and one that is written."""
    await cluster.start(1, 2)
    key = await cluster.shard(1)
    cluster.meta.hold(SealSegment)
    for epoch in range(3):
        await cluster.append(key, str(epoch).encode())
        if epoch < 2:
            shard = await cluster.leads_again(key)
            shard.ask_roll(0)
            await eventually(lambda: cluster.segments(key)[-1].epoch > epoch)  # noqa: B023
    return key


async def goes_on(cluster: NodeCluster, key: ShardKey) -> None:
    assert await cluster.append(key, b"later") == 3
    for epoch in range(cluster.segments(key)[-1].epoch):
        await cluster.is_sealed(key, epoch)
    assert await cluster.values_in_time(key) == [b"0", b"1", b"2", b"later"]


@pytest.mark.fault("recovery-several-segments-replica")
@pytest.mark.parametrize("epoch", [0, 1, 2])
async def test_a_recovery_of_one_of_several_that_are_not_sealed_leaves_the_seals_of_the_others_to_their_node(
    cluster: NodeCluster, epoch: int
) -> None:
    key = await unsealed(cluster)
    await cluster.meta.service.perform(BeginRecovery(cluster.segments(key)[epoch].key))
    leader = cluster.segments(key)[0].replicas[0]
    await eventually(lambda: cluster.segments(key, leader)[epoch].is_fenced)
    cluster.meta.release(SealSegment)
    await goes_on(cluster, key)


@pytest.mark.fault("recovery-several-segments-replica")
@pytest.mark.parametrize("epoch", [0, 1, 2])
@pytest.mark.parametrize("is_begun_away", [False, True])
async def test_a_start_between_a_recovery_and_its_seal_seals_what_lies_before_it(
    cluster: NodeCluster, epoch: int, is_begun_away: bool
) -> None:
    key = await unsealed(cluster)
    leader = cluster.leader(key)
    recovered = cluster.segments(key)[epoch].key
    cluster.meta.hold(ReportReplica)
    if is_begun_away:
        await cluster.kill(leader)
        await cluster.meta.service.perform(BeginRecovery(recovered))
    else:
        await cluster.meta.service.perform(BeginRecovery(recovered))
        await eventually(lambda: cluster.segments(key)[epoch].end_offset is not None)
        await cluster.kill(leader)
    await cluster.start(leader)
    cluster.meta.open_all()
    await goes_on(cluster, key)


@pytest.mark.fault("recovery-several-segments-replica")
async def test_what_waits_for_a_recovery_takes_no_batches_in_doubt_after_a_stop_in_order(cluster: NodeCluster) -> None:
    key = await unsealed(cluster)
    leader = cluster.leader(key)
    cluster.meta.hold(ReportReplica)
    await cluster.meta.service.perform(BeginRecovery(cluster.segments(key)[1].key))
    await cluster.power_cut(leader, cluster.segments(key)[2].key, 2)
    await cluster.start(leader)
    await cluster.stop(leader)
    await cluster.start(leader)
    cluster.meta.open_all()
    assert await cluster.append(key, b"later") == 2
    assert cluster.segments(key, leader)[-1].epoch == 3, "no offset is given twice in an epoch"


@pytest.mark.fault("disk-damages-batch-segment")
@pytest.mark.parametrize("is_started_twice", [False, True])
async def test_a_recovery_cuts_nothing_off_behind_a_batch_that_the_disk_damaged(
    cluster: NodeCluster, is_started_twice: bool
) -> None:
    key = await three_records(cluster)
    leader, segment = cluster.leader(key), cluster.segments(key)[0].key
    await cluster.stop(leader)
    path = cluster.layout(leader).segment(segment)
    whole = path.read_bytes()
    at = SEGMENT_HEADER_BYTES + (len(whole) - SEGMENT_HEADER_BYTES) // 2  # in the second of three
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
    await cluster.start(leader)
    await cluster.meta.service.perform(BeginRecovery(segment))
    await eventually(lambda: cluster.segments(key)[0].end_offset is not None)
    if is_started_twice:
        await cluster.stop(leader)
        await cluster.start(leader)
    await cluster.stop(leader)
    assert path.stat().st_size == len(whole)
    path.write_bytes(whole)
    await cluster.start(leader)
    await cluster.is_sealed(key)
    assert await cluster.append(key, b"later") == 3
    assert await cluster.values(key) == [b"0", b"1", b"2", b"later"]


@pytest.mark.fault("recovery-several-segments-replica")
async def test_what_lies_before_a_recovery_is_opened_once_when_that_is_sealed_first(cluster: NodeCluster) -> None:
    key = await unsealed(cluster)
    leader = cluster.leader(key)
    await cluster.kill(leader)
    await cluster.meta.service.perform(BeginRecovery(cluster.segments(key)[1].key))
    await cluster.start(leader)
    await cluster.is_sealed(key, 1)
    shard = await cluster.leads_again(key)
    assert [copy.key.epoch for copy in shard.ended] == [0]
    assert shard.workers.sealing.unsealed_count == 1, "nobody seals what another one has opened in its place"
    cluster.meta.release(SealSegment)
    await goes_on(cluster, key)
