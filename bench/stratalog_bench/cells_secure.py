"""TLS beside plain text and beside Kafka with TLS, new connections, and the cost of rules (ACLs)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from stratalog_bench.context import Bench, with_topic
from stratalog_bench.processes import Server
from stratalog_bench.rows import Measurement, Metric, Row, compare, take_turns

SIZE = 64 << 10
PARTITIONS = 6
BATCHES = 240
PLAIN = "the same node, plain text"
WITHOUT_RULES = "without rules"


def _tls_options(bench: Bench, server: Server) -> dict[str, Any]:
    return {"b": server.address, "pids": server.pid, "ca": bench.certificates.authority}


def _lanes(bench: Bench) -> dict[str, Any]:
    return {"size": SIZE, "conns": 8, "inflight": 5, "partitions": PARTITIONS, "secs": bench.seconds, "warm": 0.7}


def _systems(bench: Bench) -> dict[str, tuple[Server, dict[str, Any]]]:
    """Each with what a client of it needs."""
    found: dict[str, tuple[Server, dict[str, Any]]] = {}
    if bench.has_node():
        tls, plain = bench.secure_node
        found["stratalog"] = tls, _tls_options(bench, tls)
        found[PLAIN] = plain, {"b": plain.address, "pids": plain.pid}
    if bench.has_kafka():
        found["kafka"] = bench.secure_kafka, _tls_options(bench, bench.secure_kafka)
    return found


def _metrics() -> list[Metric]:
    return [
        Metric("mib_per_s", "throughput", "MiB/s", "higher", ">= 2x Kafka", peers=("kafka",)),
        Metric("mib_per_s", "throughput", "MiB/s", "higher", ">= 0.7x plain", peers=(PLAIN,)),
        Metric("server_cpu_us", "server CPU per request", "us", "lower", ">= 2x Kafka", peers=("kafka",)),
        Metric("server_cpu_us", "server CPU per request", "us", "lower", peers=(PLAIN,)),
        Metric("p99_ms", "p99", "ms", "lower", peers=("kafka", PLAIN)),
    ]


def produce(bench: Bench) -> list[Row]:
    def one(server: Server, options: dict[str, Any]) -> Measurement:
        work = partial(_raw, bench, "raw-produce", options)
        return _with_topic(bench, server, options, work)

    turns = {name: partial(one, server, options) for name, (server, options) in _systems(bench).items()}
    return compare("produce 64 KiB over TLS", take_turns(turns, bench.rounds), _metrics())


def fetch(bench: Bench) -> list[Row]:
    """Hot reads of one batch each, from a topic that is filled once for each system."""
    turns: dict[str, Callable[[], Measurement]] = {}
    made: list[tuple[dict[str, Any], str]] = []
    for name, (_, options) in _systems(bench).items():
        topic = f"tls-{len(made)}"
        made.append((options, topic))
        bench.load.run("topic", topic=topic, partitions=PARTITIONS, **options)
        filling = {"size": SIZE, "conns": 1, "inflight": 4, "partitions": PARTITIONS}
        bench.load.run("raw-produce", topic=topic, n=BATCHES * PARTITIONS, **filling, **options)
        # The topic begins with the one record that proved it writable.
        reading = _lanes(bench) | {"topic": topic, "batches": BATCHES, "first": 1} | options
        turns[name] = partial(bench.load.run, "raw-fetch", **reading)
    try:
        results = take_turns(turns, bench.rounds)
    finally:
        for options, topic in made:
            bench.load.run("topic", topic=topic, delete=True, **options)
    return compare("fetch 64 KiB over TLS", results, _metrics())


def connect(bench: Bench) -> list[Row]:
    """A connection, a TLS handshake, one question, an end; sixteen at a time."""
    turns = {
        name: partial(bench.load.run, "connect", secs=bench.seconds, warm=1, **options)
        for name, (_, options) in _systems(bench).items()
    }
    metrics = [
        Metric("per_s", "connections", "1/s", "higher", ">= 1x Kafka", peers=("kafka",)),
        Metric("per_s", "connections", "1/s", "higher", peers=(PLAIN,)),
        Metric("server_cpu_us", "server CPU per connection", "us", "lower", peers=("kafka",)),
        Metric("p99_ms", "p99", "ms", "lower", peers=("kafka",)),
    ]
    return compare("new connections with TLS", take_turns(turns, bench.rounds), metrics)


def rules(bench: Bench) -> list[Row]:
    """Small requests, deep in flight, in plain text: a node that asks its rules beside one that has none."""
    if not bench.has_node():
        return []
    asking = bench.start_node("authorizer.class.name=stratalog", "allow.everyone.if.no.acl.found=true")

    def one(server: Server) -> Measurement:
        options = {"b": server.address, "pids": server.pid}
        deep = _lanes(bench) | {"size": 1 << 10, "inflight": 20} | options
        return _with_topic(bench, server, options, partial(_raw, bench, "raw-produce", deep))

    turns = {"stratalog": partial(one, asking), WITHOUT_RULES: partial(one, bench.node)}
    metrics = [
        Metric("per_s", "requests", "1/s", "higher", "within noise", peers=(WITHOUT_RULES,)),
        Metric("server_cpu_us", "server CPU per request", "us", "lower", peers=(WITHOUT_RULES,)),
    ]
    results = take_turns(turns, bench.rounds)
    asking.stop()
    return compare("produce 1 KiB with an authorizer", results, metrics)


def _raw(bench: Bench, command: str, options: dict[str, Any], topic: str) -> Measurement:
    return bench.load.run(command, topic=topic, **(_lanes(bench) | options))


def _with_topic(
    bench: Bench, server: Server, options: dict[str, Any], work: Callable[[str], Measurement]
) -> Measurement:
    return with_topic(bench, server, PARTITIONS, "s", work, ca=options.get("ca"))
