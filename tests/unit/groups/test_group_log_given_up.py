"""A range of the group log that was given up by force: what lies on both sides of it is kept, and nothing waits."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import replace

import pytest

from stratalog.model.errors import Unavailable
from stratalog.model.groups.group import GroupError
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import GapReason, GivenUp, Handover, RemoteCopy, RemoteState, Segment, SegmentState
from stratalog.telemetry.logs import configure_logs
from stratalog_node.groups.coordinator import CoordinatorLimits
from stratalog_node.groups.log import LogLimits
from support.group_node import GroupNode, committing
from support.memory_shard import MemoryShard
from support.waiting import eventually


async def commit(node: GroupNode, group_id: str, offset: int) -> None:
    assert await node.groups.commit_offsets(committing(group_id, ("orders", 0, offset))) == [GroupError.NONE]


async def committed(node: GroupNode, group_id: str) -> int | None:
    fetched = await node.groups.fetch_offsets(group_id, None)
    assert fetched.error is GroupError.NONE
    return next((one.offset for _, _, one in fetched.offsets if one is not None), None)


def sealed(shard: MemoryShard, base_offset: int, end_offset: int) -> Segment:
    key = SegmentKey(shard.key.topic_id, shard.key.shard, 3, base_offset)
    return Segment(key, SegmentState.SEALED, None, (1, 2), (1, 2), 0, 0, end_offset)


async def lost_in_the_middle(limits: CoordinatorLimits | None = None) -> tuple[GroupNode, MemoryShard]:
    """`old` was committed before what is lost, `lost` in it, `new` behind it."""
    node = await GroupNode(limits=limits, offsets_topic_num_partitions=1).start()
    shard = node.shard_of("old")
    shard.flush_error = Unavailable("the disk is busy") if limits is not None else None  # so it is not trimmed
    await commit(node, "old", 1)
    base_offset = shard.end_offset
    await commit(node, "old", 2)
    await commit(node, "lost", 3)
    end_offset = shard.end_offset
    await commit(node, "new", 4)
    shard.lose(sealed(shard, base_offset, end_offset))
    return node, shard


@pytest.mark.fault("copy-part-group-log")
async def test_what_was_known_before_stays_and_what_came_behind_is_there() -> None:
    node, shard = await lost_in_the_middle()
    node.is_given_up = True
    await node.kill()
    assert [await committed(node, group_id) for group_id in ("old", "lost", "new")] == [1, None, 4]
    (lost,) = shard.segments
    assert node.groups.given_up == {0: ((lost.base_offset, lost.end_offset),)}
    assert node.groups.stats.incomplete_loads == 1
    await node.settle()
    assert shard.log_start_offset > (lost.end_offset or 0), "a snapshot restates what there is"
    await node.kill()
    assert [await committed(node, group_id) for group_id in ("old", "lost", "new")] == [1, None, 4]
    assert not node.groups.given_up and node.groups.stats.incomplete_loads == 0


async def test_a_snapshot_behind_it_restates_all_and_nothing_is_missed() -> None:
    node, shard = await lost_in_the_middle(CoordinatorLimits(log=LogLimits(snapshot_min_bytes=1)))
    await commit(node, "new", 5)
    await node.settle()
    assert node.groups.stats.snapshots
    node.is_given_up = True
    await node.kill()
    assert [await committed(node, group_id) for group_id in ("old", "lost", "new")] == [2, 3, 5]
    assert not node.groups.given_up and node.groups.stats.incomplete_loads == 0
    assert shard.log_start_offset == 0, "it was not cut there"


@pytest.mark.fault("copy-part-group-log")
@pytest.mark.parametrize("is_stored", [False, True])
async def test_a_node_that_may_bring_it_is_waited_for(is_stored: bool) -> None:
    """It was not given up; or it was, and the object store has it and does not answer."""
    node, shard = await lost_in_the_middle()
    (lost,) = shard.segments
    if is_stored:
        remote = RemoteCopy(RemoteState.PARTIAL, lost.end_offset or 0)
        shard.segments = (replace(lost, remote=remote),)
        node.is_given_up = True
    loading = asyncio.ensure_future(node.kill())

    async def waits() -> bool:
        return (await node.groups.describe("old")).error is GroupError.COORDINATOR_LOAD_IN_PROGRESS

    await eventually(waits)
    await node.settle()
    assert not loading.done() and not node.groups.given_up
    shard.segments, node.is_given_up = (lost,), True
    await loading
    assert await committed(node, "new") == 4


async def test_an_end_in_doubt_is_not_told_as_given_up() -> None:
    """As a restore from a snapshot leaves it: the groups are as of the snapshot, and nothing is missing."""
    node = await GroupNode(offsets_topic_num_partitions=1).start()
    shard = node.shard_of("old")
    await commit(node, "old", 1)
    doubt = GivenUp(shard.end_offset, shard.end_offset, GapReason.UNCLEAN)
    shard.segments = (replace(sealed(shard, 0, shard.end_offset), handover=Handover(given_up=(doubt,))),)
    log = io.StringIO()
    configure_logs("info", stream=log)
    await node.kill()
    configure_logs("info")
    assert await committed(node, "old") == 1
    told = [json.loads(line) for line in log.getvalue().splitlines()]
    assert not [one for one in told if one["level"] != "info"]
    assert [one for one in told if "nothing is known to be lost" in one["event"]]
