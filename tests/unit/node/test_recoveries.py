"""Recovery seals on real nodes: lost nodes, the sources of copies, filled gaps and reports (docs/replication.md section
6)."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from stratalog.machines.leading.shard_life import StopCause
from stratalog.machines.plans.shard_troubles import TroubleKind, troubles
from stratalog.model.commands.table_commands import BeginRecovery, CreateTopic, PromiseFence, ReportReplica, SealUnclean
from stratalog.model.errors import Conflict, InvalidRequest, Unavailable
from stratalog.model.ids import ShardKey
from stratalog.model.segment import GapReason, GivenUp
from stratalog.settings.choices import FlushPolicy
from stratalog_node.node import wall_ms
from stratalog_node.replication import following
from stratalog_node.shards.copies.active import ActiveSegment
from stratalog_node.shards.flush import flusher
from support.node_cluster import NodeCluster
from support.waiting import eventually


@pytest.mark.fault("copy-ends-segment-end")
async def test_a_replica_that_ends_before_the_others_copies_the_rest_from_the_source(cluster: NodeCluster) -> None:
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


@pytest.mark.fault("replica-disk-wiped-number", "source-recovery-ends-segment")
async def test_the_source_fills_what_no_replica_has_and_reports_it(cluster: NodeCluster) -> None:
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
        await cluster.restore_heartbeats(short)
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


@pytest.mark.fault("copy-ends-segment-end")
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


@pytest.mark.fault("copy-ends-segment-end", "fenced-leader-earlier-life")
async def test_a_leader_that_runs_and_was_deposed_cuts_what_was_left_out(cluster: NodeCluster) -> None:
    """Cut off from the service for a while: it still writes, and gets no confirmations."""
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


async def test_a_flush_that_outlasts_the_leader_keeps_no_checkpoint_of_what_was_left_out(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start would take its word for more than the file has, and say that it lost what was flushed."""
    await cluster.start(1, 2)
    key = await cluster.shard(2)
    leader = cluster.leader(key)
    (other,) = (number for number in (1, 2) if number != leader)
    await cluster.append(key, b"both have it")
    local = cluster.nodes[leader].local
    begun, gate, real = threading.Event(), threading.Event(), flusher.sync_segment

    def slow(active: ActiveSegment, size_bytes: int) -> None:
        real(active, size_bytes)
        begun.set()
        assert gate.wait(30)

    cluster.meta.hold(ReportReplica)
    with cluster.full_disk(other):
        await cluster.offer(key, b"nobody else", acks=1)
        monkeypatch.setattr(flusher, "sync_segment", slow)
        flushing = asyncio.create_task(local.flusher._flush_dirty(checkpoint_all=True))
        await eventually(begun.is_set)
        monkeypatch.setattr(flusher, "sync_segment", real)
        await cluster.lose(leader)
        await eventually(lambda: (copy := cluster.replica(leader, key)) is not None and copy.end_offset == 1)
    gate.set()
    await flushing
    kept = local.checkpoints.load(cluster.segments(key)[0].key)
    assert kept is None or kept.next_offset <= 1
    cluster.meta.release(ReportReplica)
    await cluster.is_sealed(key, copies=2)


@pytest.mark.fault("shard-number-producers-sealed")
async def test_a_seal_that_a_follower_reports_holds_no_more_producers_than_a_shard_remembers(
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
    assert segment.seal.producers.count == 10


async def acknowledged(cluster: NodeCluster, nodes: int, **settings: str) -> ShardKey:
    """A shard with a copy on each node, and three records that all of them have."""
    await cluster.start(*range(1, nodes + 1))
    key = await cluster.shard(nodes, **settings)
    for value in (b"0", b"1", b"2"):
        await cluster.append(key, value)
    return key


@pytest.mark.fault("last-member-isr-lost")
async def test_when_all_have_lost_their_tails_the_longest_wins_and_the_gap_is_reported(cluster: NodeCluster) -> None:
    key = await acknowledged(cluster, 2)
    segment = cluster.segments(key)[0].key
    await cluster.power_cut(1, segment, 1)
    await cluster.power_cut(2, segment, 2)
    await cluster.start(1)
    await eventually(lambda: len(cluster.segments(key)[0].handed.votes) == 1)
    assert cluster.led(key) is None and cluster.segments(key)[0].end_offset is None, "2 may have kept more"
    (trouble,) = [one for one in troubles(await cluster.meta.service.snapshot(), wall_ms()) if one.segment == segment]
    assert trouble.kind is TroubleKind.NO_LEADER and trouble.nodes == (2,)
    await cluster.start(2)
    sealed = await cluster.is_sealed(key, copies=2)
    assert sealed.end_offset == 2
    assert [(gap.base_offset, gap.reason) for gap in sealed.handed.given_up] == [(2, GapReason.RESTARTED)]
    assert await cluster.append(key, b"later") == 2
    assert await cluster.values(key) == [b"0", b"1", b"later"]


@pytest.mark.fault("last-member-isr-lost")
async def test_one_whose_tail_may_be_cut_leaves_the_isr_and_does_not_decide_alone(cluster: NodeCluster) -> None:
    key = await acknowledged(cluster, 2)
    leader = cluster.leader(key)
    (other,) = (number for number in (1, 2) if number != leader)
    await cluster.power_cut(other, cluster.segments(key)[0].key, 1)
    with cluster.full_disk(other):  # so that it does not catch up before its leader dies
        await cluster.start(other)
        await eventually(lambda: cluster.segments(key, leader)[0].isr == (leader,))
        await cluster.kill(leader)
        await cluster.lose(leader)
        await eventually(lambda: len(cluster.segments(key)[0].handed.votes) == 1)
        assert cluster.segments(key)[0].end_offset is None, "it lacks what was acknowledged"
        await cluster.start(leader)
        await eventually(lambda: cluster.segments(key)[0].end_offset == 3)
    sealed = await cluster.is_sealed(key, copies=2)
    assert not sealed.handed.given_up
    await cluster.append(key, b"later")
    assert await cluster.values(key) == [b"0", b"1", b"2", b"later"]


@pytest.mark.fault("power-cut-nodes-once")
@pytest.mark.parametrize("how", ["stop", "fsync"])
async def test_a_tail_that_is_provably_whole_stays_in_the_isr_and_decides(cluster: NodeCluster, how: str) -> None:
    """After a stop in order, or with what was flushed before it was confirmed, though the machine starts again."""
    key = await acknowledged(cluster, 2, **({"flush_policy": "fsync"} if how == "fsync" else {}))
    leader = cluster.leader(key)
    (other,) = (number for number in (1, 2) if number != leader)
    await (cluster.reboot(other) if how == "stop" else cluster.power_cut(other))
    await cluster.start(other)
    assert set(cluster.segments(key, leader)[0].isr) == {1, 2}
    await cluster.kill(leader)
    await cluster.lose(leader)
    sealed = await cluster.is_sealed(key)
    assert sealed.end_offset == 3 and not sealed.handed.given_up
    assert await cluster.append(key, b"later") == 3


@pytest.mark.fault("replica-disk-wiped-number")
async def test_with_leave_of_the_topic_what_only_lost_disks_had_is_given_up_and_told(cluster: NodeCluster) -> None:
    await cluster.start(1, 2)
    key = await cluster.shard(2, uncleanSeal="allow")
    leader = cluster.leader(key)
    (other,) = (number for number in (1, 2) if number != leader)
    await cluster.append(key, b"both have it")
    with cluster.full_disk(other):
        for value in (b"1", b"2"):
            await cluster.offer(key, value, acks=1)
        await cluster.lose(other)
        await eventually(lambda: cluster.segments(key)[0].isr == (leader,))
        await eventually(lambda: (shard := cluster.led(key)) is not None and shard.high_watermark == 3)
        await cluster.restore_heartbeats(other)
        await eventually(lambda: (copy := cluster.replica(other, key)) is not None and copy.end_offset == 1)
        await cluster.wipe(leader)
        await cluster.lose(leader)
        sealed = await cluster.is_sealed(key)
    assert sealed.end_offset == 1
    assert [(gap.base_offset, gap.reason) for gap in sealed.handed.given_up] == [(1, GapReason.UNCLEAN)]
    assert await cluster.append(key, b"later") == 1


@pytest.mark.fault("fence-reaches-replica-late")
async def test_reports_are_repeated_until_the_service_has_them(cluster: NodeCluster) -> None:
    """Promises and reports: refused, and their answers lost."""
    key = await acknowledged(cluster, 2)
    leader = cluster.leader(key)
    away = Unavailable("the meta service is away")
    cluster.meta.fail(PromiseFence, away, away)
    cluster.meta.fail(ReportReplica, away, away)
    cluster.meta.lose_answer(PromiseFence, 2)
    cluster.meta.lose_answer(ReportReplica, 2)
    await cluster.lose(leader)
    await cluster.restore_heartbeats(leader)
    sealed = await cluster.is_sealed(key, copies=2)
    assert sealed.end_offset == 3
    assert await cluster.append(key, b"later") == 3


@pytest.mark.fault("fewer-nodes-replicas")
async def test_a_roll_with_fewer_nodes_than_replicas_opens_degraded_and_says_so(cluster: NodeCluster) -> None:
    key = await acknowledged(cluster, 2)
    leader = cluster.leader(key)
    (other,) = (number for number in (1, 2) if number != leader)
    with pytest.raises(InvalidRequest):
        await cluster.meta.service.perform(CreateTopic("too-many", 1, 3))
    await cluster.kill(other)
    await cluster.lose(other)
    shard = await cluster.leads_again(key)
    shard.ask_roll(0)
    await eventually(lambda: len(cluster.segments(key)) == 2)
    assert cluster.segments(key)[1].replicas == (leader,)
    told = [one.kind for one in troubles(await cluster.meta.service.snapshot(), wall_ms()) if one.segment.epoch == 1]
    assert TroubleKind.TOO_FEW_REPLICAS in told
    assert await cluster.append(key, b"alone") == 3


@pytest.mark.fault("replica-gone-segment-written")
async def test_a_shard_that_is_written_to_for_the_first_time_waits_for_no_replica_that_is_gone(
    cluster: NodeCluster,
) -> None:
    await cluster.start(1, 2)
    key = await cluster.shard(2)
    (other,) = (number for number in (1, 2) if number != cluster.leader(key))
    await cluster.kill(other)
    await cluster.lose(other)
    await eventually(lambda: not next(iter(cluster.nodes.values())).catalog.is_alive(other))
    async with asyncio.timeout(5):  # and not for `replica.lag.time.max.ms`
        assert await cluster.append(key, b"alone") == 0
    assert other not in cluster.segments(key)[0].isr


@pytest.mark.fault("leaders-lost-tails-node")
async def test_leaders_lost_one_after_the_other_with_unique_tails_leave_prefixes(
    cluster: NodeCluster,
) -> None:
    key = await acknowledged(cluster, 3)
    lost = []
    for number in range(2):
        leader = cluster.leader(key)
        others = [one for one in cluster.nodes if one != leader]
        with cluster.full_disk(others[0]), cluster.full_disk(others[-1]):
            await eventually(lambda: (shard := cluster.led(key)) is not None and shard.stop is None)
            with contextlib.suppress(Unavailable):
                await cluster.offer(key, b"tail %d" % number, acks=1)
            await cluster.kill(leader)
            await cluster.lose(leader)
            lost.append(leader)
        await cluster.append(key, b"next %d" % number)
    await cluster.start(*lost)
    (await cluster.leads_again(key)).ask_roll(0)
    await cluster.append(key, b"last")
    for segment in cluster.segments(key)[:-1]:
        sealed = await cluster.is_sealed(key, segment.epoch, copies=len(segment.replicas))
        assert not sealed.handed.reports and not sealed.handed.given_up
    assert await cluster.values(key) == [b"0", b"1", b"2", b"next 0", b"next 1", b"last"]


@pytest.mark.fault("leaders-lost-tails-node")
async def test_recoveries_with_no_writes_between_end_and_lose_nothing(cluster: NodeCluster) -> None:
    key = await acknowledged(cluster, 2)
    for _ in range(4):
        shard = await cluster.leads_again(key)
        await cluster.meta.service.perform(BeginRecovery(cluster.segments(key)[-1].key))
        await eventually(lambda shard=shard: cluster.led(key) is not None and shard.epoch > 0)
    await cluster.append(key, b"later")
    assert await cluster.values(key) == [b"0", b"1", b"2", b"later"]


@pytest.mark.fault("power-cut-nodes-once")
async def test_with_fsync_a_power_cut_of_all_nodes_at_once_loses_nothing(cluster: NodeCluster) -> None:
    key = await acknowledged(cluster, 2, flush_policy="fsync")
    await cluster.power_cut(1)
    await cluster.power_cut(2)
    await cluster.start(1, 2)
    sealed = await cluster.is_sealed(key, copies=2)
    assert sealed.end_offset == 3 and not sealed.handed.given_up
    await cluster.append(key, b"later")
    assert await cluster.values(key) == [b"0", b"1", b"2", b"later"]


@pytest.mark.fault("node-continues-alone-segment")
async def test_a_node_that_continues_alone_behind_shared_data_knows_its_producers_after_a_crash(
    cluster: NodeCluster,
) -> None:
    await cluster.start(1, 2)
    key = await cluster.shard(2)
    leader = cluster.leader(key)
    (other,) = (number for number in (1, 2) if number != leader)
    producer = {"producer_id": 7, "producer_epoch": 0}
    await cluster.append(key, b"0", **producer, base_sequence=0)
    await cluster.kill(other)
    await cluster.lose(other)
    await eventually(lambda: cluster.segments(key)[0].isr == (leader,))
    cluster.meta.hold(ReportReplica)
    (await cluster.leads_again(key)).ask_roll(0)
    await eventually(lambda: len(cluster.segments(key)) == 2)
    assert await cluster.append(key, b"1", **producer, base_sequence=1) == 1
    await cluster.power_cut(leader)  # of what it wrote all is there, and no checkpoint
    await cluster.start(leader)
    shard = cluster.nodes[leader].shards.get(key)
    assert shard is not None and shard.stop is not None and shard.stop.cause is StopCause.HEALING
    cluster.meta.release(ReportReplica)
    await eventually(lambda: shard.stop is None)
    assert await cluster.append(key, b"0", **producer, base_sequence=0) == 0, "a repetition is known as one"
    assert await cluster.append(key, b"1", **producer, base_sequence=1) == 1
    assert await cluster.append(key, b"2", **producer, base_sequence=2) == 2
    assert await cluster.values(key) == [b"0", b"1", b"2"]


@pytest.mark.fault("node-records-given-gone")
async def test_a_node_that_returns_with_given_up_data_gets_the_sealed_copy_instead(cluster: NodeCluster) -> None:
    cluster.patch.setattr(following, "_ANEW_S", 0.01)
    await cluster.start(1, 2)
    key = await cluster.shard(2)
    leader = cluster.leader(key)
    (short,) = (number for number in (1, 2) if number != leader)
    await cluster.append(key, b"both have it")
    with cluster.full_disk(short):
        await cluster.offer(key, b"given up", acks=1)
        await cluster.lose(short)
        await eventually(lambda: (shard := cluster.led(key)) is not None and shard.high_watermark == 2)
        await cluster.restore_heartbeats(short)
        cluster.meta.hold(ReportReplica)
        (await cluster.leads_again(key)).ask_roll(0)
        await eventually(lambda: cluster.segments(key)[0].end_offset == 2)
        await cluster.kill(leader)
        await cluster.lose(leader)
    cluster.meta.release(ReportReplica)
    await eventually(lambda: len(cluster.segments(key)[0].handed.votes) == 1)
    await cluster.meta.service.perform(SealUnclean(cluster.segments(key)[0].key))
    await cluster.is_sealed(key)
    await cluster.start(leader)
    sealed = await cluster.is_sealed(key, copies=2)
    assert sealed.handed.given_up == (GivenUp(1, 2, GapReason.UNCLEAN),)
    await cluster.append(key, b"later")
    assert await cluster.values(key) == [b"both have it", None, b"later"]
    (kept,) = cluster.layout(leader).shard(key).glob("*.given-up")
    assert b"given up" in kept.read_bytes(), "a person may want it"


@pytest.mark.fault("node-loses-page-cache")
async def test_a_node_that_returns_with_flushing_settings_is_still_in_doubt(
    cluster: NodeCluster,
) -> None:
    """What it confirmed it confirmed by those of before; the other one has it, and is back in a moment."""
    await cluster.start(1, 2)
    key = await cluster.shard(2)
    leader = cluster.leader(key)
    (other,) = (number for number in (1, 2) if number != leader)
    for value in (b"1", b"2", b"3"):
        await cluster.append(key, value)
    segment = cluster.segments(key)[0].key
    await eventually(lambda: (copy := cluster.replica(other, key)) is not None and copy.end_offset == 3)
    await cluster.kill(leader)
    await cluster.power_cut(other, segment, end_offset=1)
    await cluster.lose(leader)
    await cluster.start(other, flush_policy=FlushPolicy.FSYNC)
    await eventually(lambda: [vote.end_offset for vote in cluster.segments(key, other)[0].handed.votes] == [1])
    await cluster.start(leader)
    assert await cluster.append(key, b"4") == 3
    assert await cluster.values(key) == [b"1", b"2", b"3", b"4"]
