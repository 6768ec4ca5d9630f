"""A node that has a shard alone loses its page cache: what readers saw of the tail is gone, and its offsets are given
again, in a later epoch."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import pytest

from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.machines.leading.shard_life import StopCause
from stratalog.machines.restart.restart_events import ScanFile
from stratalog.model.commands.table_commands import RollSegment
from stratalog.model.errors import DiskFull, Unavailable
from stratalog.model.ids import ShardKey
from stratalog_node.disk.life_record import note_life
from stratalog_node.shards.read.epochs import end_of_led_epoch
from stratalog_node.shards.restart.opening import OpenedFiles
from support.node_cluster import NodeCluster
from support.waiting import eventually


def told(cluster: NodeCluster, node_id: int, epoch: int) -> tuple[int, int]:
    """What a reader hears that asks about its epoch."""
    (shard,) = (one for one in cluster.nodes[node_id].shards.all() if one.topic.name == "flights")
    return end_of_led_epoch(shard, shard.end_offset, epoch)


@pytest.mark.fault("replica-segment-loses-page")
async def test_a_reader_behind_what_was_lost_learns_of_the_break_however_far_the_log_has_gone_on(
    cluster: NodeCluster,
) -> None:
    await cluster.start(1)
    key = await cluster.shard(1)
    for value in (b"kept", b"read and lost", b"read and lost, too"):
        await cluster.append(key, value)
    await cluster.power_cut(1, cluster.segments(key)[-1].key, end_offset=1)
    await cluster.start(1)
    for value in (b"new 1", b"new 2", b"new 3"):
        await cluster.append(key, value)
    assert await cluster.values(key) == [b"kept", b"new 1", b"new 2", b"new 3"]
    await eventually(lambda: len(cluster.segments(key)) == 2)
    assert told(cluster, 1, 0) == (0, 1), "who goes on at 3 passes over records 1 and 2 of the new epoch"
    assert told(cluster, 1, 1) == (1, 4)


async def test_nor_does_it_hear_of_an_end_behind_the_break_while_the_roll_is_not_confirmed(
    cluster: NodeCluster,
) -> None:
    await cluster.start(1)
    key = await cluster.shard(1)
    for value in (b"kept", b"read and lost"):
        await cluster.append(key, value)
    await cluster.power_cut(1, cluster.segments(key)[-1].key, end_offset=1)
    await cluster.start(1)
    cluster.meta.hold(RollSegment)
    shard = await cluster.leads_again(key)
    waiting = [asyncio.ensure_future(cluster.append(key, b"new")) for _ in range(3)]
    await eventually(lambda: shard.end_offset == 4)
    assert told(cluster, 1, 0) == (0, 1)
    cluster.meta.release(RollSegment)
    assert await asyncio.gather(*waiting) == [1, 2, 3]
    await eventually(lambda: len(cluster.segments(key)) == 2)
    assert told(cluster, 1, 0) == (0, 1)


async def test_killing_the_process_alone_breaks_nothing(cluster: NodeCluster) -> None:
    await cluster.start(1)
    key = await cluster.shard(1)
    await cluster.append(key, b"1")
    await cluster.kill(1)
    await cluster.start(1)
    await cluster.append(key, b"2")
    await eventually(lambda: len(cluster.segments(key)) == 2)
    assert told(cluster, 1, 0) == (0, 2)


@pytest.mark.fault("power-cut-then-killed")
@pytest.mark.parametrize("end", [NodeCluster.kill, NodeCluster.stop], ids=["killed", "stopped"])
async def test_a_tail_that_the_power_took_is_no_damage_for_the_start_after_one_that_could_not_examine_it(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch, end: Callable[[NodeCluster, int], Awaitable[None]]
) -> None:
    """Later pages reached the disk before earlier ones."""
    await cluster.start(1)
    key = await cluster.shard(1)
    values = [b"kept", b"lost".ljust(10_000, b"."), b"behind".ljust(10_000, b".")]
    for value in values:
        await cluster.append(key, value)
    segment = cluster.segments(key)[-1].key
    await cluster.power_cut(1)
    path = cluster.layout(1).segment(segment)
    data = bytearray(path.read_bytes())
    at = SEGMENT_HEADER_BYTES + 4096
    data[at : at + 4096] = bytes(4096)
    path.write_bytes(data)

    perform = OpenedFiles.perform

    async def failing(files: OpenedFiles, step: object) -> object:
        if isinstance(step, ScanFile):
            raise Unavailable("the disk does not read now")
        return await perform(files, step)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(OpenedFiles, "perform", failing)
        await cluster.start(1)
        shard = cluster.nodes[1].shards.get(key)
        assert shard is not None and shard.stop is not None and shard.stop.cause is StopCause.UNREADABLE
        await end(cluster, 1)
    await cluster.start(1)
    assert await cluster.values(key) == [b"kept"]
    await cluster.append(key, b"new")
    await cluster.kill(1)
    await cluster.start(1)
    assert await cluster.values(key) == [b"kept", b"new"]


@pytest.mark.fault("power-cut-then-killed")
async def test_a_shard_that_cannot_be_opened_hides_no_damage_of_the_other_shards(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their records were written after the power cut, on a machine that kept running."""
    await cluster.start(1)
    closed, key = await cluster.shard(1, "closed"), await cluster.shard(1)
    await cluster.append(closed, b"kept")
    await cluster.power_cut(1)
    perform = OpenedFiles.perform

    async def failing(files: OpenedFiles, step: object) -> object:
        if isinstance(step, ScanFile) and step.key.shard_key == closed:
            raise Unavailable("the disk does not read this file")
        return await perform(files, step)  # type: ignore[arg-type]

    monkeypatch.setattr(OpenedFiles, "perform", failing)
    await cluster.start(1)
    values = [b"%d" % number for number in range(20)]
    for value in values:
        await cluster.append(key, value)
    path = cluster.layout(1).segment(cluster.segments(key)[-1].key)
    await cluster.kill(1)
    shutil.rmtree(cluster.layout(1).checkpoints)
    cluster.forget_memory(1)
    damaged = bytearray(path.read_bytes())
    damaged[(SEGMENT_HEADER_BYTES + len(damaged.rstrip(b"\0"))) // 2] ^= 1
    path.write_bytes(damaged)
    await cluster.start(1)
    shard = cluster.nodes[1].shards.get(key)
    assert shard is not None
    await eventually(lambda: shard.stop is not None and shard.stop.cause is StopCause.DATA_LOST)
    assert path.read_bytes().rstrip(b"\0") == bytes(damaged).rstrip(b"\0")


@pytest.mark.fault("power-cut-then-killed")
async def test_a_disk_that_does_not_take_the_note_takes_it_later_in_the_same_life(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.start(1)
    await cluster.append(await cluster.shard(1), b"kept")
    await cluster.power_cut(1)
    refused = []

    def full(path: Path, start_id: str, boot_id: str, unexamined: Iterable[ShardKey] = ()) -> None:
        if boot_id and len(refused) < 3:
            refused.append(boot_id)
            raise DiskFull("no space left")
        note_life(path, start_id, boot_id, unexamined)

    monkeypatch.setattr("stratalog_node.registration.note_life", full)
    await cluster.start(1)
    await eventually(lambda: json.loads(cluster.layout(1).life_file.read_bytes())["boot_id"] != "")
    assert len(refused) == 3
