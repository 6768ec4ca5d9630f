"""A group's deletion that failed may be in its log nevertheless: a client that then uses the group loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from stratalog.model.errors import OutcomeUnknown
from stratalog.model.groups.group import GroupError
from stratalog_node.groups.coordinator import CoordinatorLimits
from stratalog_node.groups.log import LogLimits
from support.group_node import GroupNode, committing, joining, syncing

OK = GroupError.NONE
AGAIN = GroupError.COORDINATOR_LOAD_IN_PROGRESS
DAY_MS = 86_400_000
LOST = OutcomeUnknown("the disk hung: read before acting again")


async def offsets(node: GroupNode, group_id: str) -> dict[tuple[str, int], int]:
    for _ in range(200):
        fetched = await node.groups.fetch_offsets(group_id, None)
        if fetched.error is not AGAIN:
            break
        await asyncio.sleep(0)
    assert fetched.error is OK
    return {(found.topic, found.shard): found.committed.offset for found in fetched.offsets if found.committed}


async def committed(node: GroupNode, *places: tuple[str, int, int]) -> None:
    """As a client does it: again while the error is retriable."""
    for _ in range(200):
        answers = await node.groups.commit_offsets(committing("g", *places))
        if AGAIN not in answers:
            break
        await asyncio.sleep(0)
    assert set(answers) == {OK}


async def by_request(node: GroupNode) -> None:
    assert await node.groups.delete_groups(["g"]) == {"g": GroupError.COORDINATOR_NOT_AVAILABLE}


async def by_expiry(node: GroupNode) -> None:
    await node.grow_older(8 * DAY_MS)
    await node.groups.sweep()
    await node.settle()


@pytest.mark.fault("group-deletion-requested-expiry")
@pytest.mark.parametrize("fails", [by_request, by_expiry])
async def test_a_deletion_that_is_in_the_log_though_it_failed_costs_no_offsets_of_a_group_in_use(
    fails: Callable[[GroupNode], Awaitable[None]],
) -> None:
    node = await GroupNode().start()
    many = tuple(("orders", shard, 5) for shard in range(4))
    await committed(node, *many, ("clicks", 0, 1))
    node.shard_of("g").fail(LOST)
    await fails(node)
    await committed(node, ("clicks", 0, 2))
    await node.kill()
    assert await offsets(node, "g") == {**{("orders", shard): 5 for shard in range(4)}, ("clicks", 0): 2}


@pytest.mark.fault("group-deletion-requested-expiry")
async def test_members_that_come_after_a_failed_deletion_lose_no_offsets() -> None:
    node = await GroupNode().start()
    await committed(node, ("orders", 0, 5))
    node.shard_of("g").fail(LOST)
    await by_request(node)
    assert (await node.groups.join(joining("g", "a"))).error is AGAIN
    await node.settle()
    joined = await node.groups.join(joining("g", "a"))
    assert (await node.groups.sync(syncing("g", joined.member_id, joined.generation))).error is OK
    await node.kill()
    assert await offsets(node, "g") == {("orders", 0): 5}


@pytest.mark.fault("group-deletion-requested-expiry")
async def test_a_group_is_not_used_before_it_is_in_the_log_again() -> None:
    node = await GroupNode().start()
    await committed(node, ("orders", 0, 5))
    shard = node.shard_of("g")
    shard.fail(LOST, LOST, LOST)
    await by_request(node)
    for _ in range(2):
        assert (await node.groups.fetch_offsets("g", None)).error is AGAIN
        await node.settle()
    assert await offsets(node, "g") == {("orders", 0): 5}
    await node.kill()
    assert await offsets(node, "g") == {("orders", 0): 5}


@pytest.mark.fault("group-deletion-requested-expiry")
async def test_failed_deletions_of_unused_groups_write_nothing_until_the_sweep() -> None:
    node = await GroupNode(offsets_topic_num_partitions=1).start()
    for n in range(30):
        assert await node.groups.commit_offsets(committing(f"g{n}", ("orders", 0, 5))) == [OK]
    shard = node.shard_of("g0")
    shard.fail(LOST)
    await node.groups.delete_groups([f"g{n}" for n in range(30)])
    appends = shard.appends
    await node.settle()
    assert shard.appends == appends
    await node.groups.sweep()
    await node.kill()
    for n in range(30):
        assert await offsets(node, f"g{n}") == {("orders", 0): 5}


@pytest.mark.fault("group-deletion-requested-expiry")
async def test_a_failed_deletion_may_be_repeated() -> None:
    node = await GroupNode().start()
    await committed(node, ("orders", 0, 5))
    node.shard_of("g").fail(LOST)
    await by_request(node)
    assert await node.groups.delete_groups(["g"]) == {"g": AGAIN}
    await node.settle()
    assert await node.groups.delete_groups(["g"]) == {"g": OK}
    assert node.groups.stats.hosted == node.groups.stats.offsets == node.groups.stats.held_bytes == 0


@pytest.mark.fault("group-deletion-requested-expiry")
async def test_a_large_group_is_rewritten_in_pieces() -> None:
    node = GroupNode(
        offsets_topic_num_partitions=1, limits=CoordinatorLimits(log=LogLimits(max_pending_bytes=2_000_000))
    )
    node.topics.add("wide", 2_000)
    node.groups = node._coordinator()
    await node.start()
    await committed(node, *(("wide", shard, 5) for shard in range(2_000)))
    shard = node.shard_of("g")
    shard.fail(LOST)
    await by_request(node)
    appends = shard.appends
    assert len(await offsets(node, "g")) == 2_000
    assert shard.appends - appends >= 4
    await node.kill()
    assert len(await offsets(node, "g")) == 2_000
