"""As an application sees it: a real client with batches and linger, beside Kafka, one node each, acks=1."""

from __future__ import annotations

from functools import partial
from typing import Any

from stratalog_bench.context import Bench, with_topic
from stratalog_bench.processes import Server
from stratalog_bench.rows import Measurement, Metric, Row, compare, take_turns

PARTITIONS = 6
CEILING = "the same, written nowhere"


def produce(bench: Bench, batch: int, linger: str) -> list[Row]:
    def one(server: Server) -> Measurement:
        def work(topic: str) -> dict[str, Any]:
            return bench.load.run(
                "produce",
                b=server.address,
                pids=server.pid,
                topic=topic,
                acks="1",
                batch=batch,
                linger=linger,
                secs=bench.seconds * 2,
                warm=1,
            )

        return with_topic(bench, server, PARTITIONS, "c", work)

    turns = {name: partial(one, server) for name, server in bench.systems().items()}
    if bench.has_node():
        turns[CEILING] = partial(one, bench.node_without_disk)
    results = take_turns(turns, bench.rounds)
    metrics = [
        Metric("per_s", "records", "1/s", "higher", ">= 1.8x Kafka", peers=("kafka",)),
        Metric("per_s", "records", "1/s", "higher", peers=(CEILING,)),
        Metric("server_cpu_us", "server CPU per record", "us", "lower", ">= 2x Kafka", peers=("kafka",)),
        Metric("server_cpu_us", "server CPU per record", "us", "lower", peers=(CEILING,)),
        Metric("client_cpu_us", "client CPU per record", "us", "lower"),
    ]
    return compare(f"client, {batch >> 10} KiB batches, acks=1, 1 KiB records", results, metrics)


def consume_hot(bench: Bench) -> list[Row]:
    """The whole of a topic that was just written, with the Java client's fetch sizes."""
    records = int(500_000 * bench.scale)
    topics: list[tuple[Server, str]] = []
    turns = {}
    for name, server in bench.systems().items():
        topic = f"hot-{server.pid}"
        topics.append((server, topic))
        common = {"b": server.address, "topic": topic, "pids": server.pid}
        bench.load.run("topic", b=server.address, topic=topic, partitions=PARTITIONS)
        bench.load.run("produce", n=records, batch=65536, linger="20ms", **common)
        bench.load.run("consume", **common)
        turns[name] = partial(bench.load.run, "consume", **common)
    try:
        results = take_turns(turns, bench.rounds)
    finally:
        for server, topic in topics:
            bench.load.run("topic", b=server.address, topic=topic, delete=True)
    metrics = [
        Metric("per_s", "records", "1/s", "higher", ">= 1x Kafka"),
        Metric("server_cpu_us", "server CPU per record", "us", "lower"),
        Metric("first_ms", "first record", "ms", "lower"),
    ]
    return compare("client, hot consume, 1 KiB records", results, metrics)


def end_to_end(bench: Bench) -> list[Row]:
    """A quiet system, no linger: from the moment a record is due until a consumer has it."""

    def one(server: Server) -> Measurement:
        options = {"b": server.address, "pids": server.pid, "rate": 1000, "linger": "0ms", "secs": bench.seconds}
        return with_topic(bench, server, PARTITIONS, "e", lambda topic: bench.load.run("e2e", topic=topic, **options))

    results = take_turns({name: partial(one, server) for name, server in bench.systems().items()}, bench.rounds)
    metrics = [
        Metric("p50_ms", "p50", "ms", "lower"),
        Metric("p99_ms", "p99", "ms", "lower"),
        Metric("ack_p99_ms", "p99 of the acknowledgement", "ms", "lower"),
    ]
    return compare("end to end at 1,000 records/s", results, metrics)
