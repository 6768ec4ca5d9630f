"""What a node costs by being there: start, memory at rest and under load, thousands of idle shards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from stratalog_bench.context import Bench, Skipped
from stratalog_bench.load_tool import LoadFailed
from stratalog_bench.processes import Server, cpu_seconds
from stratalog_bench.rows import OURS, Measurement, Metric, Row, compare, take_turns

GIB = 1 << 30
_ATTEMPTS = 60


def _after_work(bench: Bench, server: Server) -> Measurement:
    """Ready time and memory of a server that was just started, then its memory after some work."""
    at_start = server.rss_mib()
    common = {"b": server.address, "topic": "work", "pids": server.pid}
    bench.load.run("topic", b=server.address, topic="work", partitions=6)
    bench.load.run("produce", n=int(200_000 * bench.scale), batch=65536, linger="20ms", **common)
    bench.load.run("consume", **common)
    found = {"ready_s": server.ready_s, "rss_start": at_start, "rss_work": server.rss_mib()}
    server.stop()
    return found


def start_and_memory(bench: Bench) -> list[Row]:
    turns: dict[str, Callable[[], Measurement]] = {}
    if bench.has_node():
        turns[OURS] = lambda: _after_work(bench, bench.start_node())
    if bench.has_kafka():
        turns["kafka"] = lambda: _after_work(bench, bench.start_kafka())
    metrics = [
        Metric("ready_s", "start to ready", "s", "lower", "<= 1/3 of Kafka"),
        Metric("rss_start", "RSS at start", "MiB", "lower", "<= 1/3 of Kafka"),
        Metric("rss_work", "RSS after 200,000 records in and out", "MiB", "lower", "<= 1/3 of Kafka"),
    ]
    return compare("one node", take_turns(turns, bench.rounds), metrics)


def _pass_through(bench: Bench, server: Server, config: str) -> Measurement:
    """10 GiB are produced at full speed and consumed at the same time, under a retention that keeps the disk small."""
    amount = int(10 * GIB * bench.scale)
    topic = "through"
    bench.load.run("topic", b=server.address, topic=topic, partitions=6, config=config)
    server.reset_peak()
    requests = amount // (64 << 10) // 8
    writing = bench.load.begin(
        "raw-produce", b=server.address, topic=topic, size=64 << 10, n=requests, conns=8, inflight=5, pids=server.pid
    )
    highest = [0.0]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            highest[0] = max(highest[0], server.rss_mib())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        written = bench.load.finish(writing)
        # Reads what retention has left, so that the way out is part of the picture.
        bench.load.run("consume", b=server.address, topic=topic)
    finally:
        done.set()
        watcher.join()
        server.stop()
    peak = max(highest[0], server_peak(server))
    return {"peak": peak, "mib_per_s": written["mib_per_s"]}


def server_peak(server: Server) -> float:
    """The kernel's own high-water mark, where the process is still there to be asked."""
    try:
        return server.peak_rss_mib()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0


def pass_through(bench: Bench) -> list[Row]:
    if not bench.has_node():
        raise Skipped("the node is not here")
    config = "segment.bytes=134217728,retention.bytes=268435456"
    frequent = "log.retention.check.interval.ms=500"
    turns = {OURS: lambda: _pass_through(bench, bench.start_node(frequent), config)}
    metrics = [
        Metric("peak", "highest RSS", "MiB", "lower", "< 300 MiB"),
        Metric("mib_per_s", "throughput", "MiB/s", "higher"),
    ]
    return compare("10 GiB through one node", take_turns(turns, bench.rounds), metrics)


def _write_to_each(bench: Bench, server: Server, topic: str, partitions: int) -> None:
    """A record into each: a shard that was never written has no file and would cost nothing.

    A file that waits for its flush keeps its descriptor. Where a process may have few of them the node refuses for a
    moment, retriably, and flushes: then the topic is written again, as a client would.
    """
    for attempt in range(_ATTEMPTS):
        try:
            bench.load.run(
                "raw-produce", b=server.address, topic=topic, size=1024, n=partitions, conns=1, partitions=partitions
            )
            return
        except LoadFailed as failed:
            if "error 56" not in str(failed) or attempt == _ATTEMPTS - 1:
                raise
            threading.Event().wait(1.0)


def idle_shards(bench: Bench) -> list[Row]:
    """10,000 shards that hold records, and a restart on them."""
    if not bench.has_node():
        raise Skipped("the node is not here")
    shards = int(10_000 * bench.scale) // 10 * 10
    first = bench.start_node()
    for number in range(10):
        bench.load.run("topic", b=first.address, topic=f"idle-{number}", partitions=shards // 10, limit="120s")
        _write_to_each(bench, first, f"idle-{number}", shards // 10)
    data = first.directory
    first.stop()

    def restart() -> Measurement:
        server = bench.start_node(data=data)
        rss = server.rss_mib()
        bench.load.run("topic", b=server.address, topic=f"probe-{server.pid}", partitions=1)
        before = cpu_seconds(server.pid)
        idle_s = 3.0
        threading.Event().wait(idle_s)
        idle_cpu = (cpu_seconds(server.pid) - before) / idle_s * 100
        found: dict[str, Any] = {
            "ready_s": server.ready_s,
            "rss": rss,
            "rss_idle": server.rss_mib(),
            "idle_cpu": idle_cpu,
        }
        server.stop()
        return found

    metrics = [
        Metric("ready_s", "start to ready", "s", "lower", "< 3 s"),
        Metric("rss", "RSS at start", "MiB", "lower", "< 300 MiB"),
        Metric("rss_idle", "RSS idle", "MiB", "lower", "< 300 MiB"),
        Metric("idle_cpu", "CPU at rest", "% of a core", "lower"),
    ]
    return compare(f"{shards:,} idle shards", take_turns({OURS: restart}, bench.rounds), metrics)
