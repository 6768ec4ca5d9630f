"""Committed offsets: which commits are accepted, what is read back, what a kill keeps, what expires."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from stratalog.model.commands.table_commands import CreateTopic
from stratalog.model.errors import OutcomeUnknown, Unavailable
from stratalog.model.groups.group import GroupError, GroupState, MemberProtocol
from stratalog.model.topic import Topic
from stratalog_node.groups import log_topic
from stratalog_node.groups.requests import TopicShard
from support.group_node import GroupNode, committing, joining, subscription, syncing, task

DAY_MS = 24 * 3_600_000
OK = GroupError.NONE


async def offsets(node: GroupNode, group_id: str) -> dict[tuple[str, int], int]:
    """Everything the group has committed."""
    fetched = await node.groups.fetch_offsets(group_id, None)
    assert fetched.error is OK
    return {(topic, shard): committed.offset for topic, shard, committed in fetched.offsets if committed}


async def member(node: GroupNode, group_id: str, *topics: str) -> str:
    """A stable group of one member, subscribed to these topics."""
    protocols = (MemberProtocol("range", subscription(*topics)),)
    joined = await node.groups.join(joining(group_id, "a", protocols=protocols))
    await node.groups.sync(syncing(group_id, joined.member_id, joined.generation))
    return joined.member_id


async def test_the_first_client_is_answered_in_time_when_the_meta_service_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_topic, "_PATIENCE_S", 0.01)
    node, is_answering = GroupNode(), asyncio.Event()
    perform = node.perform

    async def late(command: CreateTopic) -> Topic:
        await is_answering.wait()
        return await perform(command)

    monkeypatch.setattr(node, "perform", late)
    await node.groups.start()
    commit = committing("g", ("orders", 0, 5))
    assert await node.groups.commit_offsets(commit) == [GroupError.COORDINATOR_NOT_AVAILABLE]
    with pytest.raises(Unavailable, match="still asked"):
        await node.groups.ensure_ready()
    is_answering.set()
    await node.groups.ensure_ready()
    assert await node.groups.commit_offsets(commit) == [OK]
    await node.kill()


async def test_what_is_committed_is_read_back() -> None:
    node = await GroupNode().start()
    assert await node.groups.commit_offsets(committing("g", ("orders", 0, 5), ("clicks", 3, 9))) == [OK, OK]
    asked = [TopicShard("orders", 0), TopicShard("orders", 1), TopicShard("nowhere", 0)]
    fetched = await node.groups.fetch_offsets("g", asked)
    assert [(topic, shard) for topic, shard, _ in fetched.offsets] == asked
    found = fetched.offsets[0].committed
    assert found is not None and (found.offset, found.epoch, found.metadata) == (5, 3, "at 5")
    assert fetched.offsets[1].committed is None and fetched.offsets[2].committed is None
    assert await offsets(node, "g") == {("orders", 0): 5, ("clicks", 3): 9}


async def test_a_group_that_committed_nothing_has_no_offsets() -> None:
    node = await GroupNode().start()
    assert await offsets(node, "g") == {}
    assert node.groups.stats.hosted == 0, "asking made a group"


async def test_offsets_survive_a_kill() -> None:
    node = await GroupNode().start()
    for offset in range(20):
        await node.groups.commit_offsets(committing("g", ("orders", offset % 4, offset)))
    await node.kill()
    assert await offsets(node, "g") == {("orders", shard): 16 + shard for shard in range(4)}


async def test_a_commit_is_answered_only_when_it_is_durable() -> None:
    node = await GroupNode().start()
    node.shard_of("g").hold()
    commit = task(node.groups.commit_offsets(committing("g", ("orders", 0, 5))))
    await node.settle()
    assert not commit.done()
    assert await offsets(node, "g") == {}, "an offset was visible before it was durable"
    node.shard_of("g").release()
    assert await commit == [OK]
    assert await offsets(node, "g") == {("orders", 0): 5}


async def test_commits_that_come_together_share_an_append() -> None:
    node = await GroupNode().start()
    shard = node.shard_of("g")
    before = shard.appends
    commits = [node.groups.commit_offsets(committing("g", ("orders", n % 4, n))) for n in range(200)]
    assert await asyncio.gather(*commits) == [[OK]] * 200
    assert shard.appends == before + 1


async def test_the_later_of_two_commits_in_flight_wins() -> None:
    node = await GroupNode().start()
    shard = node.shard_of("g")
    shard.hold()
    commits = []
    for offset in (7, 8, 3):
        commits.append(task(node.groups.commit_offsets(committing("g", ("orders", 0, offset)))))
        await node.settle()
    shard.release()
    await asyncio.gather(*commits)
    assert await offsets(node, "g") == {("orders", 0): 3}
    await node.kill()
    assert await offsets(node, "g") == {("orders", 0): 3}


async def test_a_commit_that_failed_is_not_seen_and_may_be_repeated() -> None:
    node = await GroupNode().start()
    for failure in (Unavailable("too few replicas: wait"), OutcomeUnknown("lost: read again")):
        node.shard_of("g").fail(failure)
        errors = await node.groups.commit_offsets(committing("g", ("orders", 0, 5)))
        assert errors == [GroupError.COORDINATOR_NOT_AVAILABLE]
        assert await offsets(node, "g") == {}
        assert node.groups.stats.hosted == 0, "a failed commit left an empty group behind"
    assert await node.groups.commit_offsets(committing("g", ("orders", 0, 6))) == [OK]
    await node.kill()
    assert await offsets(node, "g") == {("orders", 0): 6}


async def test_each_offset_stands_alone() -> None:
    node = await GroupNode(offset_metadata_max_bytes=8).start()
    long = committing("g", ("orders", 0, 1), ("orders", 9, 1), ("nowhere", 0, 1), ("orders", 1, 10**12))
    assert await node.groups.commit_offsets(long) == [
        OK,
        GroupError.UNKNOWN_TOPIC_OR_PARTITION,
        GroupError.UNKNOWN_TOPIC_OR_PARTITION,
        GroupError.OFFSET_METADATA_TOO_LARGE,
    ]
    assert await offsets(node, "g") == {("orders", 0): 1}


async def test_only_members_of_the_present_generation_commit_to_a_group_in_use() -> None:
    node = await GroupNode().start()
    member_id = await member(node, "g", "orders")
    place = ("orders", 0, 5)

    async def commit(**who: object) -> GroupError:
        return (await node.groups.commit_offsets(committing("g", place, **who)))[0]

    assert await commit() is GroupError.UNKNOWN_MEMBER_ID
    assert await commit(member_id="x", generation=1) is GroupError.UNKNOWN_MEMBER_ID
    assert await commit(member_id=member_id, generation=0) is GroupError.ILLEGAL_GENERATION
    assert await commit(member_id=member_id, generation=1) is OK
    assert (await node.groups.commit_offsets(committing("h", place, member_id="x", generation=1)))[0] is (
        GroupError.ILLEGAL_GENERATION
    )


async def test_a_member_that_commits_is_alive() -> None:
    node = await GroupNode().start()
    member_id = await member(node, "g", "orders")
    for _ in range(3):
        await node.wait(9_000)
        commit = committing("g", ("orders", 0, 5), member_id=member_id, generation=1)
        assert await node.groups.commit_offsets(commit) == [OK]


async def test_a_topic_that_is_made_again_begins_without_offsets() -> None:
    node = await GroupNode().start()
    await node.groups.commit_offsets(committing("g", ("orders", 0, 5), ("clicks", 0, 6)))
    node.recreate_topic("orders")
    await node.settle()
    assert await offsets(node, "g") == {("clicks", 0): 6}
    asked = await node.groups.fetch_offsets("g", [TopicShard("orders", 0)])
    assert asked.offsets[0].committed is None
    assert node.groups.stats.offsets == 1, "offsets of the deleted topic are still held"
    await node.kill()
    assert node.groups.stats.offsets == 1


async def test_offsets_of_a_topic_deleted_unnoticed_go_in_the_second_sweep() -> None:
    node = await GroupNode().start()
    await node.groups.commit_offsets(committing("g", ("orders", 0, 5), ("clicks", 0, 6)))
    del node.topics.by_name["orders"]
    await node.groups.sweep()
    assert node.groups.stats.offsets == 2, "a catalog that lags is no proof of a deletion"
    await node.groups.sweep()
    await node.settle()
    assert node.groups.stats.offsets == 1


async def test_offsets_of_standalone_consumers_expire_after_their_commit() -> None:
    node = await GroupNode().start()
    await node.groups.commit_offsets(committing("g", ("orders", 0, 5)))
    await node.wait(5 * DAY_MS)
    await node.groups.commit_offsets(committing("g", ("orders", 1, 5)))
    await node.wait(2 * DAY_MS)
    await node.groups.sweep()
    await node.settle()
    assert await offsets(node, "g") == {("orders", 1): 5}
    await node.wait(5 * DAY_MS)
    await node.groups.sweep()
    await node.settle()
    assert node.groups.stats.hosted == 0, "a group of which nothing is left is gone"
    await node.kill()
    assert node.groups.stats.hosted == 0


async def test_offsets_of_a_group_expire_only_after_its_last_member_is_gone() -> None:
    node = await GroupNode().start()
    member_id = await member(node, "g", "orders")
    commit = committing("g", ("orders", 0, 5), member_id=member_id, generation=1)
    await node.groups.commit_offsets(commit)
    for _ in range(30):
        await node.grow_older(DAY_MS)
        await node.groups.sweep()
    await node.settle()
    assert await offsets(node, "g") == {("orders", 0): 5}, "the offset of a living group expired"
    await node.wait(10_001)
    assert (await node.groups.describe("g")).status.state is GroupState.EMPTY
    await node.wait(6 * DAY_MS)
    await node.groups.sweep()
    await node.settle()
    assert await offsets(node, "g") == {("orders", 0): 5}
    await node.wait(1 * DAY_MS)
    await node.groups.sweep()
    await node.settle()
    assert node.groups.stats.hosted == 0


async def test_a_living_group_forgets_topics_it_left() -> None:
    node = await GroupNode().start()
    member_id = await member(node, "g", "orders")
    commit = committing("g", ("orders", 0, 5), ("clicks", 0, 5), member_id=member_id, generation=1)
    await node.groups.commit_offsets(commit)
    await node.grow_older(8 * DAY_MS)
    await node.groups.sweep()
    await node.settle()
    assert await offsets(node, "g") == {("orders", 0): 5}


async def test_a_group_that_does_not_say_what_it_reads_forgets_nothing() -> None:
    node = await GroupNode().start()
    protocols = (MemberProtocol("range", b"\x00"),)
    joined = await node.groups.join(joining("g", "a", protocols=protocols))
    await node.groups.sync(syncing("g", joined.member_id, 1))
    await node.groups.commit_offsets(committing("g", ("clicks", 0, 5), member_id=joined.member_id, generation=1))
    await node.grow_older(8 * DAY_MS)
    await node.groups.sweep()
    await node.settle()
    assert await offsets(node, "g") == {("clicks", 0): 5}


async def test_old_clients_choose_their_own_retention() -> None:
    node = await GroupNode().start()
    await node.groups.commit_offsets(committing("g", ("orders", 0, 5), retention_ms=60_000))
    await node.kill()
    await node.wait(60_000)
    await node.groups.sweep()
    await node.settle()
    assert await offsets(node, "g") == {}


async def test_a_group_without_members_is_deleted_with_its_offsets() -> None:
    node = await GroupNode().start()
    await node.groups.commit_offsets(committing("g", ("orders", 0, 5)))
    await member(node, "used", "orders")
    assert await node.groups.delete_groups(["g", "used", "never", "g"]) == {
        "g": OK,
        "used": GroupError.NON_EMPTY_GROUP,
        "never": GroupError.GROUP_ID_NOT_FOUND,
    }
    await node.kill()
    assert await offsets(node, "g") == {}
    assert [group.group_id for group in (await node.groups.list_groups()).groups] == ["used"]


async def test_a_group_that_is_being_deleted_takes_nothing_until_it_is_gone() -> None:
    node = await GroupNode().start()
    await node.groups.commit_offsets(committing("g", ("orders", 0, 5)))
    shard = node.shard_of("g")
    shard.hold()
    deletion = task(node.groups.delete_groups(["g"]))
    await node.settle()
    errors = await node.groups.commit_offsets(committing("g", ("orders", 0, 6)))
    assert errors == [GroupError.COORDINATOR_LOAD_IN_PROGRESS]
    shard.release()
    assert await deletion == {"g": OK}
    assert await node.groups.commit_offsets(committing("g", ("orders", 0, 7))) == [OK]
    await node.kill()
    assert await offsets(node, "g") == {("orders", 0): 7}


async def test_an_offset_committed_with_an_unknown_outcome_goes_with_its_group() -> None:
    node = await GroupNode().start()
    await node.groups.commit_offsets(committing("g", ("orders", 0, 5)))
    node.shard_of("g").fail(OutcomeUnknown("lost: read again"))
    await node.groups.commit_offsets(committing("g", ("orders", 1, 5)))
    assert await node.groups.delete_groups(["g"]) == {"g": OK}
    await node.kill()
    assert node.groups.stats.offsets == 0


async def test_offsets_are_deleted_but_for_topics_in_use() -> None:
    node = await GroupNode().start()
    member_id = await member(node, "g", "orders")
    commit = committing("g", ("orders", 0, 5), ("clicks", 0, 5), member_id=member_id, generation=1)
    await node.groups.commit_offsets(commit)
    places = [TopicShard("orders", 0), TopicShard("clicks", 0), TopicShard("nowhere", 0)]
    deleted = await node.groups.delete_offsets("g", places)
    assert deleted.errors == (
        GroupError.GROUP_SUBSCRIBED_TO_TOPIC,
        OK,
        GroupError.UNKNOWN_TOPIC_OR_PARTITION,
    )
    assert (await node.groups.delete_offsets("never", places)).error is GroupError.GROUP_ID_NOT_FOUND
    await node.kill()
    assert await offsets(node, "g") == {("orders", 0): 5}


async def test_offsets_of_connectors_in_use_are_not_deleted() -> None:
    node = await GroupNode().start()
    joined = await node.groups.join(joining("g", "a", protocol_type="connect"))
    assert joined.error is OK
    deleted = await node.groups.delete_offsets("g", [TopicShard("orders", 0)])
    assert deleted.error is GroupError.NON_EMPTY_GROUP


async def test_a_living_group_without_offsets_is_left_alone() -> None:
    node = await GroupNode().start()
    member_id = await member(node, "g", "orders")
    await node.grow_older(30 * DAY_MS)
    await node.groups.sweep()
    await node.settle()
    assert await node.groups.heartbeat("g", member_id, None, 1) is OK
    assert (await node.groups.describe("g")).status.state is GroupState.STABLE


async def test_commits_behind_a_lost_leadership_are_refused_not_forgotten() -> None:
    node = await GroupNode().start()
    shard = node.shard_of("g")
    shard.hold()
    written = task(node.groups.commit_offsets(committing("g", ("orders", 0, 5))))
    await node.settle()
    waiting = task(node.groups.commit_offsets(committing("g", ("orders", 0, 6))))
    await node.settle()
    node.groups.unload(shard.key.shard)
    assert await waiting == [GroupError.NOT_COORDINATOR]
    shard.release()
    assert await written == [OK], "it was durable before the shard moved"
    await node.groups.load(shard.key.shard)
    assert await offsets(node, "g") == {("orders", 0): 5}


async def test_a_commit_that_takes_too_long_is_answered_and_may_still_count() -> None:
    node = await GroupNode().start()
    node.groups._offsets._limits = replace(node.groups._offsets._limits, commit_timeout_ms=1)
    shard = node.shard_of("g")
    shard.hold()
    assert await node.groups.commit_offsets(committing("g", ("orders", 0, 5))) == [GroupError.COORDINATOR_NOT_AVAILABLE]
    shard.release()
    await node.settle()
    assert await offsets(node, "g") == {("orders", 0): 5}


async def test_offsets_of_the_node_are_bounded() -> None:
    node = await GroupNode().start()
    node.groups._offsets._limits = replace(node.groups._offsets._limits, max_offsets=2)
    errors = await node.groups.commit_offsets(committing("g", ("orders", 0, 1), ("orders", 1, 1), ("orders", 2, 1)))
    assert errors == [OK, OK, GroupError.INVALID_COMMIT_OFFSET_SIZE]
    assert await node.groups.commit_offsets(committing("g", ("orders", 0, 2))) == [OK]
