"""What alerts ask of topics, shards and groups: with nodes that replicate; one of them coordinates, and none knows
everything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stratalog.model.commands.table_commands import CreateTopic
from stratalog.model.ids import ShardKey
from stratalog.model.topic import Topic
from stratalog.telemetry.metrics import MetricRegistry
from stratalog_node.groups.coordinator import GroupCoordinator
from stratalog_node.groups.placement import OFFSETS_TOPIC
from stratalog_node.measures.series import Bounded
from stratalog_node.node import StorageNode
from stratalog_node.replication import following
from stratalog_node.shards.log.shard_log import ShardLog
from support.group_node import committing
from support.node_cluster import NodeCluster
from support.waiting import eventually

Series = dict[tuple[str, tuple[str, ...]], float]


async def page(node: StorageNode) -> Series:
    """(name, label values) -> value."""
    text = (await node.metrics.page()).decode()
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def pages(cluster: NodeCluster) -> Series:
    """The cluster's sums, as a dashboard makes them."""
    found: Series = {}
    for node in cluster.nodes.values():
        for key, value in (await page(node)).items():
            found[key] = found.get(key, 0) + value
    return found


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NodeCluster]:
    monkeypatch.setattr(following, "_ANEW_S", 0.01)
    monkeypatch.setattr("stratalog_node.measures.series._SHARE", 0)
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        yield cluster


def named(name: str, *labels: str) -> tuple[str, tuple[str, ...]]:
    return f"stratalog_{name}", labels


async def test_each_leader_reports_its_shards_and_missing_replicas(cluster: NodeCluster) -> None:
    await cluster.start(1, 2, replica_lag_time_max_ms=100)
    key = await cluster.shard(2, min_insync_replicas="2")
    await cluster.append(key, b"one", b"two")
    told = await pages(cluster)
    assert told[named("topic_led_shards", "flights")] == 1
    assert told[named("topic_under_replicated_shards", "flights")] == 0
    assert told[named("shard_end_offset", "flights", "0")] == 2
    assert told[named("shard_in_sync_replicas", "flights", "0")] == told[named("shard_replicas", "flights", "0")] == 2
    assert told[named("topic_appended_bytes_total", "flights")] > 0

    assert told[named("topic_local_bytes", "flights")] >= 2 * told[named("topic_appended_bytes_total", "flights")], (
        "both copies"
    )

    lost = 3 - cluster.leader(key)
    await cluster.kill(lost)
    await cluster.lose(lost)
    await eventually(lambda: len(cluster.segments(key)[-1].isr) == 1)
    (node,) = cluster.nodes.values()
    told = await page(node)
    assert told[named("topic_under_replicated_shards", "flights")] == 1
    assert told[named("topic_under_min_isr_shards", "flights")] == 1
    assert told[named("topic_leaderless_shards", "flights")] == 0


async def test_every_node_reports_a_shard_without_a_leader(cluster: NodeCluster) -> None:
    await cluster.start(1, 2, 3)
    key = await cluster.shard(1)
    leader = cluster.leader(key)
    await cluster.kill(leader)
    await cluster.lose(leader)
    for node in cluster.nodes.values():
        await eventually(lambda node=node: not node.catalog.is_alive(leader))
        told = await page(node)
        assert told[named("topic_leaderless_shards", "flights")] == 1
        assert told[named("topic_led_shards", "flights")] == 0


async def test_the_coordinator_reports_lag_of_shards_that_others_lead(cluster: NodeCluster) -> None:
    await cluster.start(1, 2, 3, group_initial_rebalance_delay_ms=0)
    topic: Topic = await cluster.meta.service.perform(CreateTopic("flights", 3, 1, {}))
    for number in range(3):
        await cluster.append(ShardKey(topic.topic_id, number), *[b"x"] * (number + 1))
    await cluster.nodes[1].groups.ensure_ready()
    groups = await coordinator(cluster)
    await commit_at(groups, cluster, (0, 0), (1, 1), (2, 1))

    told = await pages(cluster)
    assert told[named("group_lag_records", "readers", "flights")] == 1 + 1 + 2
    lags = [told[named("group_shard_lag_records", "readers", "flights", str(number))] for number in range(3)]
    assert lags == [1, 1, 2]
    assert told[named("group_members", "readers")] == 0
    assert told[named("groups_unknown_ends")] == 0
    leaders = {cluster.leader(ShardKey(topic.topic_id, number)) for number in range(3)}
    assert len(leaders) > 1, "else nobody was asked"


async def test_a_shard_whose_leader_does_not_answer_has_no_lag_and_is_counted(cluster: NodeCluster) -> None:
    await cluster.start(1, 2, group_initial_rebalance_delay_ms=0)
    topic: Topic = await cluster.meta.service.perform(CreateTopic("flights", 2, 1, {}))
    for number in range(2):
        await cluster.append(ShardKey(topic.topic_id, number), b"x")
    await cluster.nodes[1].groups.ensure_ready()
    groups = await coordinator(cluster)
    await commit_at(groups, cluster, (0, 0), (1, 0))
    log = cluster.nodes[1].catalog.topic(OFFSETS_TOPIC)
    assert log is not None
    here = cluster.leader(ShardKey(log.topic_id, 0))
    other = 3 - here
    led_there = [number for number in range(2) if cluster.leader(ShardKey(topic.topic_id, number)) == other]
    await cluster.kill(other)  # and its lease lasts: it is still named as the leader

    told = await page(cluster.nodes[here])
    assert len(led_there) == 1
    assert told[named("groups_unknown_ends")] == 1
    assert named("group_shard_lag_records", "readers", "flights", str(led_there[0])) not in told
    assert told[named("group_lag_records", "readers", "flights")] == 1


async def test_more_than_may_have_series_are_counted_and_those_in_trouble_come_first(cluster: NodeCluster) -> None:
    await cluster.start(1, metrics_max_series=10)
    for number in range(12):
        await cluster.shard(1, name=f"topic-{number:02}")
    (node,) = cluster.nodes.values()
    told = await page(node)
    assert told[named("metric_left_out", "topics")] == 2
    assert named("topic_led_shards", "topic-11") not in told

    last = node.shards.by_name("topic-11", 0)
    assert isinstance(last, ShardLog)
    last.stop_after_fault("a fault that a test makes")
    told = await page(node)
    assert told[named("topic_stopped_shards", "topic-11")] == 1
    assert told[named("metric_left_out", "shards")] == 2


async def test_a_full_pass_is_not_repeated_at_once(cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await cluster.start(1)
    key = await cluster.shard(1)
    monkeypatch.setattr("stratalog_node.measures.series._SHARE", 10**9)
    (node,) = cluster.nodes.values()
    before = await page(node)
    await cluster.append(key, b"one")
    again = await asyncio.gather(page(node), page(node))
    end = named("shard_end_offset", "flights", "0")
    assert before[end] == again[0][end] == again[1][end] == 0


async def coordinator(cluster: NodeCluster) -> GroupCoordinator:
    """The coordinator, once there is one."""
    found: list[GroupCoordinator] = []

    def is_loaded() -> bool:
        found[:] = [node.groups for node in cluster.nodes.values() if node.groups.stats.shards_loaded]
        return len(found) == 1

    await eventually(is_loaded)
    return found[0]


async def commit_at(groups: GroupCoordinator, cluster: NodeCluster, *places: tuple[int, int]) -> None:
    """Each is (shard, offset)."""
    errors = await groups.commit_offsets(committing("readers", *(("flights", shard, at) for shard, at in places)))
    assert not any(error.value for error in errors), errors


async def test_of_very_many_the_first_are_the_same_whether_a_thread_finds_them_or_not() -> None:
    metrics = MetricRegistry()
    bounded = Bounded(10, metrics)
    rows = [(number * 7_919) % 5_000 for number in range(5_000)]
    assert await bounded.cut("rows", rows, lambda row: row) == list(range(10))
    assert await bounded.cut("some", rows[:100], lambda row: row) == sorted(rows[:100])[:10]
    assert metrics.values()["stratalog_metric_left_out"] == {("rows",): 4_990, ("some",): 90}
