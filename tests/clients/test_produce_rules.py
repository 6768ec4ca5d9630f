"""What a produce request is answered: acks, append time, size limits, auto-creation."""

from __future__ import annotations

import time
from collections.abc import Callable

import confluent_kafka
import kafka.errors
import pytest
from confluent_kafka.admin import AdminClient
from kafka import KafkaProducer

from support.node_process import NodeProcess
from support.raw_client import RawClient, batch_of
from support.topics import create_topic, read, values_of
from support.waiting import eventually_sync

MESSAGE_TOO_LARGE, INVALID_REQUIRED_ACKS, INVALID_TIMESTAMP, CORRUPT, INVALID_RECORD = 10, 21, 32, 2, 87


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_a_record_arrives_with_every_acks(acks: str, node: NodeProcess, topic: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": node.bootstrap, "acks": acks})
    for number in range(100):
        producer.produce(topic, b"%d" % number)
    assert producer.flush(20) == 0

    assert values_of(read(node.bootstrap, topic, 100)) == [b"%d" % number for number in range(100)]


def test_acks_0_is_never_answered_and_a_refusal_closes_the_connection(node: NodeProcess, topic: str) -> None:
    create_topic(node.bootstrap, topic)
    with RawClient(node.bootstrap) as raw:
        raw.send(raw.produce_frame(topic, batch_of(b"silent"), acks=0))
        assert raw.produce(topic, batch_of(b"answered"), acks=1).base_offset == 1, "the first answer is this one's"

        raw.send(raw.produce_frame("no-such-topic", batch_of(b"lost"), acks=0))
        assert raw.is_closed_by_node()
    assert values_of(read(node.bootstrap, topic, 2)) == [b"silent", b"answered"]


def test_acks_that_do_not_exist_are_refused(node: NodeProcess, topic: str) -> None:
    create_topic(node.bootstrap, topic)
    with RawClient(node.bootstrap) as raw:
        assert raw.produce(topic, batch_of(b"x"), acks=2).error_code == INVALID_REQUIRED_ACKS


def test_append_time_replaces_the_producers_time_and_both_sides_get_it(node: NodeProcess, topic: str) -> None:
    create_topic(node.bootstrap, topic, settings={"message.timestamp.type": "LogAppendTime"})
    before_ms = int(time.time() * 1000)
    with RawClient(node.bootstrap) as raw:
        produced = raw.produce(topic, batch_of(b"a", b"b", compression=3))
    assert produced.error_code == 0
    assert before_ms - 1000 <= produced.log_append_time_ms <= int(time.time() * 1000) + 1000

    messages = read(node.bootstrap, topic, 2)
    appended = (confluent_kafka.TIMESTAMP_LOG_APPEND_TIME, produced.log_append_time_ms)
    assert [(message.value(), message.timestamp()) for message in messages] == [(b"a", appended), (b"b", appended)]


def test_a_time_too_far_in_the_future_is_refused_by_name(node: NodeProcess, topic: str) -> None:
    create_topic(node.bootstrap, topic, settings={"message.timestamp.after.max.ms": 1000})
    producer = KafkaProducer(bootstrap_servers=node.bootstrap, retries=0)
    future = producer.send(topic, b"tomorrow", timestamp_ms=int(time.time() * 1000) + 86_400_000)
    with pytest.raises(kafka.errors.InvalidTimestampError):
        future.get(10)
    producer.close()


def test_a_batch_of_exactly_max_message_bytes_is_taken_and_one_byte_more_is_refused(
    node: NodeProcess, topic: str
) -> None:
    limit = 100_000
    create_topic(node.bootstrap, topic, settings={"max.message.bytes": limit})
    overhead = len(batch_of(bytes(limit // 2))) - limit // 2
    with RawClient(node.bootstrap) as raw:
        fits = batch_of(bytes(limit - overhead))
        assert len(fits) == limit
        assert raw.produce(topic, fits).error_code == 0

        refused = raw.produce(topic, batch_of(bytes(limit - overhead + 1)))
    assert refused.error_code == MESSAGE_TOO_LARGE
    assert refused.error_message is not None
    assert "max.message.bytes" in refused.error_message and str(limit + 1) in refused.error_message


def test_clients_name_the_error_of_a_batch_that_is_too_large(node: NodeProcess, topic: str) -> None:
    create_topic(node.bootstrap, topic, settings={"max.message.bytes": 10_000})
    failures: list[confluent_kafka.KafkaError] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": node.bootstrap})
    producer.produce(topic, bytes(20_000), on_delivery=lambda error, _: failures.append(error))
    producer.flush(20)
    assert [failure.code() for failure in failures] == [confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE]

    strict = KafkaProducer(bootstrap_servers=node.bootstrap)
    with pytest.raises(kafka.errors.MessageSizeTooLargeError):
        strict.send(topic, bytes(20_000)).get(10)
    strict.close()


def test_a_batch_of_eight_mebibytes_goes_in_and_out_whole(node: NodeProcess, topic: str) -> None:
    create_topic(node.bootstrap, topic, settings={"max.message.bytes": 9 << 20})
    large = b"0123456789abcdef" * (8 << 16)
    producer = confluent_kafka.Producer({"bootstrap.servers": node.bootstrap, "message.max.bytes": 9 << 20})
    producer.produce(topic, large)
    producer.produce(topic, b"after")
    assert producer.flush(20) == 0
    assert values_of(read(node.bootstrap, topic, 2)) == [large, b"after"]


def test_a_damaged_batch_is_refused_and_the_connection_continues(node: NodeProcess, topic: str) -> None:
    create_topic(node.bootstrap, topic)
    good = batch_of(b"good")
    damaged = good[:-1] + bytes([good[-1] ^ 1])
    with RawClient(node.bootstrap) as raw:
        assert raw.produce(topic, damaged).error_code == CORRUPT
        assert raw.produce(topic, good + good).error_code == INVALID_RECORD
        assert raw.produce(topic, good[:-1]).error_code == CORRUPT
        assert raw.produce(topic, good[:40]).error_code == INVALID_RECORD, "as from Kafka: it is no batch"
        assert raw.produce(topic, good).base_offset == 0


def test_answers_come_in_the_order_of_the_requests(node: NodeProcess, topic: str) -> None:
    create_topic(node.bootstrap, topic)
    with RawClient(node.bootstrap) as raw:
        raw.send(b"".join(raw.produce_frame(topic, batch_of(b"%d" % number)) for number in range(300)))
        offsets = [raw.receive_produced().base_offset for _ in range(300)]
    assert offsets == list(range(300))


def test_topics_are_made_on_demand_only_where_the_setting_says_so(
    start_node: Callable[..., NodeProcess], node: NodeProcess, topic: str
) -> None:
    producer = KafkaProducer(bootstrap_servers=node.bootstrap)
    assert producer.send(topic, b"first").get(10).offset == 0
    producer.close()

    strict = start_node(settings={"auto.create.topics.enable": False})
    failures: list[confluent_kafka.KafkaError] = []
    hopeful = confluent_kafka.Producer(
        {"bootstrap.servers": strict.bootstrap, "message.timeout.ms": 1500, "topic.metadata.propagation.max.ms": 100}
    )
    hopeful.produce(topic, b"first", on_delivery=lambda error, _: failures.append(error))
    eventually_sync(lambda: hopeful.poll(0.1) or failures, 20)
    assert failures[0].code() in (
        confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART,
        confluent_kafka.KafkaError._UNKNOWN_TOPIC,
    )
    assert AdminClient({"bootstrap.servers": strict.bootstrap}).list_topics(timeout=10).topics.keys() <= {
        "__consumer_offsets"
    }


def test_auto_created_topics_get_num_partitions_shards(start_node: Callable[..., NodeProcess], topic: str) -> None:
    node = start_node(settings={"num.partitions": 5})
    producer = KafkaProducer(bootstrap_servers=node.bootstrap)
    assert producer.partitions_for(topic) == set(range(5))
    producer.close()


def test_a_transactional_producer_learns_at_once_that_there_are_no_transactions(node: NodeProcess) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": node.bootstrap, "transactional.id": "t", "log_level": 0})
    with pytest.raises(confluent_kafka.KafkaException, match="transactions are not offered"):
        producer.init_transactions(60)

    other = KafkaProducer(bootstrap_servers=node.bootstrap, transactional_id="t", max_block_ms=60_000)
    with pytest.raises(kafka.errors.TransactionalIdAuthorizationFailedError):
        other.init_transactions()
    other.close(0)
