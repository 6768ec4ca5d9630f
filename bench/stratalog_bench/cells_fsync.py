"""Acknowledged after a flush, with few and with many shards, beside the naive way: one flushed file per shard.

That as the same node does it, which shows what the journal is worth on this disk, and as a server does that does
nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from stratalog_bench.context import Bench, with_topic
from stratalog_bench.processes import Server
from stratalog_bench.rows import OURS, Measurement, Metric, Row, compare, take_turns

EACH_FILE = "the same, each file flushed by itself"
BARE = "one flushed file per shard, no protocol"
SHAPE = {"conns": 64, "inflight": 3, "warm": 0.7}


def flushed(bench: Bench, shards: int, size: int = 1 << 10) -> list[Row]:
    turns: dict[str, Callable[[], Measurement]] = {}
    common: dict[str, Any] = {"size": size, "secs": bench.seconds, "partitions": shards, **SHAPE}
    if bench.has_node():

        def of(node: Server) -> Measurement:
            return with_topic(
                bench,
                node,
                shards,
                "y",
                lambda topic: bench.load.run("raw-produce", b=node.address, pids=node.pid, topic=topic, **common),
                config={"flush.policy": "fsync"},
            )

        turns[OURS] = partial(of, bench.node)
        turns[EACH_FILE] = partial(of, bench.node_without_journal)

    def naive() -> Measurement:
        server = bench.start_tcp(files=shards)
        try:
            return bench.load.run("raw-produce", b=server.address, pids=server.pid, check=False, **common)
        finally:
            server.stop()

    turns[BARE] = naive
    metrics = [
        Metric("per_s", "requests", "1/s", "higher", ">= 1x of it", peers=(EACH_FILE,)),
        Metric("per_s", "requests", "1/s", "higher", peers=(BARE,)),
        Metric("p99_ms", "p99", "ms", "lower"),
        Metric("server_cpu_us", "server CPU per request", "us", "lower"),
    ]
    name = f"fsync before the acknowledgement, {size >> 10} KiB, {shards} shard{'s' if shards > 1 else ''}"
    return compare(name, take_turns(turns, bench.rounds), metrics)
