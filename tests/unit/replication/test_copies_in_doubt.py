"""A follower that finds less on its disk than was there says so, and no turn of events keeps a copy from being used."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.machines.following.follower_events import FollowerLife, SegmentNamed
from stratalog.model.commands.table_commands import (
    AlterTopic,
    BeginRecovery,
    DeleteTopic,
    PromiseFence,
    ReportFaultyCopies,
)
from stratalog.model.ids import SegmentKey
from stratalog_node.disk.checkpoints import flushed_ends
from stratalog_node.replication import following
from stratalog_node.replication.replica import Replica
from stratalog_node.replication.replica_copy import ReplicaCopy
from support.follower_rig import FollowerRig, LeadingRig, led_shards
from support.waiting import eventually


async def promise_after_start(
    rig: LeadingRig, follower: FollowerRig, key: SegmentKey, *, is_tail_whole: bool
) -> PromiseFence:
    """What its next life says of a segment that was fenced meanwhile, before it could fetch anything."""
    await rig.meta.service.perform(BeginRecovery(key))
    await follower.start(is_tail_whole=is_tail_whole)
    told: list[PromiseFence] = []

    async def note(command: Any) -> None:
        if isinstance(command, PromiseFence) and command.segment == key:
            told.append(command)

    follower.following.submit = note  # type: ignore[method-assign]  # the service must not act on it
    await eventually(lambda: bool(told))
    return told[0]


@asynccontextmanager
async def following_two_records(tmp_path: Path) -> AsyncIterator[tuple[LeadingRig, FollowerRig, Replica, SegmentNamed]]:
    """A copy with two records, one of them beyond the end that a recovery can choose, and what the metadata say of
    it."""
    async with LeadingRig(tmp_path / "1") as rig, FollowerRig(rig, tmp_path / "2") as follower:
        (shard,) = await led_shards(rig)
        for value in (b"one", b"two"):
            await rig.acknowledged(shard, value)
        replica = await follower.replica_of(shard)
        record = replica.follower.record
        assert record is not None
        yield rig, follower, replica, record


@pytest.mark.fault("follower-large-copies-restarted")
async def test_a_copy_whose_file_is_gone_does_not_count_as_whole(tmp_path: Path) -> None:
    async with LeadingRig(tmp_path / "1") as rig, FollowerRig(rig, tmp_path / "2") as follower:
        (shard,) = await led_shards(rig)
        await rig.acknowledged(shard, b"one")
        copy = (await follower.replica_of(shard)).copy
        await follower.stop()
        copy.file.path.unlink()
        assert not (await promise_after_start(rig, follower, copy.key, is_tail_whole=True)).is_tail_whole


@pytest.mark.fault("follower-large-copies-restarted")
async def test_with_fsync_too_a_copy_that_lost_flushed_data_does_not_count_as_whole(tmp_path: Path) -> None:
    async with LeadingRig(tmp_path / "1") as rig, FollowerRig(rig, tmp_path / "2") as follower:
        (shard,) = await led_shards(rig, flush_policy="fsync")
        await rig.acknowledged(shard, b"one")
        copy = (await follower.replica_of(shard)).copy
        one_bytes = copy.scan.position
        await rig.acknowledged(shard, b"two")
        await follower.stop()
        os.truncate(copy.file.path, SEGMENT_HEADER_BYTES + one_bytes)
        assert not (await promise_after_start(rig, follower, copy.key, is_tail_whole=False)).is_tail_whole


async def test_with_fsync_a_copy_that_has_all_that_was_flushed_is_whole_after_a_power_cut(tmp_path: Path) -> None:
    async with LeadingRig(tmp_path / "1") as rig, FollowerRig(rig, tmp_path / "2") as follower:
        (shard,) = await led_shards(rig, flush_policy="fsync")
        await rig.acknowledged(shard, b"one")
        key = (await follower.replica_of(shard)).copy.key
        await follower.stop()
        assert (await promise_after_start(rig, follower, key, is_tail_whole=False)).is_tail_whole


@pytest.mark.fault("follower-disk-fails-copy")
async def test_a_conflicting_copy_that_vanished_is_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_OPEN_AGAIN_S", 0.02)
    async with LeadingRig(tmp_path / "1") as rig, FollowerRig(rig, tmp_path / "2") as follower:
        (shard,) = await led_shards(rig)
        await rig.acknowledged(shard, b"one")
        copy = (await follower.replica_of(shard)).copy
        await follower.stop()
        copy.file.path.write_bytes(b"\xff" * 8192)
        await follower.start()
        await eventually(lambda: copy.key in follower.following.faulty())
        copy.file.path.unlink()
        await follower.meta.perform(ReportFaultyCopies((copy.key,)))
        replica = await follower.replica_of(shard)
        await eventually(lambda: replica.copy.end_offset == 1)


async def test_a_copy_is_let_go_of_only_once_its_flush_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with LeadingRig(tmp_path / "1") as rig, FollowerRig(rig, tmp_path / "2") as follower:
        (shard,) = await led_shards(rig)
        await rig.acknowledged(shard, b"one")
        replica = await follower.replica_of(shard)
        is_flushing, gate = threading.Event(), threading.Event()
        real = os.fdatasync

        def slow(fd: int) -> None:
            if threading.current_thread() is not threading.main_thread() and not gate.is_set():
                is_flushing.set()
                assert gate.wait(30)
            real(fd)

        monkeypatch.setattr(os, "fdatasync", slow)
        flushing = asyncio.create_task(replica.flush_behind(force=True))
        await eventually(is_flushing.is_set)
        await rig.meta.service.perform(DeleteTopic(shard.key.topic_id))
        await eventually(lambda: not follower.following.replicas)
        gate.set()
        await flushing
        assert replica.copy.file.path not in follower.context.descriptors.lost, "the flush went wrong"


@pytest.mark.fault("topic-set-flush-policy-fsync-segments")
async def test_a_topic_that_is_set_to_fsync_confirms_what_is_flushed_alone_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with LeadingRig(tmp_path / "1") as rig, FollowerRig(rig, tmp_path / "2") as follower:
        (shard,) = await led_shards(rig)
        await rig.acknowledged(shard, b"one")
        replica = await follower.replica_of(shard)
        await rig.meta.service.perform(AlterTopic(shard.key.topic_id, {"flush.policy": "fsync"}))
        await eventually(lambda: replica.copy.is_flushed)
        gate = threading.Event()
        real = ReplicaCopy.flush

        def slow(copy: ReplicaCopy) -> tuple[int, int]:
            assert gate.wait(30)
            return real(copy)

        monkeypatch.setattr(ReplicaCopy, "flush", slow)
        asked = rig.append(shard, b"two")
        await eventually(lambda: replica.copy.end_offset == 2)
        await eventually(lambda: shard.active is not None and shard.active.leader.durable_offset == 2)
        assert not asked.is_answered
        gate.set()
        await eventually(lambda: asked.is_acknowledged)


@pytest.mark.fault("request-handler-fails")
async def test_a_failed_flush_of_one_copy_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, faults = ReplicaCopy.due_checkpoint, 3

    def faulty(copy: ReplicaCopy, *, force: bool = False) -> Any:
        nonlocal faults
        faults -= 1
        if faults >= 0:
            raise ValueError("a fault in the node")
        return real(copy, force=force)

    monkeypatch.setattr(ReplicaCopy, "due_checkpoint", faulty)
    async with LeadingRig(tmp_path / "1") as rig, FollowerRig(rig, tmp_path / "2", flush_interval_ms=10) as follower:
        (shard,) = await led_shards(rig)
        await rig.acknowledged(shard, b"one")
        copy = (await follower.replica_of(shard)).copy
        await eventually(lambda: faults < 0 and copy.is_flushed)


@pytest.mark.fault("recovery-cuts-followed-copy")
async def test_a_checkpoint_of_what_was_cut_meanwhile_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start would take its word for more than the file has, and say that it lost what was flushed."""
    async with following_two_records(tmp_path) as (_, follower, replica, record):
        begun, gate, real = threading.Event(), threading.Event(), ReplicaCopy.flush

        def slow(copy: ReplicaCopy) -> tuple[int, int]:
            begun.set()
            assert gate.wait(30)
            return real(copy)

        monkeypatch.setattr(ReplicaCopy, "flush", slow)
        flushing = asyncio.create_task(replica.flush_behind(force=True))
        await eventually(begun.is_set)
        replica.handle(
            replace(record, leader=None, fence=1, end_offset=1, source=2)
        )  # a recovery left the second one out
        gate.set()
        await flushing
        await eventually(lambda: replica.copy.end_offset == 1)
        kept = follower.checkpoints.load(replica.copy.key)
        assert kept is None or kept.next_offset <= 1


async def test_a_stop_in_the_middle_of_a_cut_keeps_no_checkpoint_of_what_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller no longer waits for the thread, and it cuts anyway."""
    async with following_two_records(tmp_path) as (rig, follower, replica, record):
        copy = replica.copy
        begun, gate, real = threading.Event(), threading.Event(), ReplicaCopy.cut
        are_same: list[bool] = []

        def slow(copy: ReplicaCopy, end_offset: int) -> None:
            opened = copy.file.fd()
            begun.set()
            assert gate.wait(30)
            are_same.append(os.path.sameopenfile(opened, copy.file.fd()))
            real(copy, end_offset)

        monkeypatch.setattr(ReplicaCopy, "cut", slow)
        replica.handle(replace(record, leader=None, fence=1, end_offset=1, source=1))
        await eventually(begun.is_set)
        await follower.following.close()
        gate.set()
        await follower.stop()
        kept = flushed_ends(follower.layout.checkpoints).get(copy.key, 0)
        assert (await promise_after_start(rig, follower, copy.key, is_tail_whole=True)).is_tail_whole
        assert copy.end_offset == 1 and kept <= 1
        assert are_same == [True], "its descriptor was closed under the thread"


@pytest.mark.fault("replica-descriptor-room-left")
@pytest.mark.parametrize("flush_policy", ["replicated", "fsync"])
async def test_a_flush_that_could_not_be_tried_says_nothing_against_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush_policy: str
) -> None:
    async with LeadingRig(tmp_path / "1") as rig, FollowerRig(rig, tmp_path / "2", flush_interval_ms=10) as follower:
        (shard,) = await led_shards(rig, flush_policy=flush_policy)
        replica = await follower.replica_of(shard)
        directory, real, refused = str(replica.copy.file.path.parent), os.open, 2

        def full(path: Any, flags: int, *rest: Any, **named: Any) -> int:
            nonlocal refused
            if flags & os.O_DIRECTORY and str(path) == directory and refused:
                refused -= 1
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return real(path, flags, *rest, **named)

        monkeypatch.setattr(os, "open", full)
        await rig.acknowledged(shard, b"one")
        await eventually(lambda: replica.copy.is_flushed)
        assert not refused
        assert replica.follower.life is FollowerLife.FOLLOWING
        assert not follower.following.faulty()
        await rig.acknowledged(shard, b"two")
