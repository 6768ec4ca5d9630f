"""Metadata over the real meta service, as kafka-python reads it."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from stratalog.model.commands.table_commands import AddShards, Command, DeleteTopic
from stratalog.model.errors import Unavailable
from stratalog.model.ids import ShardKey
from stratalog.model.listeners import INTERNAL
from stratalog_node.serve.api import p03_metadata
from stratalog_node.serve.connections.metadata_entries import MetadataEntries
from stratalog_node.slices import UNITS_PER_SLICE
from support.control_bench import control_bench
from support.loop_turns import Turns

ALL = range(13)


@pytest.mark.parametrize("version", ALL)
async def test_nodes_and_leaders_are_listed_under_the_listeners_address(version: int) -> None:
    async with control_bench() as bench:
        topic = await bench.topic("orders", shards=3)
        told = await bench.ask(3, version, topics=[{"name": "orders"}])
        (broker,) = told.brokers
        assert (broker.node_id, broker.host, broker.port) == (1, "advertised.example", 9092)
        if version >= 1:
            assert (broker.rack, told.controller_id) == ("a", 1)
        if version >= 2:
            assert told.cluster_id == bench.services.cluster_id
        (answer,) = told.topics
        assert (answer.error_code, answer.name) == (0, "orders")
        if version >= 10:
            assert answer.topic_id == topic.topic_id
        assert [(p.partition_index, p.leader_id, p.replica_nodes, p.isr_nodes) for p in answer.partitions] == [
            (index, 1, [1], [1]) for index in range(3)
        ]
        if version >= 7:
            assert [p.leader_epoch for p in answer.partitions] == [0, 0, 0]


@pytest.mark.parametrize("version", ALL)
async def test_null_asks_for_all_topics_and_an_empty_list_for_no_topic(version: int) -> None:
    async with control_bench() as bench:
        await bench.topic("one")
        await bench.topic("two")
        empty = await bench.ask(3, version, topics=[])
        assert sorted(topic.name for topic in empty.topics) == (["one", "two"] if version == 0 else [])
        if version >= 1:
            everything = await bench.ask(3, version, topics=None)
            assert sorted(topic.name for topic in everything.topics) == ["one", "two"]


@pytest.mark.fault("clients-ask-topics-once", "clients-ask-topics-once-restart")
async def test_all_topics_are_listed_in_slices() -> None:
    async with control_bench() as bench:
        pieces = bench.services.control.metadata
        for number in range(3 * UNITS_PER_SLICE):
            await bench.topic(f"topic-{number}")
        async with Turns(lambda: pieces.encoded_count) as turns:
            told = await bench.ask(3, 9, topics=None)
        assert len(told.topics) == 3 * UNITS_PER_SLICE and turns.most == UNITS_PER_SLICE


@pytest.mark.parametrize("version", ALL)
async def test_a_missing_topic_is_made_when_client_and_settings_allow_it(version: int) -> None:
    async with control_bench(num_partitions=2) as bench:
        told = await bench.ask(3, version, topics=[{"name": "fresh"}], allow_auto_topic_creation=True)
        assert [(topic.error_code, len(topic.partitions)) for topic in told.topics] == [(0, 2)]
        refused = await bench.ask(3, version, topics=[{"name": "other"}], allow_auto_topic_creation=False)
        # Before version 4 clients could not say so, and it counts as allowed.
        assert [topic.error_code for topic in refused.topics] == [3 if version >= 4 else 0]


async def test_the_setting_forbids_making_topics() -> None:
    async with control_bench(auto_create_topics_enable=False) as bench:
        told = await bench.ask(3, 9, topics=[{"name": "fresh"}], allow_auto_topic_creation=True)
        assert [topic.error_code for topic in told.topics] == [3]


@pytest.mark.fault("topic-name-collides")
async def test_a_topic_whose_name_collides_is_not_made_by_asking_for_it() -> None:
    async with control_bench() as bench:
        await bench.topic("a.b")
        told = await bench.ask(3, 9, topics=[{"name": "a_b"}], allow_auto_topic_creation=True)
        assert [(one.name, one.error_code) for one in told.topics] == [("a_b", 3)], "as Kafka 4.3.1 answers"
        assert [topic.name for topic in bench.catalog.topics()] == ["a.b"]


@pytest.mark.parametrize(("name", "code"), [("sp ace", 17), ("..", 17), ("x" * 250, 17), ("__consumer_offsets", 3)])
async def test_bad_and_internal_names_are_never_made(name: str, code: int) -> None:
    async with control_bench() as bench:
        told = await bench.ask(3, 9, topics=[{"name": name}], allow_auto_topic_creation=True)
        assert [topic.error_code for topic in told.topics] == [code]
        assert bench.catalog.topic(name) is None


async def test_two_clients_asking_at_once_get_one_topic() -> None:
    async with control_bench() as bench:
        answers = await asyncio.gather(
            *(bench.ask(3, 9, topics=[{"name": "fresh"}], allow_auto_topic_creation=True) for _ in range(5))
        )
        assert {answer.topics[0].error_code for answer in answers} == {0}
        assert len(list(bench.catalog.topics())) == 1


async def test_a_topic_that_cannot_be_made_now_is_a_retriable_error() -> None:
    async with control_bench() as bench:

        async def away(*_: object, **__: object) -> None:
            raise Unavailable("the meta service is away")

        bench.meta.perform = away  # type: ignore[method-assign, assignment]
        told = await bench.ask(3, 9, topics=[{"name": "fresh"}], allow_auto_topic_creation=True)
        assert [topic.error_code for topic in told.topics] == [5]


async def test_a_service_that_does_not_answer_holds_a_request_up_once_however_many_topics_it_asks_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(p03_metadata, "_CREATE_PATIENCE_S", 0.05)
    async with control_bench() as bench:
        asked = []

        async def silent(command: Command) -> None:
            asked.append(command)
            await asyncio.Event().wait()

        bench.meta.perform = silent  # type: ignore[method-assign, assignment]
        topics = [{"name": f"fresh-{number}"} for number in range(2_000)]
        told = await bench.ask(3, 9, topics=topics, allow_auto_topic_creation=True)
        assert {topic.error_code for topic in told.topics} == {5}
        assert len(told.topics) == 2_000
        assert len(asked) == 1


async def test_version_12_finds_topics_by_id() -> None:
    async with control_bench() as bench:
        topic = await bench.topic("orders")
        told = await bench.ask(
            3, 12, topics=[{"topic_id": topic.topic_id, "name": None}, {"topic_id": UUID(int=5), "name": None}]
        )
        assert [(one.error_code, one.name) for one in told.topics] == [(0, "orders"), (100, None)]


async def test_the_leader_epoch_grows_with_every_roll() -> None:
    async with control_bench() as bench:
        topic = await bench.topic("orders", shards=2)
        epochs = []
        for end_offset in (10, 25, 30):
            await bench.roll(topic, end_offset, index=1)
            told = await bench.ask(3, 9, topics=[{"name": "orders"}])
            epochs.append([p.leader_epoch for p in told.topics[0].partitions])
        assert epochs == [[0, 1], [0, 2], [0, 3]]


async def test_a_topic_is_encoded_again_only_when_a_placement_changed() -> None:
    async with control_bench() as bench:
        pieces = bench.services.control.metadata
        topic = await bench.topic("orders", shards=2)
        await bench.ask(3, 9, topics=None)
        assert pieces.encoded_count == 1
        await bench.ask(3, 9, topics=None)
        await bench.topic("other")  # the catalog's version moves, this topic does not
        await bench.ask(3, 9, topics=[{"name": "orders"}])
        assert pieces.encoded_count == 1
        await bench.roll(topic, 5)
        await bench.ask(3, 9, topics=[{"name": "orders"}])
        assert pieces.encoded_count == 2
        await bench.meta.perform(AddShards(topic.topic_id, 3))
        await bench.shown(lambda: bench.catalog.has_shard(ShardKey(topic.topic_id, 2)))
        told = await bench.ask(3, 9, topics=[{"name": "orders"}])
        assert len(told.topics[0].partitions) == 3


@pytest.mark.fault("clients-ask-topic-10")
async def test_of_a_topic_of_many_shards_only_those_that_moved_are_encoded_again() -> None:
    """After a node died its shards find new leaders one by one, and each client asks for all of a topic meanwhile."""
    async with control_bench() as bench:
        pieces = bench.services.control.metadata
        topic = await bench.topic("orders", shards=40)
        await bench.ask(3, 9, topics=[{"name": "orders"}])
        assert pieces.encoded_shards == 40
        for epoch, index in enumerate((3, 17, 17), 1):
            await bench.roll(topic, 5 * epoch, index=index)
            told = await bench.ask(3, 9, topics=[{"name": "orders"}])
            assert pieces.encoded_shards == 40 + epoch
        epochs = {p.partition_index: p.leader_epoch for p in told.topics[0].partitions}
        assert epochs == dict.fromkeys(range(40), 0) | {3: 1, 17: 2}
        fresh = MetadataEntries().topic(bench.catalog, topic, 9, INTERNAL)
        assert pieces.topic(bench.catalog, topic, 9, INTERNAL) == fresh


async def test_a_topic_made_again_has_the_new_id() -> None:
    async with control_bench() as bench:
        old = await bench.topic("orders")
        await bench.ask(3, 10, topics=None)
        await bench.meta.perform(DeleteTopic(old.topic_id))
        await bench.shown(lambda: bench.catalog.topic("orders") is None)
        new = await bench.topic("orders")
        told = await bench.ask(3, 10, topics=None)
        assert [topic.topic_id for topic in told.topics] == [new.topic_id]
