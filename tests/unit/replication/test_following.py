"""A node that follows another over its port: what it has on its disk is what the leader has, and what it confirms."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.formats.segments.index_block import decode_index_block
from stratalog.kafka.replica_fetch import SegmentAnswer
from stratalog.machines.following.follower_events import FollowerLife
from stratalog.model.commands.table_commands import BeginRecovery, DeleteTopic, PromiseFence
from stratalog.model.errors import Unavailable
from stratalog_node.check.local_segment import check_segment_file
from stratalog_node.disk.fences import FenceBook
from stratalog_node.replication.replica import Replica
from stratalog_node.replication.replica_copy import ReplicaCopy
from stratalog_node.shards.copies.rolls_in_progress import RollsInProgress
from stratalog_node.shards.log.shard_log import ShardLog
from support.follower_rig import NODE_ID, FollowerRig, LeadingRig, led_shards
from support.waiting import eventually


def is_copied(replica: Replica, rig: LeadingRig, shard: ShardLog) -> bool:
    """Without the header, which tells when a file was made, and the room ahead."""
    active = shard.active
    assert active is not None
    end = SEGMENT_HEADER_BYTES + active.size_bytes
    mine, theirs = replica.copy.file.path.read_bytes(), rig.file_of(shard).read_bytes()
    return active.size_bytes > 0 and mine[SEGMENT_HEADER_BYTES:end] == theirs[SEGMENT_HEADER_BYTES:end]


async def test_what_is_acknowledged_by_all_is_in_both_files_byte_for_byte(tmp_path: Path) -> None:
    async with LeadingRig(tmp_path / "1") as rig, FollowerRig(rig, tmp_path / "2") as follower:
        (shard,) = await led_shards(rig)
        for number in range(50):
            await rig.acknowledged(shard, b"%d" % number * 100, b"more")
        replica = await follower.replica_of(shard)
        assert replica.copy.end_offset == 100
        assert follower.following.stats.followed_segments > 0
        assert is_copied(replica, rig, shard)
        assert shard.active is not None
        assert follower.following.stats.fetched_bytes == shard.active.size_bytes, "nothing came twice"


async def test_the_producers_of_a_followed_segment_are_those_of_its_leader(tmp_path: Path) -> None:
    async with LeadingRig(tmp_path / "1") as rig, FollowerRig(rig, tmp_path / "2") as follower:
        (shard,) = await led_shards(rig)
        for number in range(7):
            await rig.acknowledged(shard, b"x", producer_id=5, producer_epoch=1, base_sequence=number)
        replica = await follower.replica_of(shard)
        assert shard.active is not None
        mine, theirs = replica.copy.scan.producers.get(5), shard.active.leader.producers.get(5)
        assert mine is not None and theirs is not None
        assert [memo.base_offset for memo in mine.batches] == [memo.base_offset for memo in theirs.batches]


async def test_many_shards_share_one_connection(tmp_path: Path) -> None:
    async with LeadingRig(tmp_path / "1") as rig, FollowerRig(rig, tmp_path / "2") as follower:
        shards = await led_shards(rig, 50)
        for shard in shards:
            await rig.acknowledged(shard, b"x")
        assert rig.server.stats.accepted == 1
        rounds = follower.following.stats.rounds
        assert rounds <= 2 * 50 + 60, "a round costs what moved"


@pytest.mark.fault("follower-connection-ends-disk")
async def test_a_lost_connection_is_opened_again_and_nothing_is_missing(tmp_path: Path) -> None:
    async with LeadingRig(tmp_path / "1") as rig, FollowerRig(rig, tmp_path / "2") as follower:
        (shard,) = await led_shards(rig)
        for number in range(6):
            await rig.acknowledged(shard, b"%d" % number)
            for connection in list(rig.server._connections):
                connection.close("for this test")
        replica = await follower.replica_of(shard)
        assert is_copied(replica, rig, shard)
        assert follower.following.stats.connections_lost >= 5


@pytest.mark.fault("follower-stops-loses-tail")
async def test_a_second_life_continues_where_the_first_one_ended_and_cuts_its_torn_tail(tmp_path: Path) -> None:
    async with LeadingRig(tmp_path / "1") as rig, FollowerRig(rig, tmp_path / "2") as follower:
        (shard,) = await led_shards(rig)
        await rig.acknowledged(shard, b"one")
        copy = (await follower.replica_of(shard)).copy
        await follower.stop()
        whole = copy.file.path.read_bytes()[: SEGMENT_HEADER_BYTES + copy.scan.position]
        copy.file.path.write_bytes(whole + whole[SEGMENT_HEADER_BYTES:-9])
        await follower.start()
        replica = await follower.replica_of(shard)
        assert replica.copy.end_offset == 1
        rig.append(shard, b"two")
        await eventually(lambda: replica.copy.end_offset == 2)
        assert is_copied(replica, rig, shard)


async def test_with_fsync_nothing_is_confirmed_before_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with LeadingRig(tmp_path / "1") as rig, FollowerRig(rig, tmp_path / "2") as follower:
        (shard,) = await led_shards(rig, flush_policy="fsync")
        await rig.acknowledged(shard, b"one")
        gate = threading.Event()
        real = ReplicaCopy.flush

        def slow(copy: ReplicaCopy) -> tuple[int, int]:
            assert gate.wait(30)
            return real(copy)

        monkeypatch.setattr(ReplicaCopy, "flush", slow)
        asked = rig.append(shard, b"two")
        replica = await follower.replica_of(shard)
        await eventually(lambda: replica.copy.end_offset == 2)
        await eventually(lambda: shard.active is not None and shard.active.leader.durable_offset == 2)
        assert not asked.is_answered
        gate.set()
        await eventually(lambda: asked.is_acknowledged)


async def test_an_answer_too_short_for_a_batch_costs_its_segment_a_pause_and_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut: list[int] = []
    real = Replica.receive

    def take(replica: Replica, node_id: int, answer: SegmentAnswer[memoryview]) -> None:
        if answer.records_bytes and not cut:
            cut.append(answer.records_bytes)
            answer = answer._replace(records=[answer.records[0][:10]], records_bytes=10)
        real(replica, node_id, answer)

    async with LeadingRig(tmp_path / "1") as rig, FollowerRig(rig, tmp_path / "2") as follower:
        (shard,) = await led_shards(rig)
        monkeypatch.setattr(Replica, "receive", take)
        await rig.acknowledged(shard, b"one")
        assert cut and follower.following.stats.connections_lost == 0
        assert is_copied(await follower.replica_of(shard), rig, shard)


@pytest.mark.fault("follower-connection-ends-disk")
async def test_what_does_not_check_is_not_taken_and_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged: list[int] = []
    real = Replica.receive

    def take(replica: Replica, node_id: int, answer: SegmentAnswer[memoryview]) -> None:
        if answer.records_bytes and not damaged:
            damaged.append(answer.records_bytes)
            answer.records[0][-1] ^= 1
        real(replica, node_id, answer)

    async with LeadingRig(tmp_path / "1") as rig, FollowerRig(rig, tmp_path / "2") as follower:
        (shard,) = await led_shards(rig)
        monkeypatch.setattr(Replica, "receive", take)
        await rig.acknowledged(shard, b"one")
        assert damaged and follower.following.stats.refused_ranges == 1
        replica = await follower.replica_of(shard)
        assert is_copied(replica, rig, shard)


@pytest.mark.fault("follower-connection-ends-disk")
async def test_a_full_disk_of_a_follower_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with LeadingRig(tmp_path / "1") as rig, FollowerRig(rig, tmp_path / "2") as follower:
        (shard,) = await led_shards(rig)
        await rig.acknowledged(shard, b"one")
        replica = await follower.replica_of(shard)
        refused: list[int] = []
        real = ReplicaCopy.append

        def append(copy: ReplicaCopy, batches: object) -> None:
            if len(refused) < 3:
                refused.append(1)
                raise Unavailable("no space left")
            real(copy, batches)  # type: ignore[arg-type]

        monkeypatch.setattr(ReplicaCopy, "append", append)
        await rig.acknowledged(shard, b"two")
        assert len(refused) == 3 and replica.copy.end_offset == 2


@pytest.mark.fault("node-dies-fence-promise", "fence-reaches-replica-late")
async def test_a_fence_is_on_the_disk_before_it_is_reported_and_outlives_the_life(tmp_path: Path) -> None:
    async with LeadingRig(tmp_path / "1") as rig, FollowerRig(rig, tmp_path / "2") as follower:
        (shard,) = await led_shards(rig)
        await rig.acknowledged(shard, b"one")
        replica = await follower.replica_of(shard)
        rig.meta.hold(PromiseFence)
        await rig.meta.service.perform(BeginRecovery(replica.copy.key))
        await eventually(lambda: rig.meta.calls[PromiseFence] > 0)
        (line,) = json.loads(follower.layout.fences.read_bytes())["fences"]
        assert line[1:] == [shard.key.shard, 0, 0, 1]
        assert follower.following.stats.promised_fences == 1
        assert replica.follower.life is FollowerLife.PROMISED
        rig.append(shard, b"of the old leader")
        await follower.stop()
        rig.meta.release(PromiseFence)
        await follower.start()
        replica = await follower.replica_of(shard)
        await eventually(lambda: replica.follower.promised_fence == 1)
        assert replica.copy.end_offset == 1, "nothing more of that leader"


async def test_a_start_removes_lines_about_copies_that_were_sealed_before_a_crash(tmp_path: Path) -> None:
    async with LeadingRig(tmp_path / "1") as rig, FollowerRig(rig, tmp_path / "2") as follower:
        (shard,) = await led_shards(rig)
        await rig.acknowledged(shard, b"one")
        key = (await follower.replica_of(shard)).copy.key
        shard.ask_roll(rig.clock.now_ms)
        await eventually(lambda: key in follower.sealed)
        growing = (await follower.replica_of(shard, 1)).copy.key
        await follower.stop()
        book = FenceBook(follower.layout.fences)
        book.promise({key: 1, growing: 1})  # a crash came before it was removed
        book.note_damage(key, 1)
        await follower.start()
        await eventually(lambda: key not in FenceBook(follower.layout.fences).keys)
        assert growing in FenceBook(follower.layout.fences).keys


@pytest.mark.fault("replica-disk-busy-long")
async def test_a_promise_waits_for_no_flush_of_a_copy(tmp_path: Path) -> None:
    """The disk takes as long as it likes for a flush, and a shard has no leader until the promise is written."""
    async with LeadingRig(tmp_path / "1") as rig, FollowerRig(rig, tmp_path / "2") as follower:
        (shard,) = await led_shards(rig)
        await rig.acknowledged(shard, b"one")
        replica = await follower.replica_of(shard)
        is_over = threading.Event()
        slow_works = [asyncio.ensure_future(follower.following.turns.in_turn(is_over.wait)) for _ in range(3)]
        slow_works += [asyncio.ensure_future(follower.threads.background(is_over.wait)) for _ in range(8)]
        try:
            await rig.meta.service.perform(BeginRecovery(replica.copy.key))
            await eventually(lambda: rig.meta.calls[PromiseFence] > 0)
            assert follower.following.stats.promised_fences == 1
        finally:
            is_over.set()
            await asyncio.gather(*slow_works)


async def test_a_copy_at_its_end_is_proven_and_told(tmp_path: Path) -> None:
    async with LeadingRig(tmp_path / "1") as rig, FollowerRig(rig, tmp_path / "2") as follower:
        (shard,) = await led_shards(rig)
        await rig.acknowledged(shard, b"one")
        replica = await follower.replica_of(shard)
        shard.ask_roll(rig.clock.now_ms)  # done once the successor is known
        await eventually(lambda: replica.follower.life in (FollowerLife.PROVEN, FollowerLife.SEALED))
        await eventually(lambda: has_reported(rig, replica) or replica.follower.life is FollowerLife.SEALED)
        await eventually(lambda: follower.following.stats.proven_copies > 0)


async def test_a_proven_copy_has_no_room_ahead_and_verify_finds_nothing_in_it(tmp_path: Path) -> None:
    async with LeadingRig(tmp_path / "1") as rig, FollowerRig(rig, tmp_path / "2") as follower:
        (shard,) = await led_shards(rig)
        await rig.acknowledged(shard, bytes(5_000))
        replica = await follower.replica_of(shard)
        copy = replica.copy
        assert copy.file.path.stat().st_size > copy.file.size_bytes, "there is room to cut"
        shard.ask_roll(rig.clock.now_ms)
        await eventually(lambda: replica.follower.life in (FollowerLife.PROVEN, FollowerLife.SEALED))
        assert copy.file.path.stat().st_size == copy.file.size_bytes
        await eventually(lambda: (told := rig.catalog.segment(copy.key)) is not None and told.seal is not None)
        listed = rig.catalog.segment(copy.key)
        assert listed is not None and listed.seal is not None
        seal = listed.seal
        assert check_segment_file(copy.file.path, seal=seal).findings == []
        whole = copy.file.path.read_bytes()
        copy.file.path.write_bytes(whole + bytes(100_000))  # proven before versions that cut it
        assert check_segment_file(copy.file.path, seal=seal).findings == []
        copy.file.path.write_bytes(whole[:SEGMENT_HEADER_BYTES] + bytes(100_000))
        (found,) = check_segment_file(copy.file.path, seal=seal).findings
        assert found.severity == "error", "zeros before the end are damage"


async def test_a_small_sealed_copy_is_read_from_memory_until_its_index_block_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with LeadingRig(tmp_path / "1") as rig, FollowerRig(rig, tmp_path / "2") as follower:
        rolls_end = asyncio.Event()
        monkeypatch.setattr(RollsInProgress, "wait_until_none", lambda self, longest_s=0.0: rolls_end.wait())
        (shard,) = await led_shards(rig)
        for _ in range(3):
            await rig.acknowledged(shard, bytes(70_000))
        copy = (await follower.replica_of(shard)).copy
        await follower.following.settle(copy, copy.flush_ended)
        record, _ = await follower.following.settle(copy, copy.flush_and_prove)
        index = follower.layout.index(copy.key)
        assert not index.exists(), "no client waits for it, and thousands are proven at once"
        points = copy.unwritten_points
        assert points is not None and len(points) > 0
        writing = asyncio.ensure_future(
            follower.following._write_seal(copy, replace(rig.catalog.segment(copy.key), seal=record))  # type: ignore[type-var]
        )
        await asyncio.sleep(0)
        assert not index.exists() and not writing.done(), "not while shards roll"
        rolls_end.set()
        await writing
        block = decode_index_block(index.read_bytes(), source=str(index))
        assert list(block.points) == list(points) and block.seal.digest == record.digest


async def test_a_follower_hands_over_the_points_of_a_copy_once_it_is_sealed(tmp_path: Path) -> None:
    async with LeadingRig(tmp_path / "1") as rig, FollowerRig(rig, tmp_path / "2") as follower:
        (shard,) = await led_shards(rig)
        for _ in range(3):
            await rig.acknowledged(shard, bytes(70_000))
        key = (await follower.replica_of(shard)).copy.key
        shard.ask_roll(rig.clock.now_ms)
        await eventually(lambda: key in follower.sealed)
        points = follower.sealed[key]
        assert points is not None and len(points) > 0
        await eventually(follower.layout.index(key).exists)


def has_reported(rig: LeadingRig, replica: Replica) -> bool:
    segment = rig.catalog.segment(replica.copy.key)
    return segment is not None and any(report.node_id == NODE_ID for report in segment.handed.reports)


async def test_a_deleted_topic_takes_its_copies_along(tmp_path: Path) -> None:
    async with LeadingRig(tmp_path / "1") as rig, FollowerRig(rig, tmp_path / "2") as follower:
        (shard,) = await led_shards(rig)
        await rig.acknowledged(shard, b"one")
        path = (await follower.replica_of(shard)).copy.file.path
        await rig.meta.service.perform(DeleteTopic(shard.key.topic_id))
        await eventually(lambda: not follower.following.replicas and not path.exists())


@pytest.mark.fault("copy-opened-topic-segment")
async def test_a_topic_that_is_deleted_while_its_copies_are_opened_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with LeadingRig(tmp_path / "1") as rig, FollowerRig(rig, tmp_path / "2") as follower:
        (shard,) = await led_shards(rig)
        await rig.acknowledged(shard, b"one")
        copy = (await follower.replica_of(shard)).copy
        await follower.stop()
        is_opening, gate = threading.Event(), threading.Event()
        real = ReplicaCopy.open_found

        def slow(opened: ReplicaCopy, checkpoint: Any) -> bool:
            is_opening.set()
            assert gate.wait(30)
            return real(opened, checkpoint)

        monkeypatch.setattr(ReplicaCopy, "open_found", slow)
        await follower.start()
        await eventually(is_opening.is_set)
        await rig.meta.service.perform(DeleteTopic(shard.key.topic_id))
        await eventually(lambda: follower.catalog.topic_by_id(shard.key.topic_id) is None)
        gate.set()
        await eventually(lambda: not copy.file.path.exists())
        assert not follower.following.replicas and not follower.following.faulty()
