"""Acknowledged after a flush, with few and with many shards, beside the naive way: one flushed file per shard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratalog_bench.context import Bench, with_topic
from stratalog_bench.rows import OURS, Measurement, Metric, Row, compare, take_turns

SHAPE = {"conns": 64, "inflight": 3, "warm": 0.7}


def flushed(bench: Bench, shards: int, size: int = 1 << 10) -> list[Row]:
    turns: dict[str, Callable[[], Measurement]] = {}
    common: dict[str, Any] = {"size": size, "secs": bench.seconds, "partitions": shards, **SHAPE}
    if bench.has_node():
        node = bench.node

        def ours() -> Measurement:
            return with_topic(
                bench,
                node,
                shards,
                "y",
                lambda topic: bench.load.run("raw-produce", b=node.address, pids=node.pid, topic=topic, **common),
                config={"flush.policy": "fsync"},
            )

        turns[OURS] = ours

    def naive() -> Measurement:
        server = bench.start_tcp(files=shards)
        try:
            return bench.load.run("raw-produce", b=server.address, pids=server.pid, check=False, **common)
        finally:
            server.stop()

    turns["one flushed file per shard"] = naive
    metrics = [
        Metric("per_s", "requests", "1/s", "higher"),
        Metric("p99_ms", "p99", "ms", "lower"),
        Metric("server_cpu_us", "server CPU per request", "us", "lower"),
    ]
    name = f"fsync before the acknowledgement, {size >> 10} KiB, {shards} shard{'s' if shards > 1 else ''}"
    return compare(name, take_turns(turns, bench.rounds), metrics)
