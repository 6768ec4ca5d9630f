"""What expiry may rely on: only what is in the log, and a clock that cannot jump."""

from __future__ import annotations

import pytest

from stratalog.machines.groups.group_events import LeavingMember
from stratalog.model.errors import Unavailable
from stratalog.model.groups.group import GroupError, GroupState
from support.group_node import GroupNode, committing, joining, syncing, task

DAY_MS = 24 * 3_600_000
OK = GroupError.NONE


async def offsets(node: GroupNode, group_id: str) -> dict[tuple[str, int], int]:
    fetched = await node.groups.fetch_offsets(group_id, None)
    assert fetched.error is OK
    return {(topic, shard): committed.offset for topic, shard, committed in fetched.offsets if committed}


async def sweep(node: GroupNode) -> None:
    await node.groups.sweep()
    await node.settle()


async def a_group_that_lost_its_member_unrecorded(node: GroupNode) -> None:
    """Its offset was committed 30 days ago, its last member left just now, and the log does not know that."""
    joined = await node.groups.join(joining("g", "a", session_timeout_ms=60_000))
    await node.groups.sync(syncing("g", joined.member_id, 1))
    commit = committing("g", ("orders", 0, 5), member_id=joined.member_id, generation=1)
    assert await node.groups.commit_offsets(commit) == [OK]
    await node.grow_older(30 * DAY_MS)
    node.shard_of("g").fail(Unavailable("no room"))
    await node.wait(60_001)
    assert (await node.groups.describe("g")).status.state is GroupState.EMPTY
    assert node.groups.stats.append_failures == 1


@pytest.mark.fault("record-last-member-left")
async def test_a_failed_record_of_the_last_member_leaving_costs_no_offsets() -> None:
    node = await GroupNode().start()
    await a_group_that_lost_its_member_unrecorded(node)
    await sweep(node)
    assert await offsets(node, "g") == {("orders", 0): 5}, "offsets of a group that just lost its members expired"
    await node.grow_older(6 * DAY_MS)
    await sweep(node)
    assert await offsets(node, "g") == {("orders", 0): 5}
    await node.grow_older(DAY_MS)
    await sweep(node)
    assert await offsets(node, "g") == {}


@pytest.mark.fault("record-last-member-left")
async def test_the_record_that_failed_is_written_again() -> None:
    node = await GroupNode().start()
    await a_group_that_lost_its_member_unrecorded(node)
    await sweep(node)
    await node.kill()
    assert (await node.groups.describe("g")).status.state is GroupState.EMPTY


@pytest.mark.fault("offset-expires-newer-commit")
async def test_an_acknowledged_commit_outlives_the_expiry_of_its_predecessor() -> None:
    node = await GroupNode().start()
    await node.groups.commit_offsets(committing("g", ("orders", 0, 5), ("clicks", 0, 5)))
    await node.grow_older(8 * DAY_MS)
    node.shard_of("g").hold()
    commit = task(node.groups.commit_offsets(committing("g", ("orders", 0, 6))))
    await node.settle()
    await sweep(node)
    node.shard_of("g").release()
    assert await commit == [OK]
    await node.settle()
    assert await offsets(node, "g") == {("orders", 0): 6}
    await node.kill()
    assert await offsets(node, "g") == {("orders", 0): 6}


@pytest.mark.fault("wall-clock-jumps-ahead")
async def test_a_clock_that_jumps_ahead_expires_nothing_at_once() -> None:
    node = await GroupNode().start()
    await node.groups.commit_offsets(committing("g", ("orders", 0, 5)))
    node.wall_ms += 30 * DAY_MS
    await sweep(node)
    assert await offsets(node, "g") == {("orders", 0): 5}
    await node.kill()
    await sweep(node)
    assert await offsets(node, "g") == {("orders", 0): 5}, "a restart believed the clock"
    node.wall_ms -= 30 * DAY_MS
    await node.grow_older(7 * DAY_MS)
    await sweep(node)
    assert await offsets(node, "g") == {}


@pytest.mark.fault("wall-clock-jumps-ahead")
async def test_what_is_committed_while_the_clock_is_set_back_does_not_expire_when_it_is_set_right() -> None:
    node = await GroupNode().start()
    joined = await node.groups.join(joining("g", "a", session_timeout_ms=60_000))
    await node.groups.sync(syncing("g", joined.member_id, 1))
    commit = committing("g", ("orders", 0, 5), member_id=joined.member_id, generation=1)
    assert await node.groups.commit_offsets(commit) == [OK]
    node.wall_ms -= 30 * DAY_MS
    assert await node.groups.commit_offsets(committing("h", ("orders", 0, 5))) == [OK]
    await node.groups.leave("g", [LeavingMember(joined.member_id, None)])
    await node.settle()
    node.wall_ms += 30 * DAY_MS
    await sweep(node)
    for group_id in ("g", "h"):
        assert await offsets(node, group_id) == {("orders", 0): 5}


@pytest.mark.fault("search-expired-offsets-fails")
async def test_one_group_that_cannot_be_swept_does_not_keep_the_others() -> None:
    node = await GroupNode(offsets_topic_num_partitions=1).start()
    for group_id in ("a", "b", "c"):
        await node.groups.commit_offsets(committing(group_id, ("orders", 0, 5)))
    await node.grow_older(8 * DAY_MS)
    broken = node.groups._hosting._shards[0].groups["a"]
    broken.offsets = {key: found._replace(committed_ms="?") for key, found in broken.offsets.items()}  # type: ignore[arg-type]
    await sweep(node)
    assert set(node.groups._hosting._shards[0].groups) == {"a"}
