"""Leaders end the segments that the metadata ask them to end: to seal a topic, and to spread new writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.machines.copies.rebalance import plan_rebalance
from stratalog.model.commands.table_commands import RollElsewhere, SealTopic
from stratalog.model.ids import ShardKey
from support.node_cluster import NodeCluster

ASKED_MS = 5_000


def has_rolled(cluster: NodeCluster, key: ShardKey, epoch: int) -> bool:
    newest = cluster.segments(key)[-1]
    return newest.epoch > epoch and not newest.handed.is_roll_asked


@pytest.mark.parametrize("nodes", [1, 2])
async def test_a_topic_is_sealed_once_for_a_request_also_by_its_only_node(
    nodes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(*range(1, nodes + 1))
        key = await cluster.shard(nodes)
        await cluster.append(key, b"one")
        await cluster.meta.service.perform(SealTopic(key.topic_id, ASKED_MS))
        sealed = await cluster.is_sealed(key)
        assert (sealed.base_offset, sealed.end_offset) == (0, 1)
        await cluster.append(key, b"two")
        await cluster.meta.service.perform(SealTopic(key.topic_id, ASKED_MS))
        await cluster.meta.service.perform(SealTopic(key.topic_id, ASKED_MS + 1))
        second = await cluster.is_sealed(key, epoch=1)
        assert (second.base_offset, second.end_offset) == (1, 2)
        assert await cluster.values(key) == [b"one", b"two"]
        await cluster.until(lambda: has_rolled(cluster, key, 1))
        assert cluster.segments(key)[-1].epoch == 2, "one roll for each request"


async def test_an_empty_segment_that_was_asked_to_end_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1, 2)
        key = await cluster.shard(2)
        await cluster.meta.service.perform(SealTopic(key.topic_id, ASKED_MS))
        await cluster.until(lambda: has_rolled(cluster, key, 0) and len(cluster.segments(key)) == 1)
        await cluster.append(key, b"one")
        assert await cluster.values(key) == [b"one"]


async def test_what_was_asked_while_the_leader_was_away_is_done_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1)
        key = await cluster.shard(1)
        await cluster.append(key, b"one")
        await cluster.kill(1)
        await cluster.meta.service.perform(SealTopic(key.topic_id, ASKED_MS))
        await cluster.start(1)
        sealed = await cluster.is_sealed(key)
        assert sealed.end_offset == 1
        assert await cluster.values(key) == [b"one"]


async def test_new_writes_are_spread_over_a_node_that_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1, 2)
        keys = [await cluster.shard(2, f"flights-{number}") for number in range(3)]
        for key in keys:
            await cluster.append(key, b"old")
        await cluster.start(3)
        for _ in range(4):
            planned = plan_rebalance(await cluster.meta.service.snapshot())
            if planned.is_even or not planned.moves:
                break
            moved = {move.segment.key.shard_key: move.segment.epoch for move in planned.moves}
            await cluster.meta.service.perform(RollElsewhere(tuple(move.segment.key for move in planned.moves)))
            await cluster.until(lambda moved=moved: all(has_rolled(cluster, *one) for one in moved.items()))
        shares = plan_rebalance(await cluster.meta.service.snapshot()).shares
        assert [share.leaders for share in shares] == [1, 1, 1]
        for key in keys:
            await cluster.append(key, b"new")
            assert await cluster.values(key) == [b"old", b"new"]
