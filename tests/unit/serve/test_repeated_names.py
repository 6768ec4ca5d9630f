"""Things that one request names repeatedly: answered once, and refused where it is unclear which one counts (Kafka)."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from stratalog.kafka.errors import MalformedFrame
from stratalog.kafka.fetch import decode_fetch
from stratalog.kafka.produce import decode_produce
from support.control_bench import control_bench
from support.kafka_oracle import decode_response, request_class
from support.loop_turns import Turns
from support.request_costs import Calls, handled, request_of
from support.serve_rig import ServeRig

TOPIC = 2


@pytest.mark.parametrize("version", [0, 4, 9, 12])
async def test_metadata_answers_each_topic_once_in_the_order_of_the_request(version: int) -> None:
    async with control_bench(auto_create_topics_enable=False) as bench:
        topic = await bench.topic("orders", shards=2)
        asked = [{"name": name, "topic_id": UUID(int=0)} for name in ("orders", "never", "orders", "never")]
        if version >= 12:
            asked.append({"name": None, "topic_id": topic.topic_id})
        told = await bench.ask(3, version, topics=asked, allow_auto_topic_creation=False)
        names = [one.name for one in told.topics]
        assert names == (["orders", "never", "orders"] if version >= 12 else ["orders", "never"])


async def test_a_partition_named_repeatedly_is_refused_by_questions_about_offsets() -> None:
    async with control_bench() as bench:
        await bench.topic("orders", shards=2)
        twice = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
        topics = [{"name": "orders", "partitions": [twice, twice | {"partition_index": 1}]},
                  {"name": "orders", "partitions": [twice | {"timestamp": -2}]}]  # fmt: skip
        told = await bench.ask(2, 9, replica_id=-1, isolation_level=0, topics=topics)
        (topic,) = told.topics
        assert [(one.partition_index, one.error_code) for one in topic.partitions] == [(0, 42), (1, 0)]

        asked = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
        places = [{"topic": "orders", "partitions": [asked, asked | {"partition": 1}, asked]}]
        told = await bench.ask(23, 4, replica_id=-1, topics=places)
        (topic,) = told.topics
        assert [(one.partition, one.error_code) for one in topic.partitions] == [(0, 42), (1, 0)]


async def test_the_last_wish_counts_where_records_are_deleted() -> None:
    async with control_bench() as bench:
        topic = await bench.topic("orders")
        bench.shard(topic).times = [1] * 10
        wishes = [{"partition_index": 0, "offset": offset} for offset in (3, 7, 5)]
        told = await bench.ask(21, 2, topics=[{"name": "orders", "partitions": wishes}], timeout_ms=1000)
        (answer,) = told.topics[0].partitions
        assert (answer.error_code, answer.low_watermark) == (0, 5)


@pytest.mark.parametrize(
    ("keys", "told"),
    [((["retention.ms"], ["segment.bytes"]), {"retention.ms", "segment.bytes"}), ((["retention.ms"], None), None)],
)
async def test_all_requested_keys_of_a_resource_are_returned_at_once(keys: Any, told: set[str] | None) -> None:
    async with control_bench() as bench:
        await bench.topic("orders")
        resources = [{"resource_type": TOPIC, "resource_name": "orders", "configuration_keys": some} for some in keys]
        answer = await bench.ask(32, 4, resources=resources, include_synonyms=False, include_documentation=False)
        (result,) = answer.results
        names = {config.name for config in result.configs}
        assert names == told if told is not None else len(names) > 10


async def test_a_topic_named_twice_to_be_deleted_is_kept_by_name_and_by_id() -> None:
    async with control_bench() as bench:
        topic = await bench.topic("orders")
        for named in ({"name": "orders", "topic_id": UUID(int=0)}, {"name": None, "topic_id": topic.topic_id}):
            told = await bench.ask(20, 6, topics=[named, named], timeout_ms=1000)
            assert [one.error_code for one in told.responses] == [42]
        assert bench.catalog.topic("orders") == topic


class _Left:
    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        len("finalized")


def test_what_tests_before_left_behind_is_not_counted() -> None:
    left = [_Left() for _ in range(1_000)]
    gc.collect()  # now they are old, and no small collection finds them
    del left
    with Calls() as calls:
        assert not gc.isenabled()
        gc.collect()
    assert calls.count < 100


@pytest.mark.fault("request-names-topic-partition")
@pytest.mark.parametrize(
    ("key", "version"),
    [(2, 9), (3, 12), (10, 4), (19, 7), (20, 6), (21, 2), (23, 4), (32, 4), (33, 2), (35, 4), (37, 3), (44, 1)],
)
@pytest.mark.parametrize("is_one_name", [False, True])
async def test_a_request_about_thousands_of_things_does_not_block_the_loop(
    key: int, version: int, is_one_name: bool
) -> None:
    async with control_bench(auto_create_topics_enable=False) as bench:
        names = ["orders" if is_one_name else f"thing-{number}" for number in range(2_000)]
        request = request_of(key, version, names, num_partitions=0)
        await handled(bench, key, version, request_of(key, version, names[:1], num_partitions=0))
        with Calls() as calls:
            async with Turns(lambda: calls.count) as turns:
                await handled(bench, key, version, request)
        assert turns.most <= 20_000, "calls between two turns of the loop: some ten milliseconds"


@pytest.mark.fault("client-pipelines-large-control")
@pytest.mark.parametrize("version", [3, 8, 9, 11])
def test_topics_without_partitions_count_as_well_in_produce(version: int) -> None:
    many = 250_000
    if version >= 9:
        body = b"\x00" + b"\xff\xff" + bytes(4) + b"\xd1\xa1\x0f" + b"\x01\x01\x00" * many + b"\x00"
    else:
        body = b"\xff\xff" + b"\xff\xff" + bytes(4) + many.to_bytes(4, "big") + bytes(6) * many
    with pytest.raises(MalformedFrame, match="partitions in one Produce"):
        decode_produce(memoryview(body), 0, version)


@pytest.mark.fault("request-names-topic-partition")
@pytest.mark.parametrize("version", range(4, 13))
async def test_a_fetch_costs_what_its_distinct_partitions_cost(version: int, tmp_path: Path) -> None:
    def asked(partitions: int, topics: int) -> bytes:
        request = request_class(1)
        entry = request.FetchTopic.FetchPartition(version=version, partition=0, fetch_offset=0, partition_max_bytes=9)
        topic = request.FetchTopic(version=version, topic="flights", partitions=[entry] * partitions)
        return client.frame(
            1, version, replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, isolation_level=0, session_id=0,
            session_epoch=-1, topics=[topic] * topics, forgotten_topics_data=[], rack_id="",
        )  # fmt: skip

    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, bytes(1_000))
        client = rig.connect()
        answers = []
        for partitions, topics in ((1, 1), (100, 1), (30, 30)):
            request = asked(partitions, topics)  # the first of a version makes the client's classes for it
            with Calls() as calls:
                await client.write(request)
                answers.append((await client.read_frame())[8:])
            assert calls.count <= 3_000 + 300 * (partitions + topics) + 40 * partitions * topics
        assert answers[0] == answers[1] == answers[2]


@pytest.mark.fault("request-names-topic-partition")
@pytest.mark.parametrize("version", [8, 9])
async def test_a_produce_of_partitions_without_batches_is_malformed_above_a_few(version: int, tmp_path: Path) -> None:
    def asked(count: int) -> bytes:
        data = request_class(0).TopicProduceData
        partitions = [data.PartitionProduceData(version=version, index=0, records=None)] * count
        topic = data(version=version, name="flights", partition_data=partitions)
        return client.frame(0, version, transactional_id=None, acks=-1, timeout_ms=1_000, topic_data=[topic])

    async with ServeRig(tmp_path) as rig:
        await rig.shard_of()
        client = rig.connect()
        await client.write(asked(900))
        told = decode_response(0, version, await client.read_frame())
        assert {one.error_code for one in told.responses[0].partition_responses} != {0}
        await client.write(asked(2_000))
        assert await client.is_closed()
        assert rig.server.stats.closed_for_fault == 1


@pytest.mark.fault("client-pipelines-large-control")
@pytest.mark.parametrize("version", [4, 7, 12])
@pytest.mark.parametrize("where", ["asked", "forgotten"])
def test_topics_without_partitions_count_as_well_in_fetch(version: int, where: str) -> None:
    many = 250_000
    head = bytes(17) + (bytes(8) if version >= 7 else b"")
    if version >= 12:
        none, some = b"\x01", b"\xd1\xa1\x0f" + b"\x01\x01\x00" * many
    else:
        none, some = bytes(4), many.to_bytes(4, "big") + bytes(6) * many
    if where == "forgotten" and version < 7:
        return
    body = head + (some + none if where == "asked" else none + some) + b"\x01\x00"
    with pytest.raises(MalformedFrame, match="more partitions in one Fetch"):
        decode_fetch(memoryview(body), 0, version)
