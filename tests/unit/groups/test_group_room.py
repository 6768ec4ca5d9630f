"""What groups hold is bounded in bytes, whatever clients choose to send many of, and nothing refused leaves a trace."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Awaitable, Callable

import pytest

from stratalog.model.groups.group import GroupError, GroupState, MemberProtocol
from stratalog_node.groups.coordinator import CoordinatorLimits
from stratalog_node.groups.hosted import HostedGroup
from stratalog_node.groups.log import LogLimits
from stratalog_node.groups.requests import CommitRequest, OffsetToCommit, TopicShard
from stratalog_node.groups.room import RoomLimits
from support.group_node import GroupNode, committing, joining, syncing, task

OK = GroupError.NONE
FULL = GroupError.GROUP_MAX_SIZE_REACHED


def small(max_bytes: int = 200_000, max_group_offset_bytes: int = 1 << 30) -> CoordinatorLimits:
    return CoordinatorLimits(room=RoomLimits(max_bytes, max_group_offset_bytes))


def counted(node: GroupNode) -> int:
    hosted: list[HostedGroup] = list(node.groups._hosting.hosted())
    return sum(group.machine.size_bytes + group.offset_bytes for group in hosted)


# Nothing refused stays ----------------------------------------------------------------------------------------------
@pytest.mark.fault("commits-joins-refused")
async def test_refused_commits_leave_no_groups() -> None:
    node = await GroupNode(offset_metadata_max_bytes=8).start()
    for n in range(50):
        assert await node.groups.commit_offsets(committing(f"g{n}", ("nowhere", 0, 5))) == [
            GroupError.UNKNOWN_TOPIC_OR_PARTITION
        ]
        await node.groups.commit_offsets(committing(f"h{n}", ("orders", 0, 10**12)))
        await node.groups.commit_offsets(CommitRequest(f"i{n}", ()))
    assert node.groups.stats.hosted == node.groups.stats.held_bytes == 0


@pytest.mark.fault("commits-joins-refused")
async def test_refused_joins_leave_no_groups() -> None:
    node = await GroupNode().start()
    for n in range(50):
        assert (await node.groups.join(joining(f"g{n}", "a", session_timeout_ms=1))).error is not OK
        assert (await node.groups.join(joining(f"g{n}", "a", protocols=()))).error is not OK
    assert node.groups.stats.hosted == node.groups.stats.held_bytes == 0


@pytest.mark.fault("clients-send-groups-members")
@pytest.mark.parametrize("group_id", ["x" * 70_000, "ü" * 2_100])
async def test_a_group_id_that_is_too_long_is_refused_by_everyone(group_id: str) -> None:
    node = await GroupNode().start()
    refused = GroupError.INVALID_GROUP_ID
    assert await node.groups.commit_offsets(committing(group_id, ("orders", 0, 5))) == [refused]
    assert (await node.groups.join(joining(group_id, "a"))).error is refused
    assert (await node.groups.sync(syncing(group_id, "a", 1))).error is refused
    assert await node.groups.heartbeat(group_id, "a", None, 1) is refused
    assert (await node.groups.leave(group_id, []))[0] is refused
    assert (await node.groups.fetch_offsets(group_id, None)).error is refused
    assert (await node.groups.delete_offsets(group_id, [TopicShard("orders", 0)])).error is refused
    assert (await node.groups.describe(group_id)).error is refused
    assert await node.groups.delete_groups([group_id]) == {group_id: refused}
    await node.groups.sweep()
    assert node.groups.stats.hosted == 0


async def test_names_that_the_log_has_no_room_for_are_refused() -> None:
    node = await GroupNode().start()
    assert (await node.groups.join(joining("g", "a", instance_id="i" * 40_000))).error is GroupError.INVALID_REQUEST
    long = (MemberProtocol("p" * 40_000, b""),)
    assert (await node.groups.join(joining("g", "a", protocols=long))).error is GroupError.INVALID_REQUEST
    many = tuple(MemberProtocol(f"p{n}", b"") for n in range(1_001))
    assert (await node.groups.join(joining("g", "a", protocols=many))).error is GroupError.INVALID_REQUEST
    assert node.groups.stats.hosted == 0


# Bytes --------------------------------------------------------------------------------------------------------------
@pytest.mark.fault("clients-send-groups-members")
async def test_offsets_are_bounded_by_their_bytes() -> None:
    node = await GroupNode(limits=small(), offset_metadata_max_bytes=100_000).start()
    large = OffsetToCommit("orders", 0, 5, -1, "x" * 90_000)
    assert await node.groups.commit_offsets(CommitRequest("g", (large, large))) == [OK, OK]
    refused = await node.groups.commit_offsets(CommitRequest("h", (large._replace(metadata="y" * 120_000),)))
    assert refused == [GroupError.OFFSET_METADATA_TOO_LARGE]
    both = (large._replace(shard=1), large._replace(shard=2), OffsetToCommit("orders", 3, 5, -1, ""))
    assert await node.groups.commit_offsets(CommitRequest("g", both)) == [OK, GroupError.INVALID_COMMIT_OFFSET_SIZE, OK]
    assert await node.groups.commit_offsets(CommitRequest("g", both[:1])) == [OK], "the same again needs no room"
    assert node.groups.stats.held_bytes == counted(node) < 200_000
    await node.groups.delete_offsets("g", [TopicShard("orders", 0)])
    assert await node.groups.commit_offsets(CommitRequest("h", (large,))) == [OK]
    assert node.groups.stats.held_bytes == counted(node)


@pytest.mark.fault("clients-send-groups-members")
async def test_assignments_count_while_their_request_is_parked() -> None:
    node = await GroupNode(limits=small()).start()
    joins = [task(node.groups.join(joining("g", client))) for client in "abc"]
    await node.settle()
    first = await joins[0]
    again = task(node.groups.join(joining("g", "a", first.member_id)))
    leader, *followers = [await join for join in (again, *joins[1:])]
    large = {"nobody": b"x" * 120_000}
    parked = task(node.groups.sync(syncing("g", followers[0].member_id, leader.generation, **large)))
    await node.settle()
    refused = await node.groups.sync(syncing("g", followers[1].member_id, leader.generation, **large))
    assert refused.error is GroupError.COORDINATOR_NOT_AVAILABLE and not parked.done()
    assert (await node.groups.sync(syncing("g", leader.member_id, leader.generation))).error is OK
    assert (await parked).error is OK
    assert node.groups.stats.held_bytes == counted(node)


async def test_the_offsets_of_one_group_are_bounded_too() -> None:
    node = await GroupNode(limits=small(10**9, 1_000)).start()
    errors = await node.groups.commit_offsets(committing("g", *(("orders", shard, 5) for shard in range(4))))
    assert errors == [OK, OK, OK, GroupError.INVALID_COMMIT_OFFSET_SIZE]
    assert await node.groups.commit_offsets(committing("h", ("orders", 0, 5))) == [OK]


@pytest.mark.fault("clients-send-groups-members")
async def test_members_are_bounded_by_their_bytes_over_all_groups() -> None:
    node = await GroupNode(limits=small()).start()
    large = (MemberProtocol("range", b"x" * 80_000),)
    joined = [(await node.groups.join(joining(f"g{n}", "a", protocols=large))) for n in range(4)]
    assert [answer.error for answer in joined] == [OK, OK, FULL, FULL]
    assert node.groups.stats.hosted == 2
    again = await node.groups.join(joining("g0", "a", joined[0].member_id, protocols=large))
    assert again.error is OK, "a member that is here already was refused"
    synced = await node.groups.sync(syncing("g0", joined[0].member_id, again.generation, a=b"x" * 80_000))
    assert synced.error is GroupError.COORDINATOR_NOT_AVAILABLE
    assert node.groups.stats.held_bytes == counted(node)


@pytest.mark.fault("clients-send-groups-members")
async def test_names_of_protocols_count_as_well() -> None:
    node = await GroupNode(limits=small()).start()
    names = tuple(MemberProtocol(str(n) + "p" * 300, b"") for n in range(900))
    assert (await node.groups.join(joining("g", "a", protocols=names))).error is FULL


async def test_a_group_that_grows_too_large_refuses_members() -> None:
    node = await GroupNode().start()
    large = (MemberProtocol("range", b"x" * (5 << 20)),)
    waiting = [task(node.groups.join(joining("g", f"c{n}", protocols=large))) for n in range(3)]
    await node.settle()
    await node.wait(30_001)
    errors = [(await answer).error for answer in waiting]
    assert errors.count(FULL) == 1


@pytest.mark.fault("clients-send-groups-members")
async def test_what_waits_for_the_log_is_bounded_over_all_shards() -> None:
    limits = CoordinatorLimits(log=LogLimits(max_pending_bytes=2_000))
    node = await GroupNode(limits=limits, offsets_topic_num_partitions=8).start()
    for shard in node.shards.values():
        shard.hold()
    commits = [task(node.groups.commit_offsets(committing(f"g{n}", ("orders", 0, n)))) for n in range(60)]
    await node.settle()
    assert sum(commit.done() for commit in commits) >= 25
    for shard in node.shards.values():
        shard.release()
    outcomes = [(await commit)[0] for commit in commits]
    assert set(outcomes) == {OK, GroupError.COORDINATOR_NOT_AVAILABLE}
    assert node.groups._hosting._backlog.size_bytes == 0
    assert await node.groups.commit_offsets(committing("later", ("orders", 0, 5))) == [OK]


async def test_a_snapshot_of_large_groups_is_written_in_pieces_of_bounded_size() -> None:
    limits = CoordinatorLimits(log=LogLimits(snapshot_min_bytes=400_000, append_bytes=20_000))
    node = await GroupNode(limits=limits, offsets_topic_num_partitions=1).start()
    for n in range(60):
        joined = await node.groups.join(joining(f"g{n}", "a"))
        await node.groups.sync(syncing(f"g{n}", joined.member_id, 1, **{joined.member_id: b"x" * 10_000}))
    await node.settle()
    assert node.groups.stats.snapshots >= 1
    shard = node.shard_of("g0")
    assert max(len(data) for _, data in shard.batches) < 35_000
    await node.kill()
    assert node.groups.stats.hosted == 60 and node.groups.stats.incomplete_loads == 0


# Leaving ------------------------------------------------------------------------------------------------------------
@pytest.mark.fault("commits-joins-refused")
async def test_a_group_that_left_is_in_no_heap() -> None:
    node = await GroupNode(offsets_topic_num_partitions=1).start()
    deadlines = node.groups.membership._deadlines
    for n in range(200):
        joined = await node.groups.join(joining(f"g{n}", "a", session_timeout_ms=1_000_000))
        await node.groups.sync(syncing(f"g{n}", joined.member_id, 1))
    assert len(deadlines) == 200
    node.groups.unload(0)
    await node.settle()
    assert len(deadlines) == node.groups.stats.held_bytes == node.groups.stats.hosted == 0
    assert len(deadlines._heap) < 100


async def test_counts_are_right_over_a_groups_whole_life() -> None:
    node = await GroupNode().start()
    joined = await node.groups.join(joining("g", "a", instance_id="i"))
    await node.groups.sync(syncing("g", joined.member_id, 1, **{joined.member_id: b"work" * 9}))
    commit = committing("g", ("orders", 0, 5), ("clicks", 0, 6), member_id=joined.member_id, generation=1)
    await node.groups.commit_offsets(commit)
    back = await node.groups.join(joining("g", "another", instance_id="i"))
    assert back.error is OK
    assert node.groups.stats.held_bytes == counted(node) > 0
    await node.kill()
    assert node.groups.stats.held_bytes == counted(node) > 0
    await node.wait(10_001)
    assert (await node.groups.describe("g")).status.state is GroupState.EMPTY
    assert node.groups.stats.held_bytes == counted(node) > 0
    await node.groups.delete_groups(["g"])
    assert node.groups.stats.held_bytes == node.groups.stats.hosted == 0


# Is the estimate true? ----------------------------------------------------------------------------------------------
async def many_offsets(node: GroupNode) -> None:
    wide = tuple(OffsetToCommit("wide", shard, shard * 1_000, 3, "") for shard in range(4_000))
    for n in range(3):
        await node.groups.commit_offsets(CommitRequest(f"g{n}", wide))


async def much_metadata(node: GroupNode) -> None:
    wide = tuple(OffsetToCommit("wide", shard, shard, 3, f"{shard}" + "ü" * 1_500) for shard in range(1_000))
    await node.groups.commit_offsets(CommitRequest("g", wide))


async def many_groups(node: GroupNode) -> None:
    for n in range(1_000):
        joined = await node.groups.join(joining(f"g{n}", f"client-{n}"))
        await node.groups.sync(syncing(f"g{n}", joined.member_id, 1, **{joined.member_id: b"work" * 20}))


async def ids_never_used(node: GroupNode) -> None:
    for n in range(2_000):
        await node.groups.join(joining(f"g{n % 9}", f"client-{n}", requires_known_id=True))


@pytest.mark.fault("clients-send-groups-members")
@pytest.mark.parametrize("fill", [many_offsets, much_metadata, many_groups, ids_never_used])
async def test_what_is_counted_is_about_what_is_held(fill: Callable[[GroupNode], Awaitable[None]]) -> None:
    node = await GroupNode(offsets_topic_num_partitions=1).start()
    node.topics.add("wide", 4_000)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        await fill(node)
        for shard in node.shards.values():
            shard.batches.clear()
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert held < 1.25 * node.groups.stats.held_bytes
    assert node.groups.stats.held_bytes < 4 * held
