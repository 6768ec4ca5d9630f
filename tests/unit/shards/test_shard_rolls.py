"""Rolls: when acknowledgements are sent, and what a crash between roll, confirmation and seal leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.kafka.error_codes import ErrorCode
from stratalog.machines.leading.chain_events import ShardStopped
from stratalog.machines.leading.shard_life import Stop, StopCause
from stratalog.model.commands.table_commands import BeginRecovery, RegisterNode, RollSegment, SealSegment
from stratalog.model.errors import OutcomeUnknown, Unavailable
from stratalog.model.metadata import NodeInfo
from stratalog.model.segment import SegmentState
from support.shard_rig import NODE_ID, ShardRig
from support.waiting import eventually


async def test_nothing_in_the_next_segment_is_acknowledged_before_the_roll_is_confirmed(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"old")
        rig.meta.hold(RollSegment)
        assert shard.ask_roll(rig.clock())
        asked = rig.append(shard, b"new")
        assert not asked.is_answered
        assert shard.high_watermark == 1
        assert shard.end_offset == 2
        assert await rig.read_values(shard) == [b"old"]
        rig.meta.release(RollSegment)
        await eventually(lambda: asked.is_acknowledged)
        assert await rig.read_values(shard) == [b"old", b"new"]


async def test_several_rolls_are_confirmed_in_order_and_each_answer_is_given_once(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.meta.hold(RollSegment)
        asked = []
        for number in range(5):
            asked.append(rig.append(shard, b"%d" % number))
            shard.ask_roll(rig.clock())
        assert [a.is_answered for a in asked] == [True, False, False, False, False]
        rig.meta.release(RollSegment)
        await eventually(lambda: all(a.is_acknowledged for a in asked))
        assert [a.times_settled for a in asked] == [1] * 5
        await rig.all_sealed()
        assert await rig.read_values(shard) == [b"%d" % number for number in range(5)]


async def test_a_roll_that_meta_could_not_answer_is_asked_again(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"old")
        rig.meta.fail(RollSegment, Unavailable("away"))
        rig.meta.lose_answer(RollSegment)
        shard.ask_roll(rig.clock())
        asked = rig.append(shard, b"new")
        await eventually(lambda: asked.is_acknowledged)
        assert rig.meta.calls[RollSegment] == 3
        await rig.all_sealed()


async def test_a_crash_with_several_unconfirmed_rolls_loses_nothing_acknowledged(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.meta.hold(RollSegment)
        for number in range(4):
            rig.append(shard, b"%d" % number)
            shard.ask_roll(rig.clock())
        await rig.crash()
        rig.meta.open_all()
        await rig.start()
        shard = rig.shard(shard)
        await eventually(lambda: shard.high_watermark == 4)
        assert await rig.read_values(shard) == [b"0", b"1", b"2", b"3"]
        await rig.all_sealed()
        assert (await rig.acknowledged(shard, b"4")).offset == 4


async def test_unconfirmed_rolls_are_confirmed_once_a_meta_service_that_was_away_is_back(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.meta.hold(RollSegment)
        rig.append(shard, b"old")
        shard.ask_roll(rig.clock())
        rig.append(shard, b"new")
        await rig.crash()
        rig.meta.open_all()
        rig.meta.fail(RollSegment, Unavailable("away"), Unavailable("still away"))
        await rig.start()
        shard = rig.shard(shard)
        assert await rig.read_values(shard) == [b"old"]
        asked = rig.append(shard, b"newer")
        await eventually(lambda: asked.is_acknowledged)
        assert await rig.read_values(shard) == [b"old", b"new", b"newer"]


@pytest.mark.fault("segment-records-timestamps-empty")
async def test_a_crash_while_the_next_file_is_created_leaves_a_working_shard(tmp_path: Path) -> None:
    for size in (0, 1, 100, 511):
        async with ShardRig(tmp_path / str(size)) as rig:
            shard = await rig.shard_of()
            rig.append(shard, b"old")
            rig.meta.hold(RollSegment)
            shard.ask_roll(rig.clock())
            path = rig.file_of(shard)
            await rig.crash()
            path.write_bytes(path.read_bytes()[:size])
            rig.meta.open_all()
            await rig.start()
            shard = rig.shard(shard)
            await rig.acknowledged(shard, b"new")
            assert await rig.read_values(shard) == [b"old", b"new"]


async def test_a_next_file_of_zeros_that_meta_never_heard_of_does_not_stop_the_shard(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"old")
        rig.meta.hold(RollSegment)
        shard.ask_roll(rig.clock())
        rig.append(shard, b"never acknowledged")
        path = rig.file_of(shard)
        await rig.crash()
        path.write_bytes(bytes(path.stat().st_size))
        rig.meta.open_all()
        await rig.start()
        shard = rig.shard(shard)
        await rig.acknowledged(shard, b"new")
        assert await rig.read_values(shard) == [b"old", b"new"]


async def test_a_seal_whose_answer_was_lost_is_the_same_seal_when_asked_again(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"old")
        rig.meta.lose_answer(SealSegment)
        shard.ask_roll(rig.clock())
        await eventually(lambda: rig.meta.calls[SealSegment] == 1)
        rig.clock.now_ms += 1000
        await rig.all_sealed()
        assert rig.stats.seal_failures == 0
        assert [s.state for s in shard.segments] == [SegmentState.SEALED, SegmentState.ACTIVE]


@pytest.mark.fault("segment-cannot-sealed-temporarily")
async def test_a_segment_that_cannot_be_sealed_does_not_hide_the_ones_after_it(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"good")
        rig.append(shard, b"bad")
        rig.meta.hold(RollSegment)
        shard.ask_roll(rig.clock())
        path = rig.file_of(shard, 0)
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        rig.meta.release(RollSegment)
        asked = rig.append(shard, b"next")
        await eventually(lambda: asked.is_acknowledged)
        shard.ask_roll(rig.clock())
        asked = rig.append(shard, b"last")
        await eventually(lambda: asked.is_acknowledged and rig.stats.seal_failures == 1)
        await eventually(lambda: 1 in shard.copies)
        assert [ended.key.epoch for ended in shard.ended] == [0]
        assert await rig.read_values(shard, 2) == [b"next", b"last"]


@pytest.mark.fault("segment-cannot-sealed-temporarily")
async def test_two_segments_that_cannot_be_sealed_now_do_not_keep_others_from_it(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=3)
        shards = [rig.shard(topic, index) for index in range(3)]
        for shard in shards:
            rig.append(shard, b"old")
        for shard in shards[:2]:
            # Its index block cannot be written: a directory is in the way.
            rig.layout.index(shard.active.key).mkdir()  # type: ignore[union-attr]
            shard.ask_roll(rig.clock())
        await eventually(lambda: rig.meta.calls[RollSegment] == 2)
        shards[2].ask_roll(rig.clock())
        await eventually(lambda: shards[2].segments[0].seal is not None)
        for shard in shards[:2]:
            rig.layout.index(shard.ended[0].key).rmdir()
        await rig.all_sealed()


@pytest.mark.fault("segment-cannot-sealed-temporarily")
async def test_a_disk_without_room_for_the_index_block_delays_the_seal_and_nothing_else(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"old")
        failed = []

        def no_room(path: Path) -> OSError | None:
            if ".idx" not in path.name:
                return None
            failed.append(path)
            return OSError(28, "No space left on device")

        rig.power.fail_next = no_room
        shard.ask_roll(rig.clock())
        asked = rig.append(shard, b"new")
        await eventually(lambda: asked.is_acknowledged and len(failed) > 1)
        rig.power.fail_next = lambda _: None
        await rig.all_sealed()
        assert await rig.read_values(shard) == [b"old", b"new"]


async def test_if_the_next_file_cannot_be_created_its_batches_are_refused_and_the_old_one_continues(
    tmp_path: Path,
) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of(segment_bytes=256)
        rig.append(shard, b"x" * 100)
        blocker = rig.layout.segment(shard.active.key._replace(epoch=1, base_offset=1))  # type: ignore[union-attr]
        blocker.mkdir()
        asked = rig.append(shard, b"y" * 100)
        assert asked.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert rig.append(shard, b"z").is_acknowledged
        blocker.rmdir()
        await rig.acknowledged(shard, b"y" * 100)
        await rig.restart()
        assert await rig.read_values(rig.shard(shard)) == [b"x" * 100, b"z", b"y" * 100]


async def test_the_leftover_of_a_roll_that_failed_is_not_mistaken_for_the_roll_that_came_later(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"a")
        assert shard.active is not None
        leftover = rig.layout.segment(shard.active.key._replace(epoch=1, base_offset=1))
        rig.append(shard, b"b")
        leftover.write_bytes(b"half a header")
        rig.meta.hold(RollSegment)
        shard.ask_roll(rig.clock())
        rig.append(shard, b"c")
        await rig.crash()
        rig.meta.open_all()
        await rig.start()
        shard = rig.shard(shard)
        await rig.acknowledged(shard, b"d")
        assert await rig.read_values(shard) == [b"a", b"b", b"c", b"d"]
        await rig.all_sealed()


async def test_a_roll_by_age_that_cannot_create_its_directory_does_not_stop_the_check_of_ages(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of(segment_ms=1000)
        rig.append(shard, b"old")
        folder = rig.layout.shard(shard.key)
        folder.rename(folder.with_name("aside"))
        folder.write_bytes(b"a file where the directory was")
        rig.clock.now_ms += 1000
        shard.check_age(rig.clock())
        assert shard.active is not None and shard.active.key.epoch == 0
        folder.unlink()
        folder.with_name("aside").rename(folder)
        shard.check_age(rig.clock())
        assert shard.active.key.epoch == 1


async def test_a_leader_that_meta_has_replaced_stops_and_says_so(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"old")
        assert shard.active is not None
        key = shard.active.key
        rig.meta.hold(RollSegment)
        shard.ask_roll(rig.clock())
        asked = rig.append(shard, b"new")
        await rig.meta.service.perform(RollSegment(key, 0))
        rig.meta.release(RollSegment)
        await eventually(lambda: asked.is_answered)
        assert asked.error is ErrorCode.REQUEST_TIMED_OUT
        assert rig.append(shard, b"later").error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert shard.high_watermark == 1


async def test_a_leader_learns_from_the_watch_that_its_segment_was_ended_by_another(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"old")
        assert shard.active is not None
        await rig.meta.service.perform(RollSegment(shard.active.key, 0))
        await eventually(lambda: shard.stop is not None)
        assert shard.stop is not None and shard.stop.cause is StopCause.DEPOSED
        assert rig.append(shard, b"new").error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert shard.end_offset == 1, "nothing was written behind the end that the other gave it"


@pytest.mark.fault("leader-fenced-restarted")
async def test_a_fence_that_the_watch_shows_ends_leading_at_once(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"old")
        assert shard.active is not None
        await rig.meta.service.perform(BeginRecovery(shard.active.key))
        await eventually(lambda: not shard.is_leader)
        assert rig.append(shard, b"new").error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert shard.end_offset == 1


async def test_the_answer_of_an_unknown_roll_is_not_given_twice_after_a_stop(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"old")
        rig.meta.hold(RollSegment)
        shard.ask_roll(rig.clock())
        asked = rig.append(shard, b"new")
        shard.handle(ShardStopped(Stop("test", StopCause.DEPOSED)))
        rig.meta.fail(RollSegment, OutcomeUnknown("lost"))
        rig.meta.release(RollSegment)
        await eventually(lambda: rig.meta.calls[RollSegment] >= 2)
        assert asked.error is ErrorCode.REQUEST_TIMED_OUT
        assert asked.times_settled == 1


@pytest.mark.fault("records-deleted-segment-answer")
async def test_a_segment_deleted_before_its_roll_was_answered_blocks_nothing(tmp_path: Path) -> None:
    """The meta service deletes only what it knows to have ended."""
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await rig.acknowledged(shard, b"a")
        rig.meta.lose_answer(RollSegment)
        shard.ask_roll(rig.clock())
        await eventually(lambda: shard.epoch == 1)
        rig.meta.hold(RollSegment)
        waiting = rig.append(shard, b"b")
        await shard.delete_records_before(1)
        old = shard.ended[0].key
        await eventually(lambda: rig.catalog.segment(old) is None)
        await rig.copies.free_local(None, old)
        await eventually(lambda: waiting.is_acknowledged)
        rig.meta.release(RollSegment)
        shard.ask_roll(rig.clock())
        await rig.acknowledged(shard, b"c")
        await rig.all_sealed()


@pytest.mark.fault("stop-before-roll-answer")
async def test_a_stop_before_the_answer_to_a_roll_leaves_a_working_shard(tmp_path: Path) -> None:
    """The file of the next segment has no name yet, because another node might lead that segment. The next start does
    not find it, so no checkpoint may say that it has batches."""
    async with ShardRig(tmp_path) as rig:
        await rig.meta.service.perform(RegisterNode(NodeInfo(7, "disk-7", "elsewhere", 9_092)))
        shard = await rig.shard_of()
        await eventually(lambda: rig.catalog.node(7) is not None)
        await rig.acknowledged(shard, b"old")
        assert shard.active is not None
        opened = shard.active.key.epoch + 1
        rig.meta.lose_answer(RollSegment, 1_000)
        shard.ask_roll(rig.clock())
        await eventually(lambda: shard.epoch == opened)
        asked = rig.append(shard, b"new")
        await eventually(lambda: rig.meta.calls[RollSegment] > 0)
        listed = (await rig.meta.service.snapshot()).shards[0].segments[-1]
        assert (listed.epoch, listed.leader) == (opened, NODE_ID)
        await rig.stop()
        assert not asked.is_acknowledged
        rig.meta.open_all()
        await rig.start()
        shard = rig.shard(shard)
        assert shard.stop is None, shard.stop
        await eventually(lambda: rig.append(shard, b"newer").is_acknowledged)
        assert set(await rig.read_values(shard)) == {b"old", b"newer"}
