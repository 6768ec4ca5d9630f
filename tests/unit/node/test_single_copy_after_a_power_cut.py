"""A node that has a shard alone loses its page cache: what readers saw of the tail is gone, and its offsets are given
again, in a later epoch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.machines.leading.shard_life import StopCause
from stratalog.machines.restart.restart_events import ScanFile
from stratalog.model.commands.table_commands import RollSegment
from stratalog.model.errors import Unavailable
from stratalog_node.shards.read.epochs import end_of_led_epoch
from stratalog_node.shards.restart.opening import OpenedFiles
from support.node_cluster import NodeCluster
from support.waiting import eventually


def told(cluster: NodeCluster, node_id: int, epoch: int) -> tuple[int, int]:
    """What a reader hears that asks about its epoch."""
    (shard,) = (one for one in cluster.nodes[node_id].shards.all() if one.topic.name == "flights")
    return end_of_led_epoch(shard, shard.end_offset, epoch)


@pytest.mark.fault("replica-segment-loses-page")
async def test_a_reader_behind_what_was_lost_hears_of_the_break_however_far_the_log_has_gone_on(
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
