"""Three nodes beside three Kafka brokers: three replicas, acks=all, min.insync.replicas=2.

Each cell writes at most 3 GiB over all replicas and runs: the path is measured, not the disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from stratalog_bench import librdkafka
from stratalog_bench.clusters import Cluster, delete_topic, make_topic, scraped, start_both
from stratalog_bench.context import Bench
from stratalog_bench.rows import OURS, Measurement, Metric, Row, compare, take_turns

KIB = 1 << 10
PARTITIONS = 6
LINGERS = {16 * KIB: "5ms", 64 * KIB: "20ms"}
RECORDS = 150_000
"""Of 1 KiB, in each run: 6 runs, each three times on the disk, make 2.6 GiB."""
MANY = 1_000

_CPU = Metric("server_cpu_us", "server CPU per record, all nodes", "us", "lower", ">= 3x Kafka")


_clusters: dict[Bench, dict[str, Cluster]] = {}


def _both(bench: Bench) -> dict[str, Cluster]:
    """The two that all cells here share. The single nodes of the other cells end: the memory and cores are few."""
    if bench not in _clusters:
        bench.stop_all()
        _clusters[bench] = start_both(bench)
    return _clusters[bench]


def _in_turns(bench: Bench, work: Callable[[Cluster], Measurement], rounds: int | None = None) -> Any:
    turns = {name: partial(work, cluster) for name, cluster in _both(bench).items()}
    return take_turns(turns, rounds or bench.rounds)


def _on_topic(
    bench: Bench, cluster: Cluster, name: str, work: Callable[[str], dict[str, Any]], **config: object
) -> dict[str, Any]:
    topic = make_topic(bench, cluster, PARTITIONS, name, **config)
    before = cluster.meta_cpu_s()
    try:
        found = work(topic)
    finally:
        meta_s = cluster.meta_cpu_s() - before
        delete_topic(bench, cluster, topic)
        time.sleep(1.5 * bench.scale)  # what is deleted is gone before the other one is measured
    if cluster.meta is not None:
        found["meta_cpu_us"] = meta_s / max(1, found.get("records", found.get("requests", 1))) * 1e6
    return found


def _common(cluster: Cluster) -> dict[str, Any]:
    return {"b": cluster.address, "pids": cluster.pids}


def _per_s(target: str) -> Metric:
    return Metric("per_s", "records", "1/s", "higher", target)


def produce(bench: Bench, batch: int) -> list[Row]:
    """A client as an application has it, as fast as it goes."""
    records = int(RECORDS * bench.scale)

    def one(cluster: Cluster) -> Measurement:
        options = _common(cluster) | {"acks": "all", "batch": batch, "linger": LINGERS[batch]}
        options |= {"n": records, "skip": records // 6}
        return _on_topic(bench, cluster, "c", lambda topic: bench.load.run("produce", topic=topic, **options))

    metrics = [
        _per_s(">= 3x Kafka" if batch == 16 * KIB else ">= 2.5x Kafka"),
        _CPU,
        Metric("client_cpu_us", "client CPU per record", "us", "lower"),
    ]
    title = f"3 nodes, {batch >> 10} KiB batches, acks=all, 1 KiB records"
    results = _in_turns(bench, one)
    return [*compare(title, results, metrics), _meta_row(title, results, "meta_cpu_us", "CPU per record", "us")]


def _meta_row(title: str, results: Mapping[str, Sequence[Measurement]], key: str, what: str, unit: str) -> Row:
    """Kafka's controllers are in the processes that are measured: nothing stands beside it."""
    values = [float(run[key]) for run in results.get(OURS, [])]
    return Row(f"{title}: {what} of the meta service", unit, "lower", values)


def produce_librdkafka(bench: Bench, batch: int) -> list[Row]:
    """The same with the client that most languages have; it takes more of the two cores than the servers do."""
    librdkafka.need()
    records = int(60_000 * bench.scale)

    def one(cluster: Cluster) -> Measurement:
        def work(topic: str) -> dict[str, Any]:
            return librdkafka.produce(cluster, topic, records=records, batch=batch, linger=LINGERS[batch])

        return _on_topic(bench, cluster, "l", work)

    metrics = [_per_s("> Kafka"), _CPU, Metric("client_cpu_us", "client CPU per record", "us", "lower")]
    return compare(f"3 nodes, librdkafka, {batch >> 10} KiB batches, acks=all", _in_turns(bench, one), metrics)


def produce_raw(bench: Bench) -> list[Row]:
    """Small requests, deep in flight: 8 connections with 20 each, every connection at one of the three leaders."""

    def one(cluster: Cluster) -> Measurement:
        options = _common(cluster) | {"size": KIB, "conns": 8, "inflight": 20, "partitions": PARTITIONS, "acks": -1}
        options |= {"spread": True, "secs": bench.seconds, "warm": 0.7}
        return _on_topic(bench, cluster, "d", lambda topic: bench.load.run("raw-produce", topic=topic, **options))

    metrics = [
        Metric("per_s", "requests", "1/s", "higher", ">= 30000/s"),
        Metric("p50_ms", "p50", "ms", "lower"),
        Metric("p99_ms", "p99", "ms", "lower"),
        Metric("server_cpu_us", "server CPU per request, all nodes", "us", "lower"),
    ]
    return compare("3 nodes, 1 KiB requests, 8 connections with 20 in flight, acks=all", _in_turns(bench, one), metrics)


def half_load(bench: Bench) -> list[Row]:
    """The same rate for both: half of what the slower one took in this cell, without a pause."""

    def fastest(cluster: Cluster) -> Measurement:
        options = _common(cluster) | {"acks": "all", "n": int(60_000 * bench.scale), "skip": int(10_000 * bench.scale)}
        return _on_topic(bench, cluster, "h", lambda topic: bench.load.run("produce", topic=topic, **options))

    rate = int(min(float(runs[0]["per_s"]) for runs in _in_turns(bench, fastest, 1).values()) / 2)

    def one(cluster: Cluster) -> Measurement:
        options = _common(cluster) | {"acks": "all", "rate": rate, "secs": bench.seconds, "warm": 1}
        return _on_topic(bench, cluster, "h", lambda topic: bench.load.run("produce", topic=topic, **options))

    metrics = [
        Metric("p50_ms", "p50", "ms", "lower"),
        Metric("p99_ms", "p99", "ms", "lower", ">= 2x Kafka"),
        Metric("server_cpu_us", "server CPU per record, all nodes", "us", "lower"),
    ]
    title = "3 nodes, half load, 16 KiB batches, acks=all"
    rows = compare(title, _in_turns(bench, one), metrics)
    return [*rows, Row("3 nodes, half load: the rate", "1/s", "higher", [float(rate)])]


def failover(bench: Bench) -> list[Row]:
    """SIGKILL of the leader of a shard; when a write to it that began afterwards is acknowledged."""

    def one(cluster: Cluster) -> Measurement:
        topic = make_topic(bench, cluster, PARTITIONS, "f")
        found = bench.load.run("failover", b=cluster.address, topic=topic, kill=cluster.processes)
        cluster.start_again(int(found["killed"]))
        delete_topic(bench, cluster, topic)
        delete_topic(bench, cluster, make_topic(bench, cluster, PARTITIONS, "f"))  # all three are there again
        return found

    metrics = [Metric("seconds", "until the first acknowledged write", "s", "lower", "< 3 s")]
    return compare("3 nodes, leader killed (lease 2 s; Kafka's default 9 s)", _in_turns(bench, one), metrics)


def many_shards(bench: Bench) -> list[Row]:
    """1,000 shards made, and a record acknowledged in each."""
    shards = int(MANY * max(bench.scale, 0.1))

    def one(cluster: Cluster) -> Measurement:
        topic = f"m-{time.monotonic_ns()}"
        common = {"b": cluster.address, "topic": topic, "limit": "100s"}
        before = cluster.meta_cpu_s()
        found = bench.load.run("topic", partitions=shards, replicas=3, prove=True, pids=cluster.pids, **common)
        found["meta_cpu_s"] = cluster.meta_cpu_s() - before
        bench.load.run("topic", delete=True, **common)
        time.sleep(3 * bench.scale)
        return found

    metrics = [
        Metric("seconds", "until each has a record", "s", "lower", ">= 3x Kafka"),
        Metric("created_s", "until the creation is answered", "s", "lower"),
    ]
    title = f"3 nodes, {shards:,} shards of 3 replicas"
    results = _in_turns(bench, one)
    return [*compare(title, results, metrics), _meta_row(title, results, "meta_cpu_s", "CPU", "s")]


def rolls(bench: Bench) -> list[Row]:
    """16,000 records a second into segments of 4 MiB: four rolls a second. And the same without rolls."""

    def one(cluster: Cluster, segment_bytes: int) -> Measurement:
        options = _common(cluster) | {"acks": "all", "linger": "0ms", "rate": 16_000, "secs": bench.seconds, "warm": 1}
        before = _meta_writes(cluster)

        def work(topic: str) -> dict[str, Any]:
            found = bench.load.run("produce", topic=topic, **options)
            writes, seconds = (now - then for now, then in zip(_meta_writes(cluster), before, strict=True))
            found["two_commits_ms"] = 2_000 * seconds / writes if writes else 0.0
            return found

        return _on_topic(bench, cluster, "r", work, segment_bytes=segment_bytes)

    turns = {}
    for name, cluster in _both(bench).items():
        turns[name] = partial(one, cluster, 4 << 20)
        if name == OURS:
            turns["the same without rolls"] = partial(one, cluster, 1 << 30)
    metrics = [
        Metric("p99_ms", "p99", "ms", "lower"),
        Metric("p999_ms", "p99.9", "ms", "lower"),
        Metric("max_ms", "longest", "ms", "lower"),
        Metric("server_cpu_us", "server CPU per record, all nodes", "us", "lower"),
    ]
    results = take_turns(turns, bench.rounds)
    rows = compare("3 nodes, rolls: 16 MiB/s into segments of 4 MiB, acks=all", results, metrics)
    commits = [float(run["two_commits_ms"]) for run in results.get(OURS, [])]
    return [*rows, Row("3 nodes, rolls: two synced writes of the meta service", "ms", "lower", commits)]


def _meta_writes(cluster: Cluster) -> tuple[float, float]:
    """How many, and the seconds they took together; (0, 0) where there is no such process."""
    if cluster.meta is None or not cluster.meta_admin:
        return 0.0, 0.0
    found = scraped(cluster.meta_admin)
    stem = "stratalog_meta_write_duration_seconds"
    return found.get(f"{stem}_count", 0.0), found.get(f"{stem}_sum", 0.0)
