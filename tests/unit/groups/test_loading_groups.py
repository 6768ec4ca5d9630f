"""While a shard of the group log is read, members of its groups must not take that for the end of their membership."""

from __future__ import annotations

import asyncio

import pytest

from stratalog.model.groups.group import CommittedOffset, GroupError, GroupState
from stratalog.model.ids import ShardKey
from stratalog_node import backoff
from stratalog_node.groups.coordinator import CoordinatorLimits
from stratalog_node.groups.hosted import HostedGroup
from stratalog_node.groups.log import LogLimits
from stratalog_node.groups.requests import TopicShard
from support.group_node import GroupNode, committing, joining, syncing, task
from support.loop_turns import Turns
from support.waiting import eventually

OK = GroupError.NONE


async def a_coordinator_that_loads(node: GroupNode) -> None:
    """The shards are there, and their logs are being read; they stay so until `release`."""
    await node.groups.stop()
    for shard in node.shards.values():
        shard.hold()
    node.groups = node._coordinator()
    await node.groups.start()
    await node.settle()


@pytest.mark.fault("group-log-read-start")
async def test_members_live_through_the_loading_of_their_group() -> None:
    node = await GroupNode().start()
    joined = await node.groups.join(joining("g", "a"))
    await node.groups.sync(syncing("g", joined.member_id, 1))
    await a_coordinator_that_loads(node)
    assert await node.groups.heartbeat("g", joined.member_id, None, 1) is OK
    assert (await node.groups.sync(syncing("g", joined.member_id, 1))).error is GroupError.REBALANCE_IN_PROGRESS
    loading = GroupError.COORDINATOR_LOAD_IN_PROGRESS
    assert (await node.groups.join(joining("g", "b"))).error is loading
    assert await node.groups.commit_offsets(committing("g", ("orders", 0, 1))) == [loading]
    assert (await node.groups.fetch_offsets("g", [TopicShard("orders", 0)])).error is loading
    assert (await node.groups.describe("g")).error is loading
    for shard in node.shards.values():
        shard.release()
    for index in range(2):
        await node.groups.load(index)
    assert await node.groups.heartbeat("g", joined.member_id, None, 1) is OK


@pytest.mark.fault("group-log-read-start")
async def test_a_long_log_is_read_and_taken_over_in_slices() -> None:
    limits = CoordinatorLimits(log=LogLimits(append_bytes=16 << 10, read_bytes=16 << 10))
    node = await GroupNode(limits=limits, offsets_topic_num_partitions=1).start()
    node.topics.add("wide", 5_000)
    for n in range(4):
        await node.groups.commit_offsets(committing(f"g{n}", *(("wide", shard, n) for shard in range(5_000))))
    await node.groups.stop()
    node.groups = node._coordinator()
    async with Turns(lambda: node.groups.stats.offsets) as turns:
        await node.groups.start()
        await node.groups.load(0)
    assert node.groups.stats.offsets == 20_000
    assert turns.turns > 60, "the log was read in one piece"
    assert turns.most <= 5_000, "groups were taken over in one piece"


@pytest.mark.fault("taking-thousands-groups-takes")
async def test_sessions_begin_when_a_shard_is_loaded_however_long_that_takes() -> None:
    node = await GroupNode(offsets_topic_num_partitions=1).start()
    groups = [f"g{n}" for n in range(300)]
    for group_id in groups:
        joined = await node.groups.join(joining(group_id, "a"))
        await node.groups.sync(syncing(group_id, joined.member_id, 1))
        commit = committing(group_id, ("orders", 0, 5), member_id=joined.member_id, generation=1)
        assert await node.groups.commit_offsets(commit) == [OK]
    node.groups.unload(0)
    await node.settle()
    loading = task(node.groups.load(0))
    while not node.groups.stats.hosted:
        await asyncio.sleep(0)
    assert node.groups.stats.hosted < len(groups)
    await node.grow_older(20_000)
    await loading
    node.groups.membership.run_due()
    await node.settle()
    assert {(await node.groups.describe(group_id)).status.state for group_id in groups} == {GroupState.STABLE}


@pytest.mark.fault("shard-group-log-becomes")
@pytest.mark.parametrize("asks_for_a_group", [False, True])
async def test_a_shard_that_becomes_usable_without_a_change_of_metadata_is_taken_over(asks_for_a_group: bool) -> None:
    node = await GroupNode(offsets_topic_num_partitions=1).start()
    assert await node.groups.commit_offsets(committing("g", ("orders", 0, 5))) == [OK]
    node.shard_of("g").is_led = False
    node.groups.adopt()
    await node.settle()
    assert (await node.groups.fetch_offsets("g", None)).error is GroupError.NOT_COORDINATOR
    node.shard_of("g").is_led = True
    asked = (await node.groups.fetch_offsets("g", None)) if asks_for_a_group else (await node.groups.list_groups())
    assert asked.error is GroupError.COORDINATOR_LOAD_IN_PROGRESS
    await eventually(lambda: node.groups.stats.shards_loaded == 1)
    assert len((await node.groups.fetch_offsets("g", None)).offsets) == 1


async def test_nothing_is_taken_over_after_a_stop() -> None:
    node = await GroupNode(offsets_topic_num_partitions=1).start()
    await node.groups.stop()
    assert (await node.groups.fetch_offsets("g", None)).error is GroupError.NOT_COORDINATOR
    node.groups.adopt()
    assert not node.groups.stats.shards_loaded


@pytest.mark.fault("group-log-read-start")
async def test_a_shard_given_up_lets_its_groups_go_in_slices() -> None:
    node = await GroupNode(offsets_topic_num_partitions=1).start()
    for n in range(2_000):
        await node.groups.commit_offsets(committing(f"g{n}", ("orders", 0, n)))
    assert node.groups.stats.hosted == 2_000
    node.shard_of("g1").is_led = False
    async with Turns(lambda: -node.groups.stats.hosted) as turns:
        node.groups.unload(0)
        assert (await node.groups.fetch_offsets("g1", None)).error is GroupError.NOT_COORDINATOR
        await node.settle()
    assert node.groups.stats.hosted == node.groups.stats.offsets == node.groups.stats.held_bytes == 0
    assert turns.most <= 500


async def test_a_stop_right_after_a_shard_was_given_up_still_notifies_all() -> None:
    node = await GroupNode(offsets_topic_num_partitions=1).start()
    for n in range(1_200):
        await node.groups.commit_offsets(committing(f"g{n}", ("orders", 0, n)))
    joined = await node.groups.join(joining("last", "a"))
    await node.groups.sync(syncing("last", joined.member_id, 1))
    parked = task(node.groups.join(joining("last", "b")))
    await node.settle()
    node.groups.unload(0)
    await node.groups.stop()
    assert (await parked).error is GroupError.NOT_COORDINATOR
    assert node.groups.stats.hosted == 0


async def test_a_fault_while_groups_are_taken_over_is_tried_again_from_the_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backoff, "LONGEST_S", 0.05)
    node = await GroupNode(offsets_topic_num_partitions=1).start()
    for n in range(300):
        await node.groups.commit_offsets(committing(f"g{n}", ("orders", 0, n)))
    await node.groups.stop()
    node.groups = node._coordinator()
    hosting = node.groups._hosting
    real, faults = hosting._take_offsets, iter([ZeroDivisionError("a bug")])

    async def faulty(hosted: HostedGroup, offsets: dict[ShardKey, CommittedOffset]) -> None:
        if hosted.group_id == "g150" and (fault := next(faults, None)) is not None:
            raise fault
        await real(hosted, offsets)

    hosting._take_offsets = faulty  # type: ignore[method-assign]
    await node.groups.start()
    await eventually(lambda: node.groups.stats.shards_loaded == 1)
    assert node.groups.stats.hosted == node.groups.stats.offsets == 300
