"""Changes of a topic at the same time: each holds, costs its one write, and leaves settings that fit together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import pytest

from stratalog.model.commands.table_commands import AlterTopic, CreateTopic, DeleteTopic, RegisterNode
from stratalog.model.errors import Conflict, InvalidRequest, NotFound
from stratalog.model.metadata import NodeInfo
from stratalog.model.topic import Topic
from stratalog.settings.process import ProcessSettings
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from stratalog_node.topic_changes import Change, TopicChanges
from support.gated_meta import GatedMeta

KEYS = ["retention.ms", "segment.ms", "retention.bytes", "max.message.bytes", "segment.bytes"]


@pytest.fixture
async def meta() -> AsyncIterator[GatedMeta]:
    service = MetaService(MemoryStore(), lambda: 0)
    await service.start()
    await service.perform(RegisterNode(NodeInfo(1, "disk-1", "localhost", 9092)))
    yield GatedMeta(service)
    await service.close()


def through(meta: GatedMeta) -> TopicChanges:
    """A node's way to change topics."""
    return TopicChanges(cast(Any, meta), ProcessSettings())


async def made(meta: GatedMeta, **settings: str) -> Topic:
    return await meta.service.perform(CreateTopic("orders", shard_count=1, replication_factor=1, settings=settings))


def setting(key: str, value: str) -> Change:
    def change(present: Mapping[str, str]) -> Mapping[str, str]:
        return dict(present) | {key: value}

    return change


@pytest.mark.fault("clients-change-topic-kafka")
async def test_changes_of_many_keys_at_once_all_hold_and_cost_a_write_each(meta: GatedMeta) -> None:
    topic = await made(meta)
    node = through(meta)
    await asyncio.gather(*(node.alter(topic.topic_id, setting(key, "5000")) for key in KEYS * 20))
    assert dict((await meta.service.topic(topic.topic_id)).settings) == dict.fromkeys(KEYS, "5000")
    assert meta.calls[AlterTopic] == len(KEYS), "none is made twice, and one that changes nothing is not written"
    assert not node._lines


@pytest.mark.fault("clients-change-topic-kafka")
async def test_a_change_that_another_node_overtook_is_made_again_over_what_is_there(meta: GatedMeta) -> None:
    topic = await made(meta)
    first, second = through(meta), through(meta)
    meta.hold(AlterTopic)
    asked = [
        asyncio.ensure_future(node.alter(topic.topic_id, setting(key, "5000")))
        for node, key in ((first, "retention.ms"), (second, "segment.ms"))
    ]
    while meta.calls[AlterTopic] < 2:
        await asyncio.sleep(0)
    meta.release(AlterTopic)
    await asyncio.gather(*asked)
    assert dict((await meta.service.topic(topic.topic_id)).settings) == {"retention.ms": "5000", "segment.ms": "5000"}


@pytest.mark.fault("clients-change-topic-kafka")
async def test_changes_that_fit_alone_and_not_together_do_not_both_happen(meta: GatedMeta) -> None:
    topic = await made(meta, **{"retention.ms": "9000"})
    first, second = through(meta), through(meta)
    outcomes = await asyncio.gather(
        first.alter(topic.topic_id, setting("local.retention.ms", "8000")),
        second.alter(topic.topic_id, setting("retention.ms", "5000")),
        return_exceptions=True,
    )
    assert sum(isinstance(outcome, InvalidRequest) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, Topic) for outcome in outcomes) == 1


@pytest.mark.fault("clients-change-topic-kafka")
async def test_settings_and_shards_change_together_or_not_at_all(meta: GatedMeta) -> None:
    topic = await made(meta)
    node = through(meta)
    with pytest.raises(InvalidRequest, match="only grows"):
        await node.alter(topic.topic_id, setting("retention.ms", "5000"), shard_count=1)
    with pytest.raises(InvalidRequest, match=r"retention\.ms"):
        await node.alter(topic.topic_id, setting("retention.ms", "soon"), shard_count=4)
    assert await meta.service.topic(topic.topic_id) == topic
    altered = await node.alter(topic.topic_id, setting("retention.ms", "5000"), shard_count=4)
    assert (altered.shard_count, dict(altered.settings)) == (4, {"retention.ms": "5000"})


async def test_a_trial_judges_and_writes_nothing(meta: GatedMeta) -> None:
    topic = await made(meta)
    node = through(meta)
    assert await node.alter(topic.topic_id, setting("retention.ms", "5000"), is_trial=True) == topic
    with pytest.raises(InvalidRequest):
        await node.alter(topic.topic_id, setting("retention.ms", "soon"), is_trial=True)
    assert meta.calls[AlterTopic] == 0


async def test_endless_changes_by_others_and_a_missing_topic_are_reported(meta: GatedMeta) -> None:
    topic = await made(meta)
    node = through(meta)
    meta.fail(AlterTopic, *(Conflict("changed since it was read") for _ in range(1000)))
    with pytest.raises(Conflict):
        await node.alter(topic.topic_id, setting("retention.ms", "5000"))
    assert meta.calls[AlterTopic] < 1000
    meta.open_all()
    await meta.service.perform(DeleteTopic(topic.topic_id))
    with pytest.raises(NotFound):
        await node.alter(topic.topic_id, setting("retention.ms", "5000"))
