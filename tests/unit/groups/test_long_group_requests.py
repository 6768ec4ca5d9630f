"""Requests about very many groups, topics or offsets: in slices, each thing once, and an answer of bounded size."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest

from stratalog.machines.groups.group_events import LeavingMember
from stratalog.model.groups.group import GroupError
from stratalog.model.metadata import TopicDeleted
from stratalog.model.topic import Topic
from stratalog_node.groups.requests import CommitRequest, OffsetToCommit, TopicShard
from stratalog_node.serve.api.groups import p09_offset_fetch, p15_describe_groups
from support.group_node import GroupNode, Topics, committing, joining, syncing, task
from support.loop_turns import Turns
from unit.groups.test_group_apis import ask

OK = GroupError.NONE
MOST = 1_100
"""Look-ups that one slice may make: two for each of its items, and a few."""


class CountingTopics(Topics):
    """A catalog that counts how often it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.by_id: dict[UUID, Topic] = {}

    def add(self, name: str, *args: object, **kwargs: object) -> Topic:
        topic = super().add(name, *args, **kwargs)  # type: ignore[arg-type]
        self.by_id[topic.topic_id] = topic
        return topic

    def topic(self, name: str) -> Topic | None:
        self.asked += 1
        return super().topic(name)

    def topic_by_id(self, topic_id: UUID) -> Topic | None:
        self.asked += 1
        topic = self.by_id.get(topic_id)
        return topic if topic is not None and self.by_name.get(topic.name) is topic else None


@pytest.fixture
async def node() -> GroupNode:
    node = GroupNode(offsets_topic_num_partitions=1)
    node.topics = CountingTopics()
    node.topics.add("orders")
    node.topics.add("wide", 20_000)
    node.groups = node._coordinator()
    return await node.start()


def asked(node: GroupNode) -> int:
    assert isinstance(node.topics, CountingTopics)
    return node.topics.asked


async def commit_widely(node: GroupNode, count: int = 20_000) -> None:
    errors = await node.groups.commit_offsets(committing("g", *(("wide", shard, 5) for shard in range(count))))
    assert errors == [OK] * count


@pytest.mark.fault("request-deleted-topic-sweep")
async def test_a_commit_of_very_many_offsets_is_worked_off_in_slices(node: GroupNode) -> None:
    async with Turns(lambda: asked(node)) as turns:
        await commit_widely(node)
    assert turns.turns > 80 and turns.most <= MOST
    unknown = CommitRequest("h", tuple(OffsetToCommit(f"t{n}", 0, 5, -1, "") for n in range(20_000)))
    async with Turns(lambda: asked(node)) as turns:
        errors = await node.groups.commit_offsets(unknown)
    assert errors == [GroupError.UNKNOWN_TOPIC_OR_PARTITION] * 20_000
    assert turns.most <= MOST


async def test_a_member_that_leaves_during_a_long_commit_ends_it(node: GroupNode) -> None:
    joined = await node.groups.join(joining("g", "a"))
    await node.groups.sync(syncing("g", joined.member_id, 1))
    offsets = tuple(OffsetToCommit("wide", n, 5, -1, "") for n in range(20_000))
    request = CommitRequest("g", offsets, member_id=joined.member_id, generation=1)

    leaving = node.groups.leave("g", [LeavingMember(joined.member_id, None)])
    errors, _ = await asyncio.gather(node.groups.commit_offsets(request), leaving)
    assert set(errors) == {GroupError.UNKNOWN_MEMBER_ID}
    assert node.groups.stats.offsets == 0


@pytest.mark.fault("request-deleted-topic-sweep")
async def test_offsets_are_fetched_in_slices(node: GroupNode) -> None:
    await commit_widely(node)
    async with Turns(lambda: asked(node)) as turns:
        fetched = await node.groups.fetch_offsets("g", [TopicShard("wide", n) for n in range(20_000)])
    assert len(fetched.offsets) == 20_000 and turns.most <= MOST
    async with Turns(lambda: asked(node)) as turns:
        told = await ask(node, 9, 8, groups=[{"group_id": "g", "topics": None}], require_stable=False)
    assert len(told.groups[0].topics[0].partitions) == 20_000
    assert turns.turns > 80, "all was fetched and encoded in one turn"


@pytest.mark.fault("shard-given-long-offsetfetch")
@pytest.mark.parametrize("asks_for_all", [False, True])
async def test_a_shard_given_up_during_a_long_fetch_is_not_nothing_committed(
    node: GroupNode, asks_for_all: bool
) -> None:
    await commit_widely(node, 3_000)
    for turns in range(10):
        wanted = None if asks_for_all else [TopicShard("wide", n) for n in range(3_000)]
        fetching = task(node.groups.fetch_offsets("g", wanted))
        for _ in range(turns):
            await asyncio.sleep(0)
        node.groups.unload(0)
        fetched = await fetching
        found = [offset for offset in fetched.offsets if offset.committed is not None]
        assert fetched.error is not OK or len(found) == 3_000
        await node.groups.load(0)


@pytest.mark.fault("request-deleted-topic-sweep")
async def test_the_deletion_of_a_topic_forgets_its_offsets_in_slices(node: GroupNode) -> None:
    await commit_widely(node)
    for n in range(1_000):
        await node.groups.commit_offsets(committing(f"g{n}", ("orders", 0, n), ("wide", 0, n)))
    topic = node.topics.by_name.pop("wide")
    async with Turns(lambda: node.groups.stats.expired_offsets) as turns:
        node.groups.on_change(TopicDeleted(topic))
        assert node.groups.stats.expired_offsets == 0, "the change was worked off before its listener returned"
        while node.groups.stats.offsets > 1_000:
            await node.settle()
    assert turns.turns > 500
    assert turns.most <= 20_000, "groups are not looked at one after the other"


@pytest.mark.fault("request-deleted-topic-sweep")
async def test_a_sweep_goes_in_slices(node: GroupNode) -> None:
    await commit_widely(node)
    async with Turns(lambda: asked(node)) as turns:
        await node.groups.sweep()
    assert turns.turns > 35 and turns.most <= MOST


@pytest.mark.fault("request-deleted-topic-sweep")
async def test_groups_are_listed_and_deleted_in_slices(node: GroupNode) -> None:
    for n in range(2_000):
        await node.groups.commit_offsets(committing(f"g{n}", ("orders", 0, n)))
    async with Turns(lambda: 0) as turns:
        assert len((await ask(node, 16, 4, states_filter=[])).groups) == 2_000
    assert turns.turns > 3
    async with Turns(lambda: -node.groups.stats.hosted) as turns:
        told = await ask(node, 42, 2, groups_names=[f"g{n}" for n in range(2_000)] * 2)
    assert [found.error_code for found in told.results] == [0] * 2_000
    assert turns.most <= 200


@pytest.mark.fault("request-deleted-topic-sweep")
async def test_what_is_asked_several_times_is_answered_once(node: GroupNode) -> None:
    await node.groups.commit_offsets(committing("g", ("orders", 0, 5), ("orders", 1, 6)))
    some = {"group_id": "g", "topics": [{"name": "orders", "partition_indexes": [0, 0, 1]}] * 2}
    none = {"group_id": "none", "topics": None}
    told = await ask(node, 9, 8, groups=[some, some, none, none], require_stable=False)
    assert [group.group_id for group in told.groups] == ["g", "none"]
    assert [p.partition_index for topic in told.groups[0].topics for p in topic.partitions] == [0, 1]
    both = await ask(node, 9, 8, groups=[some, {"group_id": "g", "topics": None}, some], require_stable=False)
    assert [p.committed_offset for topic in both.groups[0].topics for p in topic.partitions] == [5, 6]
    described = await ask(node, 15, 5, groups=["g", "g", "x", "g"], include_authorized_operations=False)
    assert [group.group_id for group in described.groups] == ["g", "x"]
    found = await ask(node, 10, 4, key_type=1, coordinator_keys=["t"] * 1_000)
    assert len(found.coordinators) == 1


async def test_an_answer_that_grows_too_large_puts_the_other_groups_off(
    node: GroupNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(p09_offset_fetch, "_MAX_BYTES", 1_000)
    monkeypatch.setattr(p15_describe_groups, "_MAX_BYTES", 1_000)
    for group_id in ("a", "b", "c"):
        joined = await node.groups.join(joining(group_id, "m"))
        await node.groups.sync(syncing(group_id, joined.member_id, 1, **{joined.member_id: b"x" * 2_000}))
        commit = committing(group_id, *(("wide", shard, 5) for shard in range(200)))
        commit = replace(commit, member_id=joined.member_id, generation=1)
        assert await node.groups.commit_offsets(commit) == [OK] * 200
    wanted = [{"group_id": group_id, "topics": None} for group_id in "abc"]
    fetched = await ask(node, 9, 8, groups=wanted, require_stable=False)
    assert [group.error_code for group in fetched.groups] == [0, 14, 14]
    described = await ask(node, 15, 5, groups=list("abc"), include_authorized_operations=False)
    assert [group.error_code for group in described.groups] == [0, 14, 14]
    assert len(described.groups[0].members) == 1
