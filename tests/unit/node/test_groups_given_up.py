"""Groups whose log was on a node that was given up by force: they wait for it, and then start empty."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stratalog.model.commands.mount_commands import EndMount
from stratalog.model.errors import Rejected
from stratalog.model.groups.group import GroupError
from stratalog.model.ids import ShardKey
from stratalog.model.retirement import RetireMode, RetireStep
from stratalog_node.groups.coordinator import GroupCoordinator
from stratalog_node.groups.placement import OFFSETS_TOPIC, coordinator_of, shard_of
from stratalog_node.groups.requests import TopicShard
from support.group_node import committing
from support.leaving_nodes import QUICK, Leaving
from support.node_cluster import NodeCluster
from support.waiting import eventually

OK = GroupError.NONE
PLACE = TopicShard("flights", 0)
AT_ONCE = {"group_initial_rebalance_delay_ms": 0, "offsets_topic_replication_factor": 1}


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NodeCluster]:
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1, 2, 3, **QUICK, **AT_ONCE)
        await cluster.shard(3)
        await cluster.nodes[1].groups.ensure_ready()
        yield cluster


def log_of(cluster: NodeCluster, group: str = "g") -> ShardKey:
    topic = next(iter(cluster.nodes.values())).catalog.topic(OFFSETS_TOPIC)
    assert topic is not None
    return ShardKey(topic.topic_id, shard_of(group, topic.shard_count))


async def coordinator(cluster: NodeCluster, group: str = "g", timeout: float = 20) -> GroupCoordinator:
    """As a client finds it: it asks again for as long as it hears a retriable error."""
    found: list[GroupCoordinator] = []

    async def is_found() -> bool:
        named = coordinator_of(next(iter(cluster.nodes.values())).catalog, group)
        there = None if named is None else cluster.nodes.get(named.node_id)
        if there is None:
            return False
        error = (await there.groups.describe(group)).error
        assert error in (OK, GroupError.COORDINATOR_LOAD_IN_PROGRESS, GroupError.NOT_COORDINATOR)
        found[:] = [there.groups]
        return error is OK

    await eventually(is_found, timeout=timeout)
    return found[0]


async def commit(cluster: NodeCluster, offset: int) -> None:
    async def is_done() -> bool:
        (error,) = await (await coordinator(cluster)).commit_offsets(committing("g", ("flights", 0, offset)))
        return error is OK

    await eventually(is_done, timeout=20)


async def committed(cluster: NodeCluster) -> int | None:
    fetched = await (await coordinator(cluster)).fetch_offsets("g", [PLACE])
    assert fetched.error is OK
    found = fetched.offsets[0].committed
    return None if found is None else found.offset


@pytest.mark.fault("copy-part-group-log")
@pytest.mark.parametrize("is_sealed", [False, True], ids=["open", "sealed"])
async def test_groups_of_a_log_that_was_given_up_start_empty(cluster: NodeCluster, is_sealed: bool) -> None:
    leaving = Leaving(cluster, has_store=False)
    await commit(cluster, 7)
    key = log_of(cluster)
    gone = cluster.leader(key)
    if is_sealed:
        assert cluster.nodes[gone].ask_roll(key)
        await cluster.is_sealed(key)
        await commit(cluster, 8)
    storage_id = (await leaving.node(gone)).storage_id
    await cluster.kill(gone)
    await cluster.lose(gone)
    await leaving.retire(gone, force=storage_id)
    await leaving.until(step=RetireStep.DONE, of=gone)
    assert await committed(cluster) is None
    told = [node.groups.given_up for node in cluster.nodes.values() if node.groups.given_up]
    assert [list(one) for one in told] == [[key.shard]]
    await commit(cluster, 9)
    assert await committed(cluster) == 9
    await eventually(lambda: cluster.led(key) is not None and cluster.led(key).log_start_offset > 0)  # type: ignore[union-attr]
    after = cluster.leader(key)
    await cluster.stop(after)
    await cluster.start(after, **QUICK, **AT_ONCE)
    assert await committed(cluster) == 9
    assert not any(node.groups.given_up for node in cluster.nodes.values()), "the log begins behind it"


@pytest.mark.fault("disk-node-dies-node")
@pytest.mark.parametrize("is_forced", [False, True], ids=["left in order", "died"])
async def test_groups_wait_for_a_retired_directory_until_that_is_given_up(
    cluster: NodeCluster, is_forced: bool
) -> None:
    leaving = Leaving(cluster, has_store=False)
    await cluster.start(4, **QUICK, **AT_ONCE)
    await commit(cluster, 7)
    key = log_of(cluster)
    gone = cluster.leader(key)
    assert cluster.nodes[gone].ask_roll(key)
    await cluster.is_sealed(key)
    storage_id = (await leaving.node(gone)).storage_id
    if is_forced:
        await cluster.kill(gone)
        await cluster.lose(gone)
    await leaving.retire(gone, RetireMode.VOLUME, storage_id if is_forced else None)
    await leaving.until(step=RetireStep.MOUNT, of=gone)
    service, name = cluster.meta.service, f"tier/{gone}"
    await leaving.until(lambda: any(node.catalog.mount(name) for node in cluster.nodes.values()))
    after = cluster.leader(key)
    if not is_forced:  # it has read the log while the node lived
        await cluster.stop(after)
        await cluster.start(after, **QUICK, **AT_ONCE)
    errors = {(await node.groups.describe("g")).error for node in cluster.nodes.values()}
    assert errors <= {GroupError.COORDINATOR_LOAD_IN_PROGRESS, GroupError.NOT_COORDINATOR}
    for refused, words in ((EndMount(name), "nothing else has"), (EndMount(name, "another"), "was spelled out")):
        with pytest.raises(Rejected, match=words):
            await service.perform(refused)
    await service.perform(EndMount(name, storage_id))
    record = await leaving.record(gone)
    assert record.step is RetireStep.DONE and record.given_up[0].segment.shard_key == key
    assert await committed(cluster) is None
    await commit(cluster, 9)
    assert await committed(cluster) == 9
    await leaving.run_checks()
    assert not (await service.snapshot()).mounts, "it is not mounted again"


@pytest.mark.fault("copy-part-group-log")
async def test_groups_wait_as_long_as_the_node_may_come_back(cluster: NodeCluster) -> None:
    await commit(cluster, 7)
    key = log_of(cluster)
    away = cluster.leader(key)
    assert cluster.nodes[away].ask_roll(key)
    await cluster.is_sealed(key)
    await cluster.kill(away)
    await cluster.lose(away)
    others = [node.groups for node in cluster.nodes.values()]
    errors = {(await groups.describe("g")).error for groups in others}
    assert errors <= {GroupError.COORDINATOR_LOAD_IN_PROGRESS, GroupError.NOT_COORDINATOR}
    await cluster.start(away, **QUICK, **AT_ONCE)
    assert await committed(cluster) == 7
    assert not any(node.groups.given_up for node in cluster.nodes.values())
