"""Idempotent producers: repeated, pipelined and broken off by kill -9, and still each record once and in order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import confluent_kafka
import kafka
import pytest
from aiokafka import AIOKafkaProducer

from support.node_process import NodeProcess
from support.raw_client import RawClient, batch_of
from support.topics import create_topic, read, values_of
from support.waiting import eventually_sync

OUT_OF_ORDER, DUPLICATE, FENCED = 45, 46, 47


def new_producer_id(raw: RawClient) -> int:
    answer = raw.call(22, 4, transactional_id=None, transaction_timeout_ms=0, producer_id=-1, producer_epoch=-1)
    assert (answer.error_code, answer.producer_epoch) == (0, 0)
    return int(answer.producer_id)


def sequenced(producer_id: int, sequence: int, *values: bytes, epoch: int = 0) -> bytes:
    return batch_of(*values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def test_a_repeated_batch_is_answered_with_its_first_offset_and_not_appended(node: NodeProcess, topic: str) -> None:
    create_topic(node.bootstrap, topic)
    with RawClient(node.bootstrap) as raw:
        producer = new_producer_id(raw)
        batches = [sequenced(producer, 2 * n, b"%d" % (2 * n), b"%d" % (2 * n + 1)) for n in range(7)]
        first = [raw.produce(topic, batch).base_offset for batch in batches]
        again = [raw.produce(topic, batch) for batch in batches]
    assert first == [0, 2, 4, 6, 8, 10, 12]
    assert [answer.base_offset for answer in again[2:]] == first[2:], "the last five are remembered"
    assert [answer.error_code for answer in again] == [DUPLICATE, DUPLICATE, 0, 0, 0, 0, 0]
    assert values_of(read(node.bootstrap, topic, 14)) == [b"%d" % number for number in range(14)]


def test_a_repetition_in_the_same_pipeline_is_appended_once(node: NodeProcess, topic: str) -> None:
    create_topic(node.bootstrap, topic)
    with RawClient(node.bootstrap) as raw:
        producer = new_producer_id(raw)
        batches = [sequenced(producer, number, b"%d" % number) for number in range(5)]
        raw.send(b"".join(raw.produce_frame(topic, batch) for batch in [*batches, *batches]))
        answers = [raw.receive_produced() for _ in range(10)]
    assert [answer.base_offset for answer in answers] == [0, 1, 2, 3, 4] * 2
    assert values_of(read(node.bootstrap, topic, 5)) == [b"0", b"1", b"2", b"3", b"4"]


def test_gaps_and_old_epochs_are_refused(node: NodeProcess, topic: str) -> None:
    create_topic(node.bootstrap, topic)
    with RawClient(node.bootstrap) as raw:
        producer = new_producer_id(raw)
        assert raw.produce(topic, sequenced(producer, 0, b"a")).error_code == 0
        assert raw.produce(topic, sequenced(producer, 2, b"c")).error_code == OUT_OF_ORDER
        assert raw.produce(topic, sequenced(producer, 1, b"b")).error_code == 0
        assert raw.produce(topic, sequenced(producer, 5, b"x", epoch=1)).error_code == OUT_OF_ORDER
        assert raw.produce(topic, sequenced(producer, 0, b"c", epoch=1)).error_code == 0
        assert raw.produce(topic, sequenced(producer, 2, b"y")).error_code == FENCED
    assert values_of(read(node.bootstrap, topic, 3)) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_repetition_after_a_restart_is_still_known(
    end: str, start_node: Callable[..., NodeProcess], topic: str
) -> None:
    node = start_node()
    create_topic(node.bootstrap, topic, settings={"segment.bytes": 400})
    batches = []
    with RawClient(node.bootstrap) as raw:
        producer = new_producer_id(raw)
        for number in range(8):
            batches.append(sequenced(producer, number, b"%d" % number + bytes(100)))
            assert raw.produce(topic, batches[-1]).base_offset == number
    getattr(node, end)()
    node.start()

    with RawClient(node.bootstrap) as raw:
        repeated = [raw.produce(topic, batch) for batch in batches[3:]]
        assert [answer.base_offset for answer in repeated] == [3, 4, 5, 6, 7]
        assert raw.produce(topic, sequenced(producer, 9, b"gap")).error_code == OUT_OF_ORDER
        assert raw.produce(topic, sequenced(producer, 8, b"next")).base_offset == 8
        assert new_producer_id(raw) > producer, "an id is never given out twice"


def kill_now_and_then(node: NodeProcess, is_done: threading.Event, progress: Callable[[], int]) -> None:
    """Three times kill -9, each after some more records were acknowledged."""
    for _ in range(3):
        seen = progress()
        eventually_sync(lambda seen=seen: is_done.is_set() or progress() > seen + 1500, 60)  # type: ignore[misc]
        node.kill_and_restart()


def assert_each_once_and_in_order(node: NodeProcess, topic: str, count: int) -> None:
    messages = read(node.bootstrap, topic, count)
    values = [int(value) for value in values_of(messages)]
    assert sorted(set(values)) == list(range(count)), "nothing is lost"
    assert values == list(range(count)), "nothing is doubled, nothing is out of order"


@pytest.mark.fault("idempotent-producer-repeats-batch")
def test_confluent_loses_and_doubles_nothing_over_kill_9(start_node: Callable[..., NodeProcess], topic: str) -> None:
    node = start_node(settings={"log.segment.bytes": 200_000})
    create_topic(node.bootstrap, topic)
    count, acknowledged, failures = 12_000, 0, []

    def on_delivery(error: confluent_kafka.KafkaError | None, _: object) -> None:
        nonlocal acknowledged
        acknowledged += error is None
        if error is not None:
            failures.append(error)

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": node.bootstrap,
            "enable.idempotence": True,
            "log_level": 0,
            "linger.ms": 1,
            "batch.num.messages": 50,
            "retry.backoff.ms": 20,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
        }
    )
    done = threading.Event()
    killer = threading.Thread(target=kill_now_and_then, args=(node, done, lambda: acknowledged))
    killer.start()
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0, on_delivery=on_delivery)
        while len(producer) > 600:
            producer.poll(0.01)
    left = producer.flush(60)
    done.set()
    killer.join(60)

    assert (left, failures, acknowledged) == (0, [], count)
    assert_each_once_and_in_order(node, topic, count)


async def test_aiokafka_loses_and_doubles_nothing_over_kill_9(
    start_node: Callable[..., NodeProcess], topic: str
) -> None:
    node = start_node()
    create_topic(node.bootstrap, topic)
    count, acknowledged = 6_000, 0
    producer = AIOKafkaProducer(
        bootstrap_servers=node.bootstrap, enable_idempotence=True, retry_backoff_ms=20, max_batch_size=2_000
    )
    done = threading.Event()

    def note(_: object) -> None:
        nonlocal acknowledged
        acknowledged += 1

    async with producer:
        killer = asyncio.create_task(asyncio.to_thread(kill_now_and_then, node, done, lambda: acknowledged))
        sent = []
        for number in range(count):
            sent.append(await producer.send(topic, b"%d" % number, partition=0))
            sent[-1].add_done_callback(note)
        await asyncio.wait_for(asyncio.gather(*sent), 60)
        done.set()
        await killer
    await asyncio.to_thread(assert_each_once_and_in_order, node, topic, count)


def test_kafka_python_loses_and_doubles_nothing_over_kill_9(start_node: Callable[..., NodeProcess], topic: str) -> None:
    node = start_node()
    create_topic(node.bootstrap, topic)
    count, acknowledged = 6_000, 0
    producer = kafka.KafkaProducer(
        bootstrap_servers=node.bootstrap,
        enable_idempotence=True,
        retry_backoff_ms=20,
        reconnect_backoff_ms=20,
        reconnect_backoff_max_ms=100,
        batch_size=2_000,
        linger_ms=1,
    )
    done = threading.Event()

    def note(_: object) -> None:
        nonlocal acknowledged
        acknowledged += 1

    killer = threading.Thread(target=kill_now_and_then, args=(node, done, lambda: acknowledged))
    killer.start()
    sent = [producer.send(topic, b"%d" % number, partition=0).add_callback(note) for number in range(count)]
    producer.flush(60)
    done.set()
    killer.join(60)
    assert all(future.succeeded() for future in sent)
    producer.close()
    assert_each_once_and_in_order(node, topic, count)
