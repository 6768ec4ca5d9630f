"""Writes a group again whose deletion failed: the word of it may be in the log all the same.

A restart would then read what was written behind that word, and nothing from before it. So nobody uses the group until
it stands in the log again, as a whole. That is done when somebody asks for the group, or the sweep comes by: of groups
that nobody needs, a failed deletion of thousands writes nothing.
Thread: the event loop. Cost: an append per 500 offsets.
"""

from __future__ import annotations

import asyncio

from stratalog.formats.group_log import KeyValue, encode_entry
from stratalog.model.group import GroupError
from stratalog.model.ids import ShardKey
from stratalog_node.groups.hosted import HostedGroup
from stratalog_node.groups.snapshot import LiveKey
from stratalog_node.slices import UNITS_PER_SLICE


async def restate(hosted: HostedGroup) -> GroupError:
    """NONE when the log has all of the group again; otherwise it is to be tried again."""
    if hosted.is_leaving:
        return GroupError.COORDINATOR_LOAD_IN_PROGRESS
    hosted.is_leaving = True
    hosted.writes += 1
    try:
        keys: list[ShardKey | None] = [None, *hosted.offsets]
        for start in range(0, len(keys), UNITS_PER_SLICE):
            error = await _append(hosted, [(hosted.group_id, shard) for shard in keys[start : start + UNITS_PER_SLICE]])
            if error is not GroupError.NONE:
                return error
        hosted.is_doubtful = False
        return GroupError.NONE
    finally:
        hosted.is_leaving = False
        hosted.writes -= 1


async def _append(hosted: HostedGroup, keys: list[LiveKey]) -> GroupError:
    entries = [hosted.shard.live_entry(key) for key in keys]
    pairs: list[KeyValue] = [encode_entry(entry) for entry in entries if entry is not None]
    outcome: asyncio.Future[GroupError] = asyncio.get_running_loop().create_future()

    def done(error: GroupError) -> None:
        if not outcome.done():
            outcome.set_result(error)

    log = hosted.shard.log
    assert log is not None, "a group is hosted only by a loaded shard"
    if pairs:
        log.submit(pairs, done)
    else:
        done(GroupError.NONE)
    return await outcome
