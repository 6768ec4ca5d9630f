"""The coordinator's members over real time heap and group log: answers, waiting, restarts, moves."""

from __future__ import annotations

import asyncio

import pytest

from stratalog.machines.groups.group_events import JoinAnswer, LeavingMember
from stratalog.model.errors import OutcomeUnknown, Unavailable
from stratalog.model.groups.group import GroupError, GroupState
from stratalog_node.groups.coordinator import CoordinatorLimits
from support.group_node import GroupNode, committing, joining, syncing, task
from support.waiting import eventually


async def stable(node: GroupNode, group_id: str, *clients: str) -> list[JoinAnswer]:
    """A stable group of these clients, each with its own name as its work."""
    first = await node.groups.join(joining(group_id, clients[0]))
    answers = [first]
    if len(clients) > 1:
        parked = [task(node.groups.join(joining(group_id, client))) for client in clients[1:]]
        await node.settle()
        answers = [await node.groups.join(joining(group_id, clients[0], first.member_id))]
        answers += await asyncio.gather(*parked)
    leader = answers[0]
    work = {answer.member_id: client.encode() for answer, client in zip(answers, clients, strict=True)}
    for answer, client in zip(answers, clients, strict=True):
        given = work if answer is leader else {}
        synced = await node.groups.sync(syncing(group_id, answer.member_id, answer.generation, **given))
        assert (synced.error, synced.assignment) == (GroupError.NONE, client.encode())
    return answers


async def test_the_first_request_of_all_makes_the_internal_topic() -> None:
    node = GroupNode()
    await node.groups.start()
    assert node.groups.shard_key_of("g") is None
    joined = await node.groups.join(joining("g", "a"))
    assert (joined.error, joined.generation) == (GroupError.NONE, 1)
    topic = node.topics.topic("__consumer_offsets")
    assert topic is not None and topic.is_internal and topic.shard_count == 2
    assert topic.settings["retention.ms"] == "-1", "age must never trim group offsets"


async def test_members_share_the_work_and_stay() -> None:
    node = await GroupNode().start()
    a, b = await stable(node, "g", "a", "b")
    assert (a.leader, b.leader) == (a.member_id, a.member_id)
    assert len(a.members) == 2 and not b.members
    assert await node.groups.heartbeat("g", b.member_id, None, b.generation) is GroupError.NONE
    described = await node.groups.describe("g")
    assert described.status.state is GroupState.STABLE
    assert [member.assignment for member in described.status.members] == [b"a", b"b"]


async def test_a_silent_member_is_removed_by_the_one_alarm() -> None:
    node = await GroupNode().start()
    a, b = await stable(node, "g", "a", "b")
    await node.wait(9_000)
    assert await node.groups.heartbeat("g", a.member_id, None, a.generation) is GroupError.NONE
    await node.wait(1_001)
    error = await node.groups.heartbeat("g", a.member_id, None, a.generation)
    assert error is GroupError.REBALANCE_IN_PROGRESS
    assert await node.groups.heartbeat("g", b.member_id, None, b.generation) is GroupError.UNKNOWN_MEMBER_ID


async def test_the_alarm_rings_by_itself() -> None:
    node = await GroupNode(group_initial_rebalance_delay_ms=20).start()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    node.groups.membership._monotonic_ms = lambda: 50_000 + int((loop.time() - begun) * 1_000)
    joined = await asyncio.wait_for(node.groups.join(joining("g", "a", rebalance_timeout_ms=20)), 5)
    assert joined.generation == 1


async def test_members_continue_after_a_kill() -> None:
    node = await GroupNode().start()
    a, b = await stable(node, "g", "a", "b")
    await node.kill()
    for member in (a, b):
        assert await node.groups.heartbeat("g", member.member_id, None, member.generation) is GroupError.NONE
    again = await node.groups.sync(syncing("g", b.member_id, b.generation))
    assert again.assignment == b"b"
    errors = await node.groups.commit_offsets(
        committing("g", ("orders", 0, 7), member_id=b.member_id, generation=b.generation)
    )
    assert errors == [GroupError.NONE]


async def test_an_emptied_group_stays_empty_after_a_kill_and_counts_on() -> None:
    node = await GroupNode().start()
    (a,) = await stable(node, "g", "a")
    assert await node.groups.leave("g", [LeavingMember(a.member_id, None)]) == (GroupError.NONE, (GroupError.NONE,))
    await node.settle()
    await node.kill()
    assert (await node.groups.describe("g")).status.state is GroupState.EMPTY
    assert (await node.groups.join(joining("g", "b"))).generation == 3


async def test_assignments_wait_for_the_log() -> None:
    node = await GroupNode().start()
    a = await node.groups.join(joining("g", "a"))
    shard = node.shard_of("g")
    shard.hold()
    syncs = task(node.groups.sync(syncing("g", a.member_id, 1, **{a.member_id: b"work"})))
    await node.settle()
    assert not syncs.done(), "an assignment was given out before it was durable"
    shard.release()
    assert (await syncs).assignment == b"work"


@pytest.mark.parametrize("failure", [Unavailable("too few replicas: wait"), OutcomeUnknown("lost: read again")])
async def test_assignments_that_cannot_be_written_are_refused_and_the_members_try_again(failure: Exception) -> None:
    node = await GroupNode().start()
    a = await node.groups.join(joining("g", "a"))
    node.shard_of("g").fail(failure)  # type: ignore[arg-type]
    refused = await node.groups.sync(syncing("g", a.member_id, 1, **{a.member_id: b"work"}))
    assert refused.error is GroupError.COORDINATOR_NOT_AVAILABLE
    again = await node.groups.join(joining("g", "a", a.member_id))
    taken = await node.groups.sync(syncing("g", a.member_id, again.generation, **{a.member_id: b"work"}))
    assert (again.generation, taken.assignment) == (2, b"work")


async def test_waiting_members_hear_that_leadership_moved_and_the_group_continues_elsewhere() -> None:
    node = await GroupNode().start()
    (a,) = await stable(node, "g", "a")
    parked = task(node.groups.join(joining("g", "b")))
    await node.settle()
    shard = node.shard_of("g")
    shard.is_led = False
    node.groups.adopt()
    assert (await parked).error is GroupError.NOT_COORDINATOR
    assert await node.groups.heartbeat("g", a.member_id, None, 1) is GroupError.NOT_COORDINATOR
    shard.is_led = True
    node.groups.adopt()
    assert (await node.groups.join(joining("g", "b"))).error is GroupError.COORDINATOR_LOAD_IN_PROGRESS
    await node.groups.load(shard.key.shard)
    assert await node.groups.heartbeat("g", a.member_id, None, 1) is GroupError.NONE


async def test_a_fenced_append_gives_the_shard_up() -> None:
    node = await GroupNode().start()
    (a,) = await stable(node, "g", "a")
    node.shard_of("g").is_led = False
    errors = await node.groups.commit_offsets(
        committing("g", ("orders", 0, 1), member_id=a.member_id, generation=a.generation)
    )
    assert errors == [GroupError.NOT_COORDINATOR]
    assert await node.groups.heartbeat("g", a.member_id, None, 1) is GroupError.NOT_COORDINATOR


async def test_a_client_that_hangs_up_leaves_no_trace() -> None:
    node = await GroupNode().start()
    await stable(node, "g", "a")
    parked = task(node.groups.join(joining("g", "b")))
    await node.settle()
    parked.cancel()
    await asyncio.gather(parked, return_exceptions=True)
    assert not node.groups.membership._waiters
    await node.wait(30_001)
    assert (await node.groups.describe("g")).status.state is not GroupState.STABLE


async def test_ids_that_are_never_used_leave_no_group_behind() -> None:
    node = await GroupNode().start()
    told = await node.groups.join(joining("g", "a", requires_known_id=True))
    assert told.error is GroupError.MEMBER_ID_REQUIRED and told.member_id == "a-1"
    assert node.groups.stats.hosted == 1
    await node.wait(10_001)
    assert node.groups.stats.hosted == 0


async def test_groups_are_bounded() -> None:
    node = await GroupNode(limits=CoordinatorLimits(max_groups=1)).start()
    await stable(node, "g", "a")
    assert (await node.groups.join(joining("h", "a"))).error is GroupError.GROUP_MAX_SIZE_REACHED
    assert await node.groups.commit_offsets(committing("h", ("orders", 0, 1))) == [GroupError.GROUP_MAX_SIZE_REACHED]


async def test_a_group_needs_a_name() -> None:
    node = await GroupNode().start()
    assert (await node.groups.join(joining("", "a"))).error is GroupError.INVALID_GROUP_ID
    assert await node.groups.heartbeat("", "a", None, 1) is GroupError.INVALID_GROUP_ID


async def test_unknown_members_get_an_error() -> None:
    node = await GroupNode().start()
    assert (await node.groups.join(joining("g", "a", "a-9"))).error is GroupError.UNKNOWN_MEMBER_ID
    assert (await node.groups.sync(syncing("g", "a-9", 1))).error is GroupError.UNKNOWN_MEMBER_ID
    assert await node.groups.leave("g", [LeavingMember("a-9", None)]) == (
        GroupError.NONE,
        (GroupError.UNKNOWN_MEMBER_ID,),
    )
    assert node.groups.stats.hosted == 0, "a stranger's request made a group"


async def test_groups_are_listed_by_state() -> None:
    node = await GroupNode().start()
    await stable(node, "g", "a")
    await node.groups.commit_offsets(committing("alone", ("orders", 0, 1)))
    everything = await node.groups.list_groups()
    assert {(group.group_id, group.state) for group in everything.groups} == {("g", "Stable"), ("alone", "Empty")}
    assert [group.group_id for group in (await node.groups.list_groups(["stable"])).groups] == ["g"]
    assert (await node.groups.describe("nobody")).status.state is GroupState.DEAD


async def test_a_long_client_name_does_not_break_the_log() -> None:
    node = await GroupNode().start()
    (a,) = await stable(node, "g", "x" * 32_000)
    await node.kill()
    assert await node.groups.heartbeat("g", a.member_id, None, 1) is GroupError.NONE


async def test_a_coordinator_that_stops_answers_everyone() -> None:
    node = await GroupNode().start()
    await stable(node, "g", "a")
    parked = task(node.groups.join(joining("g", "b")))
    await node.settle()
    await node.groups.stop()
    assert (await parked).error is GroupError.NOT_COORDINATOR


async def test_a_shard_that_cannot_be_read_keeps_its_groups_waiting_and_recovers() -> None:
    node = await GroupNode().start()
    await stable(node, "g", "a")
    shard = node.shard_of("g")
    await node.groups.stop()
    node.groups = node._coordinator()
    shard.fail(Unavailable("no leader yet"), OutcomeUnknown("lost"))
    await node.groups.start()
    assert (await node.groups.join(joining("g", "b"))).error is GroupError.COORDINATOR_LOAD_IN_PROGRESS
    assert (await node.groups.list_groups()).error is GroupError.COORDINATOR_LOAD_IN_PROGRESS
    await eventually(lambda: node.groups.stats.shards_loaded == 2)
    assert (await node.groups.describe("g")).status.state is GroupState.STABLE
