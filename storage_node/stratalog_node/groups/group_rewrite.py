"""Writes a group to the log again after its deletion failed: the failed tombstone may be in the log nevertheless.

A restart would then read only what was written behind the tombstone. So the group is not used until the log holds all
of it again. It is written when a client asks for the group or the sweep reaches it; if the deletion of thousands of
unused groups fails, nothing is written for them.
Thread: the event loop. Cost: an append per 500 offsets.
"""

from __future__ import annotations

import asyncio

from stratalog.formats.groups.group_log import KeyValue, encode_entry
from stratalog.model.groups.group import GroupError
from stratalog.model.ids import ShardKey
from stratalog_node.groups.hosted import HostedGroup
from stratalog_node.groups.snapshot import LiveKey
from stratalog_node.slices import UNITS_PER_SLICE


async def rewrite_group(hosted: HostedGroup) -> GroupError:
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
