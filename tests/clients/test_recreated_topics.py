"""A topic deleted and made again under its name is another topic: a new id, offset 0, never a byte of the old one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest

from support import kafka_oracle
from support.files import files_below
from support.node_process import NodeProcess
from support.raw_client import RawClient, batch_of
from support.topics import create_topic, delete_topic, produce, read, values_of
from support.waiting import eventually_sync

UNKNOWN_TOPIC = 3


def topic_id(node: NodeProcess, topic: str) -> Any:
    request = kafka_oracle.request_class(3)
    with RawClient(node.bootstrap) as raw:
        answer = raw.call(
            3,
            10,
            topics=[request.MetadataRequestTopic(version=10, topic_id=None, name=topic)],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
    return answer.topics[0].topic_id


def test_a_recreated_topic_has_a_new_id_and_starts_at_0(node: NodeProcess, topic: str) -> None:
    seen_ids = set()
    for generation in range(3):
        create_topic(node.bootstrap, topic, 2)
        seen_ids.add(topic_id(node, topic))
        values = [b"generation %d, %d" % (generation, number) for number in range(20)]
        produce(node.bootstrap, topic, values, partition=1)
        assert values_of(read(node.bootstrap, topic, 20, partition=1)) == values
        with RawClient(node.bootstrap) as raw:
            (other,) = raw.fetch(topic, 0, partitions=(0,), max_wait_ms=0)
        assert (other.error_code, other.high_watermark) == (0, 0)
        delete_topic(node.bootstrap, topic)
        with RawClient(node.bootstrap) as raw:
            assert raw.fetch(topic, 0)[0].error_code == UNKNOWN_TOPIC
            assert raw.produce(topic, batch_of(b"into the void")).error_code == UNKNOWN_TOPIC
    assert len(seen_ids) == 3


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_old_data_does_not_come_back_with_a_restart(
    end: str, start_node: Callable[..., NodeProcess], topic: str
) -> None:
    node = start_node()
    create_topic(node.bootstrap, topic, settings={"segment.bytes": 1000})
    produce(node.bootstrap, topic, (b"old" + bytes(200) for _ in range(50)), linger_ms=0)
    delete_topic(node.bootstrap, topic)
    create_topic(node.bootstrap, topic)
    produce(node.bootstrap, topic, [b"new"])
    new_id = topic_id(node, topic)
    getattr(node, end)()
    node.start()
    assert topic_id(node, topic) == new_id
    with RawClient(node.bootstrap) as raw:
        (found,) = raw.fetch(topic, 0)
    assert (found.log_start_offset, found.high_watermark) == (0, 1)
    assert values_of(read(node.bootstrap, topic, 1)) == [b"new"]


def test_local_files_of_a_deleted_topic_go(start_node: Callable[..., NodeProcess], topic: str) -> None:
    node = start_node(settings={"remote.delete.delay.ms": 100, "log.retention.check.interval.ms": 100})
    create_topic(node.bootstrap, topic, settings={"segment.bytes": 1000})
    produce(node.bootstrap, topic, (bytes(200) for _ in range(50)), linger_ms=0)
    directory = node.data_dir / "node" / "segments" / str(topic_id(node, topic))
    assert files_below(directory, ".seg")
    delete_topic(node.bootstrap, topic)
    eventually_sync(lambda: not files_below(directory, ".seg"), 20)


def test_a_waiting_fetch_gets_an_error_when_its_topic_is_deleted(node: NodeProcess, topic: str) -> None:
    create_topic(node.bootstrap, topic)
    with RawClient(node.bootstrap, timeout=20) as raw:
        raw.send(raw.fetch_frame(topic, 0, max_wait_ms=600_000))
        delete_topic(node.bootstrap, topic)
        assert raw.receive_fetched()[0].error_code == UNKNOWN_TOPIC


def test_a_topic_can_go_and_come_while_producers_write_to_it(node: NodeProcess, topic: str) -> None:
    create_topic(node.bootstrap, topic)
    stopping = threading.Event()
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": node.bootstrap, "log_level": 0, "topic.metadata.propagation.max.ms": 100}
    )

    def write() -> None:
        while not stopping.is_set():
            producer.produce(topic, b"storm", partition=0)
            producer.poll(0.001)

    writer = threading.Thread(target=write)
    writer.start()
    for _ in range(5):
        delete_topic(node.bootstrap, topic)
        try:
            create_topic(node.bootstrap, topic)
        except confluent_kafka.KafkaException as error:
            # The producer was first: what it asks for is made on demand.
            assert error.args[0].code() == confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS
    stopping.set()
    writer.join(20)
    producer.purge()
    producer.close()
    delete_topic(node.bootstrap, topic)
    create_topic(node.bootstrap, topic)
    produce(node.bootstrap, topic, [b"calm"])
    messages = read(node.bootstrap, topic, 1)
    assert [(message.offset(), message.value()) for message in messages] == [(0, b"calm")]
