"""A leader that has rolled gets news of ended segments: that does not affect its leadership of the segment that it
writes now."""

from __future__ import annotations

import pytest

from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.machines.leading.chain_events import ShardStopped
from stratalog.machines.leading.shard_life import Stop, StopCause
from stratalog.model.commands.table_commands import BeginRecovery, ProposeIsr, ReportReplica
from stratalog.model.errors import Fenced, Unavailable
from stratalog.model.ids import ShardKey
from support.node_cluster import NodeCluster
from support.shard_rig import make_batch
from support.waiting import eventually

PRODUCER = {"producer_id": 7, "producer_epoch": 0}


async def isr_asked_for(cluster: NodeCluster) -> ShardKey:
    """Offsets 0 and 1, acknowledged, in two segments. The first one is sealed as soon as a report comes through, for
    the follower is lost; its leader asks for an ISR without it."""
    await cluster.start(1, 2)
    key = await cluster.shard(2)
    shard = await cluster.leads_again(key)
    (follower,) = (number for number in (1, 2) if number != shard.context.node_id)
    await cluster.append(key, b"0", **PRODUCER, base_sequence=0)
    cluster.meta.hold(ReportReplica)
    shard.ask_roll(0)
    await eventually(lambda: shard.epoch == 1)
    await cluster.append(key, b"1", **PRODUCER, base_sequence=1)
    cluster.meta.hold(ProposeIsr)
    await cluster.lose(follower)
    await eventually(lambda: cluster.meta.calls[ProposeIsr] == 2 and cluster.meta.calls[ReportReplica] == 2)
    return key


async def test_a_leader_continues_behind_a_segment_sealed_while_its_isr_was_proposed(
    cluster: NodeCluster,
) -> None:
    key = await isr_asked_for(cluster)
    shard = await cluster.leads_again(key)
    cluster.meta.lose_answer(ReportReplica)
    cluster.meta.release(ReportReplica)
    cluster.meta.hold(ReportReplica)  # it does not hear that it is sealed before it hears of the ISR
    await cluster.is_sealed(key)
    cluster.meta.release(ProposeIsr)
    await eventually(lambda: len(cluster.segments(key)[1].isr) == 1)
    assert shard.stop is None and shard.is_leader
    assert await cluster.append(key, b"2", **PRODUCER, base_sequence=2) == 2
    assert await cluster.values(key) == [b"0", b"1", b"2"]


async def test_a_deposed_leader_does_not_restart_a_segment_that_old_metadata_still_give_it(
    cluster: NodeCluster,
) -> None:
    """The fence arrives before the watch shows it, and the watch shows an older state first."""
    key = await isr_asked_for(cluster)
    shard = await cluster.leads_again(key)
    node_id, active = shard.context.node_id, shard.active
    assert active is not None
    shard.handle(ShardStopped(Stop("fenced", StopCause.DEPOSED)))
    size = active.file.size_bytes
    cluster.meta.release(ReportReplica)
    await cluster.is_sealed(key)
    await eventually(lambda: not shard.ended)
    with pytest.raises(Fenced):
        await shard.append([make_batch([b"2"])])
    assert shard.active is active, "nobody else has said that it is another's"
    assert cluster.layout(node_id).segment(active.key).stat().st_size >= size
    await cluster.meta.service.perform(BeginRecovery(active.key))
    segment = await cluster.is_sealed(key, 1)
    assert segment.end_offset == 2 and node_id in segment.local_nodes, "it goes on as a copy, with all that it has"


async def test_a_segment_is_not_begun_over_batches(cluster: NodeCluster) -> None:
    """Whatever went wrong before."""
    await cluster.start(1)
    key = await cluster.shard(1)
    shard = await cluster.leads_again(key)
    (segment,) = cluster.segments(key)
    path = cluster.layout(1).segment(segment.key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(SEGMENT_HEADER_BYTES) + b"may have been acknowledged")
    with pytest.raises(Unavailable, match="nothing is written over"):
        await shard.append([make_batch([b"0"])])
    assert path.read_bytes().endswith(b"may have been acknowledged")
