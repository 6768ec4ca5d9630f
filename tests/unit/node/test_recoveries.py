"""Recovery seals on real nodes: who is lost, who copies from whom, what is made up and what is told
(docs/replication.md section 6)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stratalog.model.commands import BeginRecovery, ReportReplica, SealUnclean
from stratalog.model.errors import Conflict
from stratalog.model.segment import GapReason, GivenUp
from support.node_cluster import NodeCluster
from support.waiting import eventually


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NodeCluster]:
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        yield cluster


async def test_who_ends_before_the_others_copies_the_rest_from_the_source(cluster: NodeCluster) -> None:
    await cluster.start(1, 2, 3)
    key = await cluster.shard(3)
    leader = cluster.leader(key)
    short, other = (number for number in (1, 2, 3) if number != leader)
    await cluster.append(key, b"all have it")
    with cluster.full_disk(short):
        for value in (b"1", b"2", b"3"):
            await cluster.offer(key, value, acks=1)
        await eventually(lambda: (copy := cluster.replica(other, key)) is not None and copy.end_offset == 4)
        await cluster.kill(leader)
        await cluster.lose(leader)
        await eventually(lambda: cluster.segments(key)[0].end_offset == 4)
        assert cluster.segments(key)[0].handed.source == other
    segment = await cluster.is_sealed(key)
    assert segment.local_nodes == tuple(sorted((short, other)))
    assert await cluster.append(key, b"later") == 4
    assert await cluster.values(key) == [b"all have it", b"1", b"2", b"3", b"later"]


async def test_what_nobody_has_below_the_end_is_made_up_by_the_source_and_told(cluster: NodeCluster) -> None:
    await cluster.start(1, 2)
    key = await cluster.shard(2)
    leader = cluster.leader(key)
    (short,) = (number for number in (1, 2) if number != leader)
    await cluster.append(key, b"both have it")
    with cluster.full_disk(short):
        for value in (b"1", b"2", b"3"):
            await cluster.offer(key, value, acks=1)
        await cluster.lose(short)  # out of the ISR: the leader acknowledges alone
        shard = await cluster.leads_again(key)
        await eventually(lambda: shard.high_watermark == 4)
        await cluster.hear(short)
        cluster.meta.hold(ReportReplica)
        shard.ask_roll(0)
        await eventually(lambda: cluster.segments(key)[0].end_offset == 4)
        await cluster.wipe(leader)
        await cluster.lose(leader)
    cluster.meta.release(ReportReplica)
    await eventually(lambda: len(cluster.segments(key)[0].handed.votes) == 1)
    await cluster.meta.service.perform(SealUnclean(cluster.segments(key)[0].key))
    segment = await cluster.is_sealed(key)
    assert segment.handed.given_up == (GivenUp(1, 4, GapReason.UNCLEAN),)
    assert await cluster.append(key, b"later") == 4
    assert await cluster.values(key) == [b"both have it", None, None, None, b"later"]
    assert cluster.nodes[short].following.stats.filled_copies == 1


async def test_a_late_old_leader_cuts_what_was_left_out_and_offers_its_copy(cluster: NodeCluster) -> None:
    await cluster.start(1, 2)
    key = await cluster.shard(2)
    leader = cluster.leader(key)
    (other,) = (number for number in (1, 2) if number != leader)
    await cluster.append(key, b"both have it")
    with cluster.full_disk(other):
        for value in (b"nobody", b"else"):
            await cluster.offer(key, value, acks=1)
        await cluster.kill(leader)
        await cluster.lose(leader)
        await cluster.is_sealed(key)
    assert await cluster.append(key, b"later") == 1
    await cluster.start(leader)
    segment = await cluster.is_sealed(key, copies=2)
    assert segment.end_offset == 1
    with pytest.raises(Conflict):
        await cluster.meta.service.perform(SealUnclean(segment.key))
    assert await cluster.append(key, b"last") == 2
    assert await cluster.values(key) == [b"both have it", b"later", b"last"]


async def test_a_leader_that_runs_and_was_deposed_cuts_what_was_left_out(cluster: NodeCluster) -> None:
    """Cut off from the service for a while: it still writes, and nobody confirms."""
    await cluster.start(1, 2)
    key = await cluster.shard(2)
    leader = cluster.leader(key)
    (other,) = (number for number in (1, 2) if number != leader)
    await cluster.append(key, b"both have it")
    with cluster.full_disk(other):
        await cluster.offer(key, b"nobody else", acks=1)
        await cluster.lose(leader)
        await eventually(lambda: cluster.segments(key)[0].end_offset is not None)
        await cluster.meta.service.perform(BeginRecovery(cluster.segments(key)[0].key))
    segment = await cluster.is_sealed(key)
    assert segment.end_offset == 1
    assert await cluster.append(key, b"later") == 1


async def test_a_seal_that_a_follower_tells_of_holds_no_more_producers_than_a_shard_remembers(
    cluster: NodeCluster,
) -> None:
    """Else each recovery would add those of its segment to all that the seal before it holds."""
    await cluster.start(1, 2, producer_id_max_per_shard=10)
    key = await cluster.shard(2)

    async def eight_write(first: int) -> None:
        for number in range(8):
            await cluster.append(key, b"x", producer_id=first + number, producer_epoch=0, base_sequence=0)

    await eight_write(0)
    (await cluster.leads_again(key)).ask_roll(0)
    await cluster.is_sealed(key, 0, copies=2)
    await eight_write(100)
    leader = cluster.leader(key)
    await cluster.kill(leader)
    await cluster.lose(leader)
    segment = await cluster.is_sealed(key, 1)
    assert segment.seal is not None and segment.is_fenced
    assert len(segment.seal.producers) == 10
