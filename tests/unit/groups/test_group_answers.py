"""What a coordinator says about groups and topics that it does not know, or not yet."""

from __future__ import annotations

import pytest

from stratalog.model.errors import Unavailable
from stratalog.model.groups.group import GroupError, GroupState
from stratalog_node.groups.requests import CommitRequest, OffsetToCommit, TopicShard
from stratalog_node.shards.catalog import lag as catalog_lag
from support.group_node import GroupNode, committing
from support.waiting import eventually
from unit.groups.test_group_apis import ask

OK = GroupError.NONE
LOADING = GroupError.COORDINATOR_LOAD_IN_PROGRESS
WANTED = [TopicShard("orders", 0), TopicShard("clicks", 0)]


@pytest.mark.fault("client-asks-new-node")
async def test_a_fresh_node_knows_that_there_are_no_groups() -> None:
    for ask_first in ("describe", "delete", "delete offsets"):
        node = GroupNode()
        await node.groups.start()
        match ask_first:
            case "describe":
                described = await node.groups.describe("g")
                assert (described.error, described.status.state) == (OK, GroupState.DEAD)
            case "delete":
                assert await node.groups.delete_groups(["g"]) == {"g": GroupError.GROUP_ID_NOT_FOUND}
            case _:
                deleted = await node.groups.delete_offsets("g", WANTED)
                assert deleted.error is GroupError.GROUP_ID_NOT_FOUND
        await node.groups.stop()


async def a_group_whose_topic_the_catalog_lost(node: GroupNode) -> None:
    assert await node.groups.commit_offsets(committing("g", ("orders", 0, 5), ("clicks", 0, 6))) == [OK, OK]
    node.hidden = node.topics.by_name.pop("orders")  # type: ignore[attr-defined]


@pytest.mark.fault("coordinator-catalog-know-topic")
async def test_a_topic_that_the_catalog_does_not_know_yet_is_not_nothing_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catalog_lag, "_PATIENCE_MS", 20)
    node = await GroupNode().start()
    await a_group_whose_topic_the_catalog_lost(node)
    node.meta_version = node.topics.version + 1
    for wanted in (WANTED, None):
        assert (await node.groups.fetch_offsets("g", wanted)).error is LOADING
    node.meta_version = Unavailable("the meta service is away: wait")
    for wanted in (WANTED, None):
        assert (await node.groups.fetch_offsets("g", wanted)).error is LOADING
    node.topics.by_name["orders"] = node.hidden  # type: ignore[attr-defined]
    fetched = await node.groups.fetch_offsets("g", WANTED)
    assert [found.committed.offset for found in fetched.offsets if found.committed] == [5, 6]
    assert (await node.groups.fetch_offsets("g", [TopicShard("clicks", 0)])).error is OK, "it asked without need"


async def test_a_catalog_that_catches_up_in_time_is_waited_for() -> None:
    node = await GroupNode().start()
    await a_group_whose_topic_the_catalog_lost(node)
    node.meta_version = node.topics.version + 1
    asked = node.groups.fetch_offsets("g", WANTED)

    async def catch_up() -> None:
        node.topics.by_name["orders"] = node.hidden  # type: ignore[attr-defined]
        node.topics.version += 1

    import asyncio

    fetched, _ = await asyncio.gather(asked, catch_up())
    assert [found.committed.offset for found in fetched.offsets if found.committed] == [5, 6]


@pytest.mark.fault("coordinator-catalog-know-topic")
async def test_of_a_topic_that_is_gone_nothing_is_committed() -> None:
    node = await GroupNode().start()
    await a_group_whose_topic_the_catalog_lost(node)
    fetched = await node.groups.fetch_offsets("g", WANTED)
    assert fetched.error is OK
    assert [found.committed and found.committed.offset for found in fetched.offsets] == [None, 6]
    everything = await node.groups.fetch_offsets("g", None)
    assert [found.topic for found in everything.offsets] == ["clicks"]


async def test_topics_without_offsets_of_the_group_are_not_queried() -> None:
    node = await GroupNode().start()
    await node.groups.commit_offsets(committing("g", ("orders", 0, 5)))
    node.meta_version = Unavailable("the meta service is away: wait")
    for group_id in ("g", "never"):
        fetched = await node.groups.fetch_offsets(group_id, [TopicShard("nowhere", 0), TopicShard("orders", 900)])
        assert fetched.error is OK and not any(found.committed for found in fetched.offsets)


@pytest.mark.fault("client-asks-new-node")
async def test_a_commit_may_be_meant_for_ever() -> None:
    node = await GroupNode().start()
    topics = [
        {"name": "orders", "partitions": [{"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}]}
    ]
    for version in (2, 3, 4):
        told = await ask(
            node,
            8,
            version,
            group_id="g",
            generation_id_or_member_epoch=-1,
            member_id="",
            retention_time_ms=(1 << 63) - 1,
            topics=topics,
        )
        assert told.topics[0].partitions[0].error_code == 0
    await node.grow_older(1_000 * 24 * 3_600_000)
    await node.groups.sweep()
    await node.settle()
    await node.kill()
    fetched = await node.groups.fetch_offsets("g", [TopicShard("orders", 0)])
    assert fetched.offsets[0].committed is not None and fetched.offsets[0].committed.offset == 5
    longest = CommitRequest("g", (OffsetToCommit("orders", 0, 6, -1, ""),), retention_ms=(1 << 63) - 1)
    assert await node.groups.commit_offsets(longest) == [OK]
    await eventually(lambda: node.groups.stats.commits == 1)
