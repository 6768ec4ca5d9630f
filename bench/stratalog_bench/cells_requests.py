"""Produce and Fetch request by request: one pre-built batch in each, 1 KiB to 1 MiB, beside plain TCP and Kafka."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from stratalog_bench.context import Bench, with_topic
from stratalog_bench.processes import Server
from stratalog_bench.rows import Measurement, Metric, Row, compare, take_turns

# Bytes of a batch -> connections and requests in flight on each.
SHAPES = {1 << 10: (8, 5), 16 << 10: (8, 5), 64 << 10: (8, 5), 1 << 20: (2, 3)}
PARTITIONS = 6
FETCH_BATCHES = {1 << 10: 1200, 16 << 10: 600, 64 << 10: 240, 1 << 20: 24}
"""Batches in each partition that fetch cells read again and again: all of it fits the page cache."""


def named(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def _options(bench: Bench, server: Server, size: int) -> dict[str, Any]:
    connections, in_flight = SHAPES[size]
    return {
        "b": server.address,
        "pids": server.pid,
        "size": size,
        "conns": connections,
        "inflight": in_flight,
        "partitions": PARTITIONS,
        "secs": bench.seconds,
        "warm": 0.7,
    }


def _metrics(target_rate: str | None, target_p99: str | None) -> list[Metric]:
    return [
        Metric("mib_per_s", "throughput", "MiB/s", "higher", target_rate),
        Metric("per_s", "requests", "1/s", "higher", peers=("kafka",)),
        Metric("p50_ms", "p50", "ms", "lower", peers=("kafka", "tcp sink")),
        Metric("p99_ms", "p99", "ms", "lower", target_p99, peers=("kafka", "tcp sink")),
        Metric("server_cpu_us", "server CPU per request", "us", "lower", peers=("kafka", "tcp sink")),
    ]


def produce(bench: Bench, size: int) -> list[Row]:
    """Each round runs each system on a topic of its own."""

    def against_log(server: Server) -> Measurement:
        options = _options(bench, server, size)
        return with_topic(
            bench, server, PARTITIONS, "p", lambda topic: bench.load.run("raw-produce", topic=topic, **options)
        )

    turns: dict[str, Callable[[], Measurement]] = {
        name: partial(against_log, server) for name, server in bench.systems().items()
    }
    sink, echo = bench.start_tcp(), bench.start_tcp(echo=True)
    turns["tcp sink"] = lambda: bench.load.run("raw-produce", check=False, **_options(bench, sink, size))
    turns["tcp echo"] = lambda: bench.load.run("raw-produce", echoed=True, **_options(bench, echo, size))
    results = take_turns(turns, bench.rounds)
    sink.stop()
    echo.stop()
    rate = ">= 0.6 of the echo" if size == 64 << 10 else None
    p99 = "< 10 ms" if size == 64 << 10 else None
    return compare(f"produce {named(size)}", results, _metrics(rate, p99))


def produce_pipelined(bench: Bench) -> list[Row]:
    """The worst case of a server in Python: small requests, deep in flight; work per request is all there is."""
    deep = {"conns": 8, "inflight": 20}

    def against_log(server: Server) -> Measurement:
        options = _options(bench, server, 1 << 10) | deep
        return with_topic(
            bench, server, PARTITIONS, "d", lambda topic: bench.load.run("raw-produce", topic=topic, **options)
        )

    turns: dict[str, Callable[[], Measurement]] = {
        name: partial(against_log, server) for name, server in bench.systems().items()
    }
    sink = bench.start_tcp()
    turns["tcp sink"] = lambda: bench.load.run("raw-produce", check=False, **(_options(bench, sink, 1 << 10) | deep))
    results = take_turns(turns, bench.rounds)
    sink.stop()
    metrics = [
        Metric("per_s", "requests", "1/s", "higher", ">= 60000/s"),
        Metric("p99_ms", "p99", "ms", "lower"),
        Metric("server_cpu_us", "server CPU per request", "us", "lower"),
    ]
    return compare("produce 1 KiB, 8 connections with 20 in flight", results, metrics)


def fetch(bench: Bench, size: int) -> list[Row]:
    """Hot reads of exactly one batch each; filled once for each system, then read in turns."""
    turns: dict[str, Callable[[], Measurement]] = {}
    topics: list[tuple[Server, str]] = []
    batches = FETCH_BATCHES[size]
    for name, server in bench.systems().items():
        topic = f"f-{named(size).replace(' ', '')}-{server.pid}-{len(topics)}"
        topics.append((server, topic))
        bench.load.run("topic", b=server.address, topic=topic, partitions=PARTITIONS)
        filling = {
            "b": server.address,
            "topic": topic,
            "size": size,
            "conns": 1,
            "inflight": 4,
            "partitions": PARTITIONS,
        }
        bench.load.run("raw-produce", n=batches * PARTITIONS, **filling)
        # The topic begins with the one record that proved it writable.
        reading = _options(bench, server, size) | {"topic": topic, "batches": batches, "first": 1}
        turns[name] = partial(bench.load.run, "raw-fetch", **reading)
    sender = bench.start_tcp(reply_bytes=size + 100)
    turns["tcp sink"] = lambda: bench.load.run("raw-fetch", check=False, **_options(bench, sender, size))
    try:
        results = take_turns(turns, bench.rounds)
    finally:
        sender.stop()
        for server, topic in topics:
            bench.load.run("topic", b=server.address, topic=topic, delete=True)
    return compare(f"fetch {named(size)}", results, _metrics(None, None))
