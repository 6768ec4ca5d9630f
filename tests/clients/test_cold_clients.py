"""Clients on data that lies in the object store alone: reading, times, limits, restarts; and on data on its way."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest

from stratalog.admin_api.client import AdminClient
from stratalog.admin_api.models import SealRequest, Tier
from stratalog.formats.batches.records import NEXT_OFFSET, Record, encode_batch
from support.files import files_below
from support.foreign_clients import CLIENTS, CODECS, ForeignClient, Message
from support.node_process import NodeProcess
from support.raw_client import RawClient, batch_of
from support.topics import create_topic, delete_topic, produce, read, values_of
from support.waiting import eventually_sync

PATIENCE_S = 60
QUICK = {
    "remote.upload.interval.ms": 100,
    "log.retention.ms": -1,
    "log.retention.check.interval.ms": 100,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 2,
}
FREED_AT_ONCE = {"segment.bytes": 20_000, "local.retention.ms": 1}


@pytest.fixture(scope="module")
def cold_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    directory = tmp_path_factory.mktemp("cold")
    with NodeProcess(directory / "data", str(directory / "bucket"), QUICK) as node:
        yield node


def freeze(node: NodeProcess, topic: str) -> None:
    """Seals the topic and waits until none of its records is on the local disk."""
    admin = AdminClient(node.admin)
    admin.seal(SealRequest(topic=topic))

    def is_cold() -> bool:
        segments = [segment for segment in admin.segments(topic) if segment.end_offset > segment.base_offset]
        return bool(segments) and all(segment.tier is Tier.COLD for segment in segments)

    eventually_sync(is_cold, PATIENCE_S)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_every_client_reads_cold_segments_of_every_codec(
    client: ForeignClient, cold_node: NodeProcess, topic: str
) -> None:
    if reason := client.missing():
        pytest.skip(reason)
    create_topic(cold_node.bootstrap, topic, settings=FREED_AT_ONCE)
    expected = []
    for codec in CODECS:
        if client.missing(codec) is None:
            messages = [Message(b"%d" % n, f"{codec} {n} ".encode() + b"cold " * 40) for n in range(100)]
            client.produce(cold_node.bootstrap, topic, messages, codec)
            expected += messages
    freeze(cold_node, topic)
    before = cold_node.metrics()["stratalog_log_cold_reads_total"]
    assert client.consume(cold_node.bootstrap, topic, len(expected)) == expected
    assert cold_node.metrics()["stratalog_log_cold_reads_total"] > before


@pytest.mark.fault("cold-readers-far-apart")
def test_a_group_four_seconds_behind_another_fetches_nothing_again(cold_node: NodeProcess, topic: str) -> None:
    create_topic(cold_node.bootstrap, topic, settings={"segment.bytes": 1_000_000, "local.retention.ms": 1})
    sent = [b"%05d" % number + bytes(20_000) for number in range(500)]
    produce(cold_node.bootstrap, topic, sent)
    freeze(cold_node, topic)
    before = cold_node.metrics()
    assert values_of(read(cold_node.bootstrap, topic, len(sent))) == sent
    time.sleep(4)  # how far the second group is behind: the test's input
    assert values_of(read(cold_node.bootstrap, topic, len(sent))) == sent
    after = cold_node.metrics()
    size = sum(map(len, sent))
    fetched, used = (
        after[name] - before[name]
        for name in ("stratalog_cold_read_fetched_bytes_total", "stratalog_cold_read_used_bytes_total")
    )
    assert used >= 2 * size
    assert size <= fetched <= 1.1 * size
    reads = json.loads(cold_node.get("/v1/status"))["cold_reads"]
    assert reads["served_bytes"] == after["stratalog_cold_read_used_bytes_total"]
    assert reads["fetched_bytes"] == after["stratalog_cold_read_fetched_bytes_total"]
    page = cold_node.get("/nodes/1")
    assert "Cold reads" in page and "in memory" in page


@pytest.mark.fault("start-trim-inside-batch")
def test_times_are_exact_inside_a_cold_compressed_batch(cold_node: NodeProcess, topic: str) -> None:
    create_topic(cold_node.bootstrap, topic, settings={"segment.bytes": 1000, "local.retention.ms": 1})
    base_ms = 1_700_000_000_000
    with RawClient(cold_node.bootstrap) as raw:
        for number in range(20):
            times = [base_ms + 1000 * number + step for step in (0, 30, 10, 60)]
            batch = encode_batch([Record(NEXT_OFFSET, time, None, bytes(100)) for time in times], compression=4)
            assert raw.produce(topic, batch).base_offset == 4 * number
    freeze(cold_node, topic)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": cold_node.bootstrap, "group.id": "unused"})
    asked = {0: 0, 1: 1, 31: 3, 61: 4, 7_020: 29, 19_031: 79}
    found = {
        after: consumer.offsets_for_times([confluent_kafka.TopicPartition(topic, 0, base_ms + after)], 20)[0].offset
        for after in asked
    }
    consumer.close()
    assert found == asked


def test_size_limits_hold_for_cold_reads_too(cold_node: NodeProcess, topic: str) -> None:
    create_topic(cold_node.bootstrap, topic, 2, settings=FREED_AT_ONCE)
    batch = batch_of(bytes(5000))
    with RawClient(cold_node.bootstrap) as raw:
        for partition in (0, 1):
            for _ in range(12):
                raw.produce(topic, batch, partition=partition)
    freeze(cold_node, topic)
    with RawClient(cold_node.bootstrap) as raw:
        (tiny,) = raw.fetch(topic, 5, max_bytes=1, partition_max_bytes=1)
        assert [found.base_offset for found in tiny.batches()] == [5], "one whole batch (F58)"
        (some,) = raw.fetch(topic, 0, partition_max_bytes=2 * len(batch) + 100)
        assert [found.base_offset for found in some.batches()] == [0, 1]
        both = raw.fetch(topic, 0, partitions=(0, 1), max_bytes=3 * len(batch) + 100)
        assert 1 <= sum(len(answer.batches()) for answer in both) <= 3


@pytest.mark.fault("read-inside-file-crosses")
def test_a_reader_crosses_from_cold_to_hot_and_waits_at_the_end(cold_node: NodeProcess, topic: str) -> None:
    create_topic(cold_node.bootstrap, topic, settings=FREED_AT_ONCE)
    produce(cold_node.bootstrap, topic, (b"cold %d" % number + bytes(500) for number in range(200)), linger_ms=0)
    freeze(cold_node, topic)
    produce(cold_node.bootstrap, topic, (b"hot %d" % number for number in range(20)))
    values = values_of(read(cold_node.bootstrap, topic, 220))
    assert [value.rstrip(b"\0") for value in values] == [
        *(b"cold %d" % number for number in range(200)),
        *(b"hot %d" % number for number in range(20)),
    ]


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_cold_data_is_read_after_a_restart(
    end: str, start_node: Callable[..., NodeProcess], topic: str, tmp_path: Path
) -> None:
    node = start_node(bucket=str(tmp_path / "bucket"), settings=QUICK)
    create_topic(node.bootstrap, topic, settings=FREED_AT_ONCE)
    values = [b"%d" % number + bytes(500) for number in range(200)]
    produce(node.bootstrap, topic, values, linger_ms=0)
    freeze(node, topic)
    getattr(node, end)()
    node.start()
    assert values_of(read(node.bootstrap, topic, 200)) == values
    produce(node.bootstrap, topic, [b"more"])
    assert values_of(read(node.bootstrap, topic, 1, offset=200)) == [b"more"]


def test_readers_keep_up_while_segments_roll_move_and_are_freed(cold_node: NodeProcess, topic: str) -> None:
    create_topic(cold_node.bootstrap, topic, settings=FREED_AT_ONCE)
    count = 6000
    values = [b"%d " % number + bytes(200) for number in range(count)]
    writer = threading.Thread(
        target=produce, args=(cold_node.bootstrap, topic, values), kwargs={"batch_size": 5000, "linger_ms": 1}
    )
    writer.start()
    readings: list[list[bytes]] = [[], []]

    def follow(place: int) -> None:
        readings[place] = values_of(read(cold_node.bootstrap, topic, count))

    readers = [threading.Thread(target=follow, args=(place,)) for place in range(2)]
    for thread in readers:
        thread.start()
    for thread in [writer, *readers]:
        thread.join(PATIENCE_S)
    assert readings[0] == values
    assert readings[1] == values


@pytest.mark.fault("topic-deleted-uploaded-request")
def test_deleted_records_and_topics_leave_the_bucket(
    start_node: Callable[..., NodeProcess], topic: str, tmp_path: Path
) -> None:
    bucket = tmp_path / "bucket"
    node = start_node(bucket=str(bucket), settings=QUICK | {"remote.delete.delay.ms": 100})
    create_topic(node.bootstrap, topic, settings=FREED_AT_ONCE)
    produce(node.bootstrap, topic, (bytes(500) for _ in range(200)), batch_size=3000, linger_ms=0)
    freeze(node, topic)
    topic_id = AdminClient(node.admin).topic(topic).topic.topic_id

    def objects() -> list[Path]:
        return [path for path in files_below(bucket) if topic_id in path.parts]

    all_of_them = len(objects())
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": node.bootstrap})
    for future in admin.delete_records([confluent_kafka.TopicPartition(topic, 0, 150)]).values():
        assert future.result(20).low_watermark == 150
    eventually_sync(lambda: 0 < len(objects()) < all_of_them / 2, PATIENCE_S)
    assert [message.offset() for message in read(node.bootstrap, topic, 50, offset=150)] == list(range(150, 200))
    delete_topic(node.bootstrap, topic)
    eventually_sync(lambda: not objects(), PATIENCE_S)
