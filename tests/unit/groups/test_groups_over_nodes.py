"""Groups whose shard moves to another node: no client gets a wrong answer, and nothing confirmed is lost."""

from __future__ import annotations

import asyncio

import pytest

from stratalog.machines.groups.group_events import LeavingMember
from stratalog.model.commands.table_commands import WidenTopic
from stratalog.model.errors import Unavailable
from stratalog.model.groups.group import GroupError, GroupState
from stratalog_node.groups import coordinator_validity
from stratalog_node.groups.requests import TopicShard
from support.group_cluster import ClusterNode, GroupCluster
from support.group_node import committing, joining, syncing, task
from support.loop_turns import Turns
from support.waiting import eventually

OK = GroupError.NONE
NOT_COORDINATOR = GroupError.NOT_COORDINATOR
PLACE = TopicShard("orders", 0)


async def committed(node: ClusterNode, group_id: str = "g", place: TopicShard = PLACE) -> int | GroupError:
    """The offset, or the error of the answer; -1 for none."""
    fetched = await node.groups.fetch_offsets(group_id, [place])
    if fetched.error is not OK:
        return fetched.error
    found = fetched.offsets[0].committed
    return -1 if found is None else found.offset


async def of_one_shard(nodes: int = 2) -> tuple[GroupCluster, ClusterNode, ClusterNode]:
    cluster = await GroupCluster(nodes, offsets_topic_num_partitions=1).start()
    return cluster, cluster.nodes[1], cluster.nodes[2]


async def a_member(node: ClusterNode, group_id: str = "g", instance_id: str | None = None) -> str:
    joined = await node.groups.join(joining(group_id, "a", instance_id=instance_id))
    synced = await node.groups.sync(syncing(group_id, joined.member_id, 1, **{joined.member_id: b"all"}))
    assert (joined.error, synced.error) == (OK, OK)
    return joined.member_id


# Who coordinates ------------------------------------------------------------------------------------------------
@pytest.mark.fault("several-nodes-first-request")
async def test_two_nodes_that_are_asked_first_at_once_make_one_group_log() -> None:
    cluster = GroupCluster(2)
    for node in cluster.nodes.values():
        await node.groups.start()
    async with asyncio.timeout(3):  # a node that leads no shard of it does not wait for its share
        answers = await asyncio.gather(
            *(node.groups.commit_offsets(committing("g", ("orders", 0, 5))) for node in cluster.nodes.values())
        )
    assert answers == [[OK], [NOT_COORDINATOR]]
    assert cluster.topics.births == 2, "the topic of the test, and one group log"


@pytest.mark.fault("several-nodes-first-request")
@pytest.mark.parametrize(("wanted", "comes_to"), [(3, [1, 2, 3, 3]), (2, [1, 2, 2, 2]), (1, [1, 1, 1, 1])])
async def test_the_group_log_gets_its_replicas_as_nodes_come(wanted: int, comes_to: list[int]) -> None:
    cluster = await GroupCluster(1, offsets_topic_replication_factor=wanted).start()
    assert cluster.log.replication_factor == comes_to[0]
    for node_id, factor in enumerate(comes_to[1:], 2):
        await cluster.add(node_id).groups.start()
        await eventually(lambda factor=factor: cluster.log.replication_factor == factor)  # type: ignore[misc]
    await cluster.nodes[1].settle()
    asked = [command for command in cluster.asked if isinstance(command, WidenTopic)]
    assert len(asked) == len(set(comes_to)) - 1, "one node asks, when there is something to ask for"


@pytest.mark.fault("several-nodes-first-request")
async def test_a_node_that_does_not_lead_the_shard_says_so_at_once_to_every_question() -> None:
    _, _, other = await of_one_shard()
    groups = other.groups
    assert (await groups.join(joining("g", "a"))).error is NOT_COORDINATOR
    assert (await groups.sync(syncing("g", "m", 1))).error is NOT_COORDINATOR
    assert await groups.heartbeat("g", "m", None, 1) is NOT_COORDINATOR
    assert (await groups.leave("g", [LeavingMember("m", None)]))[0] is NOT_COORDINATOR
    assert await groups.commit_offsets(committing("g", ("orders", 0, 5))) == [NOT_COORDINATOR]
    assert await committed(other) is NOT_COORDINATOR
    assert (await groups.delete_offsets("g", [PLACE])).error is NOT_COORDINATOR
    assert (await groups.describe("g")).error is NOT_COORDINATOR
    assert await groups.delete_groups(["g"]) == {"g": NOT_COORDINATOR}
    assert (await groups.list_groups()).groups == ()


# The move -------------------------------------------------------------------------------------------------------
@pytest.mark.fault("coordinator-deposed-runs-joins")
async def test_what_was_committed_is_found_where_the_shard_went_and_nowhere_else() -> None:
    cluster, one, two = await of_one_shard()
    assert await one.groups.commit_offsets(committing("g", ("orders", 0, 41))) == [OK]
    await cluster.move(0, 2)
    assert await committed(two) == 41
    assert await committed(one) is NOT_COORDINATOR
    await one.settle()
    assert one.groups.stats.hosted == one.groups.stats.offsets == one.groups.stats.held_bytes == 0
    assert await two.groups.commit_offsets(committing("g", ("orders", 0, 42))) == [OK]
    await cluster.move(0, 1)
    assert await committed(one) == 42


@pytest.mark.fault("coordinator-deposed-runs-joins")
async def test_waiting_members_must_find_the_coordinator_again_when_the_shard_moves() -> None:
    cluster, one, _ = await of_one_shard()
    member = await a_member(one)
    rejoining = task(one.groups.join(joining("g", "b")))
    await one.settle()
    cluster.shards[next(iter(cluster.shards))].hold()
    commit = committing("other", ("orders", 0, 7))
    waiting = [task(one.groups.commit_offsets(commit)) for _ in range(2)]
    await one.settle()
    cluster.lead(0, 2)
    assert (await rejoining).error is NOT_COORDINATOR
    assert await one.groups.heartbeat("g", member, None, 1) is NOT_COORDINATOR
    cluster.shards[next(iter(cluster.shards))].release()
    told = {error for answer in await asyncio.gather(*waiting) for error in answer}
    assert told <= {NOT_COORDINATOR, GroupError.COORDINATOR_NOT_AVAILABLE}, "never that it is done"


@pytest.mark.fault("shard-group-log-node")
async def test_a_shard_that_left_and_returned_between_two_turns_of_the_loop_is_read_again() -> None:
    cluster, one, _ = await of_one_shard()
    assert await one.groups.commit_offsets(committing("g", ("orders", 0, 41))) == [OK]
    cluster.lead(0, 2)
    cluster.lead(0, 1)
    assert await committed(one) in (NOT_COORDINATOR, GroupError.COORDINATOR_LOAD_IN_PROGRESS), "not out of its memory"
    await one.groups.load(0)
    assert await committed(one) == 41
    assert one.groups.stats.loads == 2


@pytest.mark.fault("node-coordinates-groups-killed")
async def test_members_static_ones_and_generations_continue_at_the_next_coordinator() -> None:
    cluster, one, _ = await of_one_shard()
    dynamic, static = await a_member(one), await a_member(one, "static", "instance")
    two = await cluster.move(0, 2)
    assert await two.groups.heartbeat("g", dynamic, None, 1) is OK
    assert await two.groups.heartbeat("g", dynamic, None, 2) is GroupError.ILLEGAL_GENERATION
    commit = committing("g", ("orders", 0, 5), member_id=dynamic, generation=1)
    assert await two.groups.commit_offsets(commit) == [OK]
    back = await two.groups.join(joining("static", "a", instance_id="instance"))
    assert (back.error, back.generation) == (OK, 1) and back.member_id != static
    assert await two.groups.heartbeat("static", static, "instance", 1) is GroupError.FENCED_INSTANCE_ID
    await two.wait(11_000)
    assert (await two.groups.describe("g")).status.state is GroupState.EMPTY, "who says nothing there is expired there"


@pytest.mark.fault("2-000-groups-move")
async def test_2000_groups_move_at_once_in_slices_and_their_members_stay() -> None:
    cluster, one, two = await of_one_shard()
    members = {}
    for number in range(2_000):
        group_id = f"g{number}"
        members[group_id] = await a_member(one, group_id)
    async with Turns(lambda: two.groups.stats.hosted - one.groups.stats.hosted) as turns:
        cluster.lead(0, 2)
        await eventually(lambda: two.groups.stats.shards_loaded == 1 and not one.groups.stats.hosted, timeout=30)
    assert turns.most <= 600, "some of them in each turn"
    assert two.groups.stats.hosted == 2_000
    beats = [await two.groups.heartbeat(group_id, member, None, 1) for group_id, member in members.items()]
    assert set(beats) == {OK}
    assert two.groups.stats.rebalances == 0


@pytest.mark.fault("next-coordinator-cannot-read")
async def test_a_log_that_cannot_be_read_yet_is_opened_once() -> None:
    """A new leader may have to wait for the seal of the segment before."""
    cluster, one, two = await of_one_shard()
    assert await one.groups.commit_offsets(committing("g", ("orders", 0, 41))) == [OK]
    (shard,) = cluster.shards.values()
    before, read, reads = shard.appends, shard.read, []

    async def not_yet(offset: int, max_bytes: int) -> list[bytes | memoryview]:
        reads.append(offset)
        if len(reads) < 4:
            raise Unavailable("the segment is not sealed yet")
        return await read(offset, max_bytes)

    shard.read = not_yet  # type: ignore[method-assign]
    cluster.lead(0, 2)
    await eventually(lambda: two.groups.stats.shards_loaded == 1)
    assert shard.appends == before + 1
    assert await committed(two) == 41


# A coordinator that is cut off -----------------------------------------------------------------------------------
@pytest.mark.fault("coordinator-cut-taken-place")
async def test_a_coordinator_that_the_service_does_not_hear_answers_what_its_replicas_bear_out() -> None:
    _, one, _ = await of_one_shard()
    member = await a_member(one)
    assert await one.groups.commit_offsets(committing("g", ("orders", 0, 5), member_id=member, generation=1)) == [OK]
    shard = one.shard_of("g")
    one.lease_ms, one.heard_ms = 2_000, one.monotonic_ms
    before = shard.appends
    assert await committed(one) == 5
    assert shard.appends == before, "it was heard a moment ago"
    await one.grow_older(2_000)
    assert await committed(one) == 5
    assert await one.groups.heartbeat("g", member, None, 1) is OK
    assert len((await one.groups.list_groups()).groups) == 1
    assert shard.appends == before + 1, "one append for all that is asked within a lease"
    assert one.groups.stats.proofs == 1
    await one.grow_older(2_000)
    assert await one.groups.heartbeat("g", member, None, 1) is OK
    assert shard.appends == before + 2


@pytest.mark.fault("coordinator-cut-taken-place")
async def test_a_coordinator_that_is_cut_off_stops_answering_with_its_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinator_validity, "_PATIENCE_S", 0.02)
    _, one, _ = await of_one_shard()
    member = await a_member(one)
    one.lease_ms, one.heard_ms = 2_000, one.monotonic_ms
    one.shard_of("g").hold()
    await one.grow_older(1_999)
    assert await one.groups.heartbeat("g", member, None, 1) is OK
    await one.grow_older(1)
    unsure = GroupError.COORDINATOR_NOT_AVAILABLE
    assert await one.groups.heartbeat("g", member, None, 1) is unsure
    assert await committed(one) is unsure
    assert await committed(one, "unheard of") is unsure, "that nothing is committed is an answer, too"
    assert (await one.groups.describe("g")).error is unsure
    assert (await one.groups.sync(syncing("g", member, 1))).error is unsure
    assert (await one.groups.list_groups()).error is GroupError.COORDINATOR_LOAD_IN_PROGRESS
    one.shard_of("g").release()
    assert await one.groups.heartbeat("g", member, None, 1) is OK


@pytest.mark.fault("coordinator-cut-taken-place")
async def test_the_proof_of_a_coordinator_changes_nothing_for_readers_of_the_log() -> None:
    cluster, one, _ = await of_one_shard()
    assert await one.groups.commit_offsets(committing("g", ("orders", 0, 5))) == [OK]
    one.lease_ms = 1
    for _ in range(3):
        assert await committed(one) == 5
        await one.grow_older(10)
    two = await cluster.move(0, 2)
    assert await committed(two) == 5
    assert two.groups.stats.hosted == 1
    assert two.groups.stats.foreign_batches == two.groups.stats.incomplete_loads == 0


# A catalog that lags ------------------------------------------------------------------------------------------------
@pytest.mark.fault("commit-names-topic-created")
async def test_a_commit_to_a_topic_that_was_made_through_another_node_a_moment_ago_waits_for_the_news_of_it() -> None:
    _, one, _ = await of_one_shard()
    one.meta_version = one.topics.version + 1
    commit = task(one.groups.commit_offsets(committing("g", ("new", 0, 5))))
    await one.settle()
    assert not commit.done()
    one.topics.add("new")
    assert await commit == [OK]
    one.meta_version = Unavailable("the meta service is away")
    never = committing("g", ("never", 0, 5), ("orders", 0, 5))
    assert await one.groups.commit_offsets(never) == [GroupError.COORDINATOR_LOAD_IN_PROGRESS] * 2
    one.meta_version = None
    assert await one.groups.commit_offsets(never) == [GroupError.UNKNOWN_TOPIC_OR_PARTITION, OK]


@pytest.mark.fault("commit-names-topic-created")
async def test_many_requests_for_missing_topics_share_the_questions() -> None:
    _, one, _ = await of_one_shard()
    asked = 0

    async def read_version() -> int:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        return one.topics.version

    one.read_version = read_version  # type: ignore[method-assign]
    one.groups = one._coordinator()
    await one.groups.start()
    await one.groups.load(0)
    commit = committing("g", ("never", 0, 5))
    answers = await asyncio.gather(*(one.groups.commit_offsets(commit) for _ in range(100)))
    assert all(answer == [GroupError.UNKNOWN_TOPIC_OR_PARTITION] for answer in answers)
    assert asked <= 2
