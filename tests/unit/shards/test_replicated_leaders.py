"""A shard whose segments have followers, as the node that leads it sees them: real files, the real meta service, and
followers that a test speaks for."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stratalog.formats.segments.index_block import decode_index_block
from stratalog.kafka.error_codes import ErrorCode
from stratalog.machines.leading.chain_events import SegmentEventReceived
from stratalog.machines.leading.leader_events import FollowerFetched, NodeUpdated
from stratalog.model.commands import table_commands
from stratalog.model.commands.retirement_commands import AdvanceRetirement, RetireNode
from stratalog.model.errors import Conflict, Unavailable
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import NodeInfo, PartCommit
from stratalog.model.producers import NO_PRODUCERS
from stratalog.model.retirement import RetireMode, RetireStep
from stratalog.model.segment import RemotePart, SealRecord
from stratalog_node.shards.copies.sealed import SealedCopy
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.shards.seal.successors import FRESH_MS
from support.shard_rig import START_MS, ShardRig
from support.waiting import eventually


async def replicated(rig: ShardRig, **settings: str) -> ShardLog:
    """Led by this node, followed by 2 and 3."""
    for node_id in (2, 3):
        await rig.meta.service.perform(
            table_commands.RegisterNode(NodeInfo(node_id, f"disk-{node_id}", "elsewhere", 9092))
        )
    overrides = {name.replace("_", "."): value for name, value in settings.items()}
    topic = await rig.meta.service.perform(table_commands.CreateTopic("flights", 1, 3, overrides))
    await eventually(lambda: rig.shards.get(ShardKey(topic.topic_id, 0)) is not None)
    shard = rig.shard(topic)
    await eventually(lambda: shard.is_leader)
    return shard


def fetched(rig: ShardRig, shard: ShardLog, node_id: int, offset: int, epoch: int = 0) -> None:
    node = rig.catalog.node(node_id)
    assert node is not None
    shard.handle(SegmentEventReceived(epoch, FollowerFetched(node_id, offset, node.epoch)))


def isr_of(shard: ShardLog) -> tuple[int, ...]:
    assert shard.active is not None
    return shard.active.leader.isr


@pytest.mark.fault("follower-holds-batches-turn")
async def test_what_some_batches_of_a_turn_reached_is_read_as_whole_batches(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await replicated(rig)
        asked = [rig.offer(shard, *values) for values in ([b"1", b"2"], [b"3"], [b"4", b"5"])]
        rig.tick()
        assert not any(one.is_answered for one in asked)
        fetched(rig, shard, 2, 5)
        fetched(rig, shard, 3, 3)
        assert [one.is_answered for one in asked] == [True, True, False]
        assert await rig.read_values(shard) == [b"1", b"2", b"3"]
        fetched(rig, shard, 3, 4)
        assert shard.high_watermark == 3, "inside a batch"
        assert await rig.read_values(shard) == [b"1", b"2", b"3"]
        fetched(rig, shard, 3, 5)
        assert asked[2].is_acknowledged
        assert await rig.read_values(shard) == [b"1", b"2", b"3", b"4", b"5"]
        assert rig.stats.damaged_copies == 0


async def test_the_nearer_the_end_of_a_segment_the_less_of_it_is_on_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog_node.shards.flush.flusher.LEAST_AHEAD_BYTES", 1_000)
    async with ShardRig(tmp_path) as rig:
        shard = await replicated(rig, segment_bytes="100000")
        rig.append(shard, bytes(40_000))
        active = shard.active
        assert active is not None
        await rig.flusher._flush_ahead()
        assert active.flushed_bytes == 0, "as much is still to come"
        rig.append(shard, bytes(20_000))
        await eventually(lambda: active.flushed_bytes == active.file.size_bytes)
        rig.append(shard, bytes(35_000))
        await eventually(lambda: active.flushed_bytes == active.file.size_bytes)


@pytest.mark.fault("proposal-isr-fails-conflicts")
async def test_an_isr_whose_answer_was_lost_is_read_back(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await replicated(rig)
        asked = rig.append(shard, b"1")
        fetched(rig, shard, 2, 1)
        rig.meta.lose_answer(table_commands.ProposeIsr)
        shard.handle(NodeUpdated(3, 1, is_alive=False))
        assert not asked.is_answered
        await eventually(lambda: asked.is_acknowledged)
        assert isr_of(shard) == (1, 2)


@pytest.mark.fault("proposal-isr-fails-conflicts")
async def test_an_isr_that_was_refused_is_not_mistaken_for_the_old_one_until_it_was_read_back(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await replicated(rig)
        asked = rig.append(shard, b"1")
        fetched(rig, shard, 2, 1)
        rig.meta.fail(table_commands.ProposeIsr, Conflict("another was faster"), Unavailable("away"))
        rig.meta.hold("read_version")
        shard.handle(NodeUpdated(3, 1, is_alive=False))
        await eventually(lambda: rig.meta.calls["read_version"] == 1)
        shard.check_age(rig.clock())
        assert rig.meta.calls[table_commands.ProposeIsr] == 1, "one at a time"
        rig.meta.release("read_version")

        def looks_again() -> bool:
            shard.check_age(rig.clock())
            return asked.is_acknowledged

        await eventually(looks_again)
        assert isr_of(shard) == (1, 2)
        assert rig.meta.calls[table_commands.ProposeIsr] >= 3


@pytest.mark.fault("isr-smaller-min-insync-replicas-append")
async def test_acks_all_learns_that_the_replicas_it_asks_for_are_gone(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await replicated(rig, min_insync_replicas="2")
        asked, by_leader = rig.offer(shard, b"1"), rig.offer(shard, b"2", acks=1)
        rig.tick()
        assert by_leader.is_acknowledged and not asked.is_answered
        shard.handle(NodeUpdated(2, 1, is_alive=False))
        await eventually(lambda: isr_of(shard) == (1, 3))
        shard.handle(NodeUpdated(3, 1, is_alive=False))
        await eventually(lambda: asked.is_answered)
        assert asked.error is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        assert rig.append(shard, b"3").error is ErrorCode.NOT_ENOUGH_REPLICAS
        assert await rig.read_values(shard) == [b"1", b"2"]


async def test_most_of_the_replicas_acknowledge_a_topic_with_the_quorum_policy(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await replicated(rig, acks_policy="quorum", min_insync_replicas="3")
        asked = rig.append(shard, b"1")
        assert not asked.is_answered
        fetched(rig, shard, 2, 1)
        assert asked.is_acknowledged, "3 is stopped, and in the ISR"
        assert await rig.read_values(shard) == [b"1"]
        shard.handle(NodeUpdated(3, 1, is_alive=False))
        await eventually(lambda: isr_of(shard) == (1, 2))
        later = rig.append(shard, b"2")
        fetched(rig, shard, 2, 2)
        assert later.is_acknowledged


@pytest.mark.fault("follower-caught-dies-lives")
async def test_a_follower_that_lags_leaves_the_isr_by_the_clock_that_is_not_set(tmp_path: Path) -> None:
    async with ShardRig(tmp_path, replica_lag_time_max_ms=5_000) as rig:
        shard = await replicated(rig)
        asked = rig.append(shard, b"1")
        fetched(rig, shard, 2, 1)
        shard.check_age(rig.clock())
        rig.clock.now_ms += 3_600_000
        rig.turn.read_clocks()
        shard.check_age(rig.clock())
        assert rig.meta.calls[table_commands.ProposeIsr] == 0, "somebody has set the wall clock"
        rig.steady.now_ms += 5_000
        rig.turn.read_clocks()
        shard.check_age(rig.clock())
        await eventually(lambda: asked.is_acknowledged)
        assert isr_of(shard) == (1, 2)


@pytest.mark.fault("leader-mistakes-end-followers")
async def test_a_roll_opens_what_the_service_prepared_with_the_isr_of_its_record(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await replicated(rig)
        rig.append(shard, b"1")
        fetched(rig, shard, 2, 1)
        shard.handle(NodeUpdated(3, 1, is_alive=False))
        await eventually(lambda: isr_of(shard) == (1, 2))
        assert shard.ask_roll(rig.clock())
        assert shard.active is not None and shard.active.key.epoch == 0, "nobody is prepared yet"
        await eventually(lambda: shard.active is not None and shard.active.key.epoch == 1)
        asked = rig.append(shard, b"2")
        fetched(rig, shard, 2, 2, epoch=1)
        await eventually(lambda: rig.meta.calls[table_commands.RollSegment] == 1 and len(shard.segments) == 2)
        await eventually(lambda: isr_of(shard) == shard.segments[-1].isr)
        for node_id in isr_of(shard)[1:]:
            fetched(rig, shard, node_id, 2, epoch=1)
        await eventually(lambda: asked.is_acknowledged)  # once its file has its name
        assert await rig.read_values(shard) == [b"1", b"2"]


async def test_a_segment_is_sealed_once_its_followers_have_the_same(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await replicated(rig)
        rig.append(shard, b"1", b"2")
        for node_id in (2, 3):
            fetched(rig, shard, node_id, 2)
        shard.ask_roll(rig.clock())
        await eventually(lambda: len(shard.segments[0].handed.reports) == 1)
        assert shard.segments[0].seal is None, "two have not said what they have"
        (report,) = shard.segments[0].handed.reports
        proof = SealRecord(0, 0, 2, START_MS, START_MS + 1, report.size_bytes, report.digest, NO_PRODUCERS, (), 0)
        for node_id in (2, 3):
            node = rig.catalog.node(node_id)
            assert node is not None
            await rig.meta.service.perform(table_commands.ReportReplica(shard.segments[0].key, proof, caller=node.life))
        await rig.all_sealed()
        seal = shard.segments[0].seal
        assert seal is not None and seal.replicas == (1, 2, 3)
        copy = shard.copies[0]
        assert isinstance(copy, SealedCopy) and copy.seal == seal
        assert decode_index_block(copy.index_path.read_bytes(), source="index").seal == seal
        assert await rig.read_values(shard) == [b"1", b"2"]


async def test_a_segment_that_is_deleted_while_followers_have_not_reported_holds_up_no_later_seal(
    tmp_path: Path,
) -> None:
    """The service answers a report on it without a seal, as it does while it waits for the others."""
    async with ShardRig(tmp_path) as rig:
        shard = await replicated(rig)
        for epoch in range(2):
            rig.append(shard, b"value")
            for node_id in (2, 3):
                fetched(rig, shard, node_id, epoch + 1, epoch=epoch)
            shard.ask_roll(rig.clock())
            await eventually(lambda epoch=epoch: len(shard.segments) == epoch + 2)
        await eventually(lambda: len(shard.segments[0].handed.reports) == 1)
        later = shard.segments[1].key
        assert not shard.segments[1].handed.reports, "its seal waits for the one before"
        await rig.meta.service.perform(table_commands.AdvanceLogStart(shard.key, 1))
        await eventually(lambda: len(shard.segments[0].handed.reports) == 1)
        assert shard.segments[0].key == later
        assert [one.key for one in shard.ended] == [later], "this node leads the deleted one no more"
        assert [leader.key for leader in shard.chain.ended] == [later]


async def test_a_copy_freed_before_its_leader_heard_of_the_seal_is_no_longer_reported(tmp_path: Path) -> None:
    """The others reported between two of its reports, and the object store had all of it before the next."""
    async with ShardRig(tmp_path) as rig:
        shard = await replicated(rig)
        rig.append(shard, b"1", b"2")
        for node_id in (2, 3):
            fetched(rig, shard, node_id, 2)
        shard.ask_roll(rig.clock())
        await eventually(lambda: len(shard.segments[0].handed.reports) == 1)
        rig.meta.hold(table_commands.ReportReplica)
        reports_before = rig.meta.calls[table_commands.ReportReplica]
        await eventually(lambda: rig.meta.calls[table_commands.ReportReplica] > reports_before)
        key, service = shard.segments[0].key, rig.meta.service
        (report,) = shard.segments[0].handed.reports
        proof = SealRecord(0, 0, 2, START_MS, START_MS + 1, report.size_bytes, report.digest, NO_PRODUCERS, (), 0)
        for node_id in (2, 3):
            node = rig.catalog.node(node_id)
            assert node is not None
            await service.perform(table_commands.ReportReplica(key, proof, caller=node.life))
        lock = await service.perform(table_commands.AcquireLock("tier/1", "node-1", 60_000))
        await service.perform(
            table_commands.CommitParts(lock, (PartCommit(key, -1, RemotePart("part", 0, 100, 0, 2)),))
        )
        await service.perform(table_commands.CompleteRemote(lock, key, "manifest", b"digest", 10))
        await service.perform(table_commands.ForgetLocal((key,), 1))
        await eventually(lambda: shard.segments[0].local_nodes == (2, 3))
        await rig.copies.free_local(shard, key)
        rig.meta.fail(table_commands.ReportReplica, Unavailable("the one that was under way"))
        rig.append(shard, b"3")
        for node_id in (2, 3):
            fetched(rig, shard, node_id, 3, epoch=1)
        shard.ask_roll(rig.clock())
        rig.meta.release(table_commands.ReportReplica)
        await eventually(lambda: len(shard.segments[1].handed.reports) == 1)  # the seals behind it continue
        assert shard.segments[0].local_nodes == (2, 3)
        assert not rig.context.layout.index(key).exists()


@pytest.mark.fault("meta-service-unavailable-segment")
async def test_while_the_service_is_away_a_full_segment_grows_to_twice_its_size(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await replicated(rig, segment_bytes="1000")
        rig.meta.hold(table_commands.PrepareSegment)
        value = bytes(300)
        asked = [rig.append(shard, value) for _ in range(6)]
        assert shard.active is not None
        assert 1000 < shard.active.size_bytes <= 2000
        assert [one.is_answered for one in asked] == [False] * 5 + [True]
        assert asked[-1].error is ErrorCode.KAFKA_STORAGE_ERROR
        rig.meta.release(table_commands.PrepareSegment)

        def goes_on() -> bool:
            rig.append(shard, value)
            return shard.active is not None and shard.active.key.epoch == 1

        await eventually(goes_on)
        fetched(rig, shard, 2, 5)
        fetched(rig, shard, 3, 5)
        assert all(one.is_acknowledged for one in asked[:5])


@pytest.mark.fault("leader-fenced-restarted", "shard-moves-node-know")
async def test_a_leader_that_was_deposed_leads_again_when_it_is_named_again(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await replicated(rig)
        asked = rig.append(shard, b"1")
        for node_id in (2, 3):
            fetched(rig, shard, node_id, 1)
        assert asked.is_acknowledged
        lost = rig.append(shard, b"nobody else has this")
        await rig.meta.service.perform(table_commands.BeginRecovery(shard.segments[0].key))
        await eventually(lambda: shard.stop is None and shard.active is None)
        assert lost.error is ErrorCode.REQUEST_TIMED_OUT
        assert rig.append(shard, b"2").error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        key = shard.segments[0].key
        for node_id in (1, 2, 3):
            node = rig.catalog.node(node_id)
            assert node is not None
            promise = table_commands.PromiseFence(key, 1, 1, 1, is_tail_whole=True, caller=node.life)
            await rig.meta.service.perform(promise)
        await eventually(lambda: len(shard.segments) == 2)
        opened = shard.segments[1]
        assert opened.base_offset == 1
        assert opened.leader == 1
        early = rig.append(shard, b"2")
        assert early.error is ErrorCode.KAFKA_STORAGE_ERROR, "what producers wrote is known once it is sealed"
        proof = SealRecord(0, 0, 1, START_MS, START_MS, 100, b"d" * 32, NO_PRODUCERS, (), 0)
        for node_id in (1, 2, 3):
            node = rig.catalog.node(node_id)
            assert node is not None
            await rig.meta.service.perform(table_commands.ReportReplica(key, proof, caller=node.life))
        await eventually(lambda: shard.segments[0].seal is not None)
        asked = rig.append(shard, b"2")
        for node_id in (2, 3):
            fetched(rig, shard, node_id, 2, epoch=1)
        assert asked.is_acknowledged and asked.offset == 1


@pytest.mark.fault("meta-service-unavailable-segment")
async def test_a_name_counts_while_the_service_is_heard(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await replicated(rig, segment_bytes="1000")
        value = bytes(300)
        rig.append(shard, value)
        rig.append(shard, value)
        await eventually(lambda: shard.segments[0].handed.prepared is not None)
        rig.steady.now_ms += 10 * rig.settings.node_lease_ms
        rig.meta.hold(table_commands.PrepareSegment)
        rig.append(shard, value)
        rig.append(shard, value)
        assert shard.active is not None and shard.active.key.epoch == 0, "it was not heard for long"
        rig.service_heard_ms = rig.steady.now_ms
        rig.append(shard, value)
        assert shard.active.key.epoch == 1
        assert shard.ended[0].leader.end_offset == 4


@pytest.mark.fault("meta-service-unavailable-segment")
async def test_an_outdated_successor_is_requested_again_while_writers_continue(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await replicated(rig, segment_bytes="1000")
        value = bytes(300)
        asked = [rig.append(shard, value) for _ in range(2)]
        await eventually(lambda: shard.segments[0].handed.prepared is not None)
        rig.steady.now_ms += FRESH_MS + 1
        rig.meta.fail(table_commands.PrepareSegment, Unavailable("away"))
        rig.meta.hold(table_commands.PrepareSegment)
        asked += [rig.append(shard, value) for _ in range(2)]
        for node_id in (2, 3):
            fetched(rig, shard, node_id, 4)
        assert all(one.is_acknowledged for one in asked)
        assert shard.active is not None and shard.active.key.epoch == 0
        rig.meta.release(table_commands.PrepareSegment)
        await eventually(lambda: shard.active is not None and shard.active.key.epoch == 1)
        assert rig.meta.calls[table_commands.PrepareSegment] == 3, "what was not answered ended nothing"
        assert shard.ended[0].leader.end_offset == 4


@pytest.mark.fault("successor-asked-before-leaving")
async def test_a_successor_chosen_before_a_node_leaves_is_replaced_though_its_answer_comes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await replicated(rig, segment_bytes="1000")
        key = shard.segments[0].key
        await rig.meta.service.perform(table_commands.RegisterNode(NodeInfo(4, "disk-4", "elsewhere", 9092)))
        real, arrived = rig.meta.perform, asyncio.Event()

        async def perform(command: Any, **options: Any) -> Any:
            answer = await real(command, **options)
            if isinstance(command, table_commands.PrepareSegment):
                await arrived.wait()
            return answer

        monkeypatch.setattr(rig.meta, "perform", perform)
        for _ in range(2):
            rig.append(shard, bytes(300))
        await eventually(lambda: shard.segments[0].handed.prepared is not None)
        named = shard.segments[0].handed.prepared
        assert named is not None
        leaving = next(node_id for node_id in named.replicas if node_id != 1)
        record = await rig.meta.service.perform(RetireNode(leaving, RetireMode.OFFLOAD))
        await rig.meta.service.perform(AdvanceRetirement(leaving, record, RetireStep.CORDON, None))
        await eventually(lambda: (node := rig.catalog.node(leaving)) is not None and node.is_leaving)
        shard.workers.sealing.successors.roll_to_new_successor(shard, key)
        arrived.set()

        def is_rolled() -> bool:
            for node_id in (2, 3):
                fetched(rig, shard, node_id, 2)
            return len(shard.segments) == 2

        await eventually(is_rolled)
        assert leaving not in shard.segments[1].replicas


@pytest.mark.fault("leader-fenced-restarted")
async def test_a_restarted_leader_of_several_replicas_does_not_continue(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await replicated(rig)
        rig.append(shard, b"held by nobody else")
        await rig.restart()
        shard = rig.shard(shard)
        assert not shard.is_leader and shard.active is None, "what it led is followed"
        assert shard.high_watermark == 0, "the others need not have it"
        assert rig.append(shard, b"more").error is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.fault("leader-cut-long-watch")
async def test_a_leader_that_missed_that_others_led_and_what_it_led_was_deleted_gives_it_up(tmp_path: Path) -> None:
    """Its watch was lost so long that it reads all metadata again: there its segment is gone, and it leads again."""
    async with ShardRig(tmp_path) as rig:
        shard = await replicated(rig)
        waiting = rig.append(shard, b"1", b"2")
        assert not waiting.is_answered
        snapshot = await rig.meta.service.snapshot()
        (known,) = [one for one in snapshot.shards if one.key == shard.key]
        key = SegmentKey(shard.key.topic_id, 0, 2, 9)
        segment = replace(known.segments[-1], key=key)
        told = replace(
            snapshot, version=snapshot.version + 10, shards=(replace(known, log_start_offset=9, segments=(segment,)),)
        )
        rig.catalog.reload(told)
        assert waiting.is_answered and not waiting.is_acknowledged
        assert shard.is_leader and shard.stop is None and shard.active is None
        assert shard.high_watermark == 9
        rig.append(shard, b"later")
        assert shard.active is not None and shard.active.key == key
