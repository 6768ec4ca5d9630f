"""Groups on real nodes: the coordinator is lost, deposed, and comes back; what it told as committed is there."""

from __future__ import annotations

import asyncio

import pytest

from stratalog.model.commands.table_commands import AllocateProducerIds, BeginRecovery, CreateTopic
from stratalog.model.errors import OutcomeUnknown
from stratalog.model.groups.group import GroupError
from stratalog.model.ids import ShardKey
from stratalog.model.segment import SegmentState
from stratalog_node.groups.coordinator import GroupCoordinator
from stratalog_node.groups.placement import OFFSETS_TOPIC, coordinator_of
from stratalog_node.groups.requests import TopicShard
from stratalog_node.node import StorageNode
from stratalog_node.serve.connections.control_state import ProducerIds
from support.group_node import committing, joining, syncing
from support.node_cluster import NodeCluster
from support.waiting import eventually

OK = GroupError.NONE
PLACE = TopicShard("flights", 0)


async def coordinator(cluster: NodeCluster) -> GroupCoordinator:
    """As a client finds it: any node names it, and it answers once it has loaded."""
    found: list[StorageNode] = []

    async def is_found() -> bool:
        for node in cluster.nodes.values():
            named = coordinator_of(node.catalog, "g")
            there = None if named is None else cluster.nodes.get(named.node_id)
            if there is None or (await there.groups.describe("g")).error is not OK:
                return False
            found[:] = [there]
        return True

    await eventually(is_found, timeout=20)
    return found[0].groups


async def committed(cluster: NodeCluster) -> int:
    groups = await coordinator(cluster)
    fetched = await groups.fetch_offsets("g", [PLACE])
    assert fetched.error is OK and fetched.offsets[0].committed is not None
    return fetched.offsets[0].committed.offset


async def commit(cluster: NodeCluster, offset: int, **member: object) -> None:
    """Tried again as a client does."""

    async def is_done() -> bool:
        (error,) = await (await coordinator(cluster)).commit_offsets(committing("g", ("flights", 0, offset), **member))
        assert error in (OK, GroupError.COORDINATOR_NOT_AVAILABLE, GroupError.NOT_COORDINATOR)
        return error is OK

    await eventually(is_done, timeout=20)


def log_of(cluster: NodeCluster) -> ShardKey:
    topic = next(iter(cluster.nodes.values())).catalog.topic(OFFSETS_TOPIC)
    assert topic is not None
    return ShardKey(topic.topic_id, 0)


async def of_nodes(cluster: NodeCluster, count: int) -> None:
    await cluster.start(*range(1, count + 1), group_initial_rebalance_delay_ms=0)
    await cluster.shard(1)
    await cluster.nodes[count].groups.ensure_ready()
    await coordinator(cluster)


@pytest.mark.fault("node-coordinates-groups-killed")
async def test_what_was_committed_outlives_its_coordinator_and_so_does_the_membership(cluster: NodeCluster) -> None:
    await of_nodes(cluster, 2)
    groups = await coordinator(cluster)
    joined = await groups.join(joining("g", "a", session_timeout_ms=60_000))
    synced = await groups.sync(syncing("g", joined.member_id, joined.generation, **{joined.member_id: b"all"}))
    assert (joined.error, synced.error) == (OK, OK)
    member = {"member_id": joined.member_id, "generation": joined.generation}
    for offset in (5, 6, 7):
        await commit(cluster, offset, **member)
    lost = cluster.leader(log_of(cluster))
    await cluster.kill(lost)
    await cluster.lose(lost)
    assert await committed(cluster) == 7
    groups = await coordinator(cluster)
    assert await groups.heartbeat("g", joined.member_id, None, joined.generation) is OK
    await commit(cluster, 8, **member)
    await cluster.start(lost)
    assert await committed(cluster) == 8


@pytest.mark.fault("coordinator-deposed-runs-joins")
async def test_a_coordinator_that_is_deposed_while_it_runs_tells_no_commit_as_done_that_is_lost(
    cluster: NodeCluster,
) -> None:
    await of_nodes(cluster, 2)
    done: list[int] = []
    is_over = False

    async def client() -> None:
        offset = 0
        while not is_over:
            offset += 1
            await commit(cluster, offset)
            done.append(offset)

    working = asyncio.create_task(client())
    key = log_of(cluster)
    for _ in range(3):
        before = len(done)
        await eventually(lambda before=before: len(done) > before + 5, timeout=20)  # type: ignore[misc]
        shard = await cluster.leads_again(key)
        assert shard.active is not None
        await cluster.meta.service.perform(BeginRecovery(shard.active.key))
    before = len(done)
    await eventually(lambda: len(done) > before + 5, timeout=20)
    is_over = True
    await working
    assert done == list(range(1, len(done) + 1))
    assert await committed(cluster) == done[-1]
    deposed = [node for node in cluster.nodes.values() if not node.groups.stats.shards_loaded]
    assert all(not node.groups.stats.hosted for node in deposed), "who leads nothing keeps nothing"


async def test_a_coordinator_without_a_copy_of_its_log_reads_it_from_another_node(cluster: NodeCluster) -> None:
    """Otherwise the groups had no coordinator until another node led."""
    await of_nodes(cluster, 2)
    await commit(cluster, 5)
    key = log_of(cluster)
    old = (await cluster.leads_again(key)).context.node_id
    assert (await cluster.leads_again(key)).ask_roll(0)
    await eventually(lambda: cluster.segments(key)[0].local_nodes == (1, 2))
    new = next(number for number in cluster.nodes if number != old)
    shard = cluster.nodes[new].shards.get(key)
    assert shard is not None
    await eventually(lambda: shard.copies)
    for copy in shard.copies.values():
        copy.file.close_when_unused()
        copy.file.path.unlink()
    await cluster.lose(old)
    await eventually(lambda: shard.is_leader)
    await cluster.restore_heartbeats(old)
    assert await committed(cluster) == 5
    assert cluster.nodes[new].peer_reads.stats.ranges


@pytest.mark.fault("next-coordinator-cannot-read")
async def test_a_third_node_gets_a_replica_of_the_group_log_and_two_may_be_lost_one_after_the_other(
    cluster: NodeCluster,
) -> None:
    await of_nodes(cluster, 2)
    await commit(cluster, 1)
    await cluster.start(3)
    key = log_of(cluster)
    catalog = cluster.nodes[1].catalog
    await eventually(lambda: (topic := catalog.topic(OFFSETS_TOPIC)) is not None and topic.replication_factor == 3)
    shard = await cluster.leads_again(key)
    shard.ask_roll(0)

    def is_wide() -> bool:
        active = catalog.active_segment(key)
        sealed = catalog.segments(key)[0]
        return (
            active is not None
            and len(active.isr) == 3
            and sealed.state is SegmentState.SEALED
            and len(sealed.local_nodes) == 2
        )

    await eventually(is_wide, timeout=20)
    await commit(cluster, 2)
    lost = cluster.leader(key)
    await cluster.kill(lost)
    await cluster.lose(lost)
    await commit(cluster, 3)
    assert await committed(cluster) == 3


@pytest.mark.fault("several-nodes-first-request")
async def test_nodes_that_make_a_topic_on_demand_at_once_make_one(cluster: NodeCluster) -> None:
    await cluster.start(1, 2)
    made = await asyncio.gather(
        *(node.meta.perform(CreateTopic("flights", 1, 1, {})) for node in cluster.nodes.values()),
        *(node.groups.ensure_ready() for node in cluster.nodes.values()),
        return_exceptions=True,
    )
    assert sum(not isinstance(one, BaseException) for one in made) == 3, "one topic of two, and nobody failed to begin"
    topics = {topic.name for topic in (await cluster.meta.service.snapshot()).topics}
    assert topics == {"flights", OFFSETS_TOPIC}


@pytest.mark.fault("two-nodes-two-lives")
async def test_producer_ids_are_given_once_over_nodes_and_their_lives(cluster: NodeCluster) -> None:
    await cluster.start(1, 2)
    given: list[int] = []
    for life in range(3):
        for node in cluster.nodes.values():
            ids = ProducerIds()  # as each life of a node has its own
            given += [await ids.next(node.meta) for _ in range(3)]
            await ids.close()
        if life == 1:
            cluster.meta.lose_answer(AllocateProducerIds)  # it costs a block of ids, which stay unused
            with pytest.raises(OutcomeUnknown):
                await ProducerIds().next(cluster.nodes[1].meta)
        await cluster.stop(1)
        await cluster.start(1)
    assert len(set(given)) == len(given) == 18
