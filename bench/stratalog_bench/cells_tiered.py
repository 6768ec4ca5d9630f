"""With tiering on, the state in which a node lives: what uploads cost producers, the calm after a storm, cold scans.

Both systems keep sealed data in a directory as well as on their own disk, so each byte is written twice. Segments are
small (32 MiB), so that Kafka, which uploads whole segments, uploads during the run as the node does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from stratalog_bench.cells_client import CEILING
from stratalog_bench.context import Bench, Skipped, with_topic
from stratalog_bench.processes import Server
from stratalog_bench.rows import OURS, Measurement, Metric, Row, compare, take_turns
from stratalog_bench.tiered_peers import Tiered, kafka_on_directory, kafka_on_s3, node_on_directory, node_on_s3

KIB = 1 << 10
PARTITIONS = 6
SEGMENT_BYTES = 32 << 20
LINGERS = {16 * KIB: "5ms", 64 * KIB: "20ms"}
HOT_CONFIG = {"remote.storage.enable": "true", "segment.bytes": str(SEGMENT_BYTES)}
COLD_CONFIG = HOT_CONFIG | {"local.retention.bytes": "1", "local.retention.ms": "1"}
WITHOUT = "the same without a bucket"
UNFLUSHED = "the same, objects not flushed"


def produce(bench: Bench, batch: int) -> list[Row]:
    """Throughput during uploads, beside tiered Kafka and beside nodes that have no bucket or, like Kafka's remote tier,
    do not flush uploaded objects."""
    tiered = _pair(bench, node_on_directory) | {UNFLUSHED: node_on_directory(bench, without="flush")}
    turns = {name: partial(_produce, bench, peer.server, batch, peer) for name, peer in tiered.items()}
    plain = bench.start_node()
    turns[WITHOUT] = partial(_produce, bench, plain, batch, None)
    turns[CEILING] = partial(_produce, bench, bench.node_without_disk, batch, None)
    try:
        results = take_turns(turns, bench.rounds)
    finally:
        _stop(tiered)
        plain.stop()
    return compare(f"tiered client, {batch >> 10} KiB batches, acks=1, 1 KiB records", results, _PRODUCE_METRICS)


def produce_s3(bench: Bench, batch: int) -> list[Row]:
    """The same with a real S3 server beside each; it takes its share of the cores."""
    tiered = _pair(bench, node_on_s3, kafka_on_s3)
    try:
        results = take_turns(
            {name: partial(_produce, bench, peer.server, batch, peer) for name, peer in tiered.items()}, bench.rounds
        )
    finally:
        _stop(tiered)
    name = f"tiered client on S3, {batch >> 10} KiB batches, acks=1, 1 KiB records"
    return compare(name, results, _PRODUCE_METRICS)


_PRODUCE_METRICS = [
    Metric("per_s", "records", "1/s", "higher", ">= 1.3x Kafka", peers=("kafka",)),
    Metric("per_s", "records", "1/s", "higher", ">= 0.75 of it", peers=(WITHOUT,)),
    Metric("per_s", "records", "1/s", "higher", peers=(UNFLUSHED,)),
    Metric("per_s", "records", "1/s", "higher", peers=(CEILING,)),
    Metric("server_cpu_us", "server CPU per record", "us", "lower", "< Kafka", peers=("kafka",)),
    Metric("server_cpu_us", "server CPU per record", "us", "lower", peers=(UNFLUSHED,)),
    Metric("server_cpu_us", "server CPU per record", "us", "lower", peers=(WITHOUT,)),
    Metric("p99_ms", "p99 of the acknowledgement under full load", "ms", "lower", peers=("kafka",)),
    Metric("behind_mib", "not yet in the bucket at the end", "MiB", "lower", peers=("kafka",)),
]


def _produce(bench: Bench, server: Server, batch: int, tier: Tiered | None) -> Measurement:
    options = {"b": server.address, "pids": server.pid, "acks": "1", "batch": batch, "linger": LINGERS[batch]}

    def work(topic: str) -> dict[str, Any]:
        found = bench.load.run("produce", topic=topic, secs=bench.seconds, warm=1, **options)
        if tier is not None:
            # Warm-up is written, too: at the measured rate, near enough.
            written_mib = found["mib_per_s"] * (found["seconds"] + 1)
            found["behind_mib"] = max(0.0, written_mib - tier.remote_mib())
        return found

    found = with_topic(bench, server, PARTITIONS, "t", work, HOT_CONFIG if tier is not None else _plain(HOT_CONFIG))
    if tier is not None:
        tier.settle()
    return found


def _plain(config: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in config.items() if key != "remote.storage.enable"}


def calm_after_load(bench: Bench) -> list[Row]:
    """1,000 records/s to another topic, beginning when the last record of a heavy run is acknowledged: its uploads and
    write-back are still running."""
    tiered = _pair(bench, node_on_directory)

    def one(peer: Tiered) -> Measurement:
        common = {"b": peer.server.address, "pids": peer.server.pid}

        def calm(topic: str) -> dict[str, Any]:
            def heavy(burdened: str) -> dict[str, Any]:
                bench.load.run(
                    "produce", topic=burdened, batch=64 * KIB, linger="20ms", secs=bench.seconds, warm=0.1, **common
                )
                return bench.load.run(
                    "e2e", topic=topic, rate=1000, linger="0ms", secs=2 * bench.seconds, warm=0.1, **common
                )

            return with_topic(bench, peer.server, PARTITIONS, "heavy", heavy, HOT_CONFIG)

        found = with_topic(bench, peer.server, PARTITIONS, "calm", calm, HOT_CONFIG)
        peer.settle()
        return found

    try:
        results = take_turns({name: partial(one, peer) for name, peer in tiered.items()}, bench.rounds)
    finally:
        _stop(tiered)
    metrics = [
        Metric("p50_ms", "p50", "ms", "lower"),
        Metric("p99_ms", "p99", "ms", "lower", ">= 1x Kafka"),
        Metric("max_ms", "longest", "ms", "lower"),
        Metric("ack_p99_ms", "p99 of the acknowledgement", "ms", "lower"),
    ]
    return compare("tiered, end to end at 1,000 records/s right after a heavy run", results, metrics)


def scan(bench: Bench) -> list[Row]:
    """Reads a topic from start to end, with the Java client's sizes, when only its active segments are local."""
    tiered = _pair(bench, node_on_directory)
    records = int(800_000 * bench.scale)
    turns: dict[str, Callable[[], Measurement]] = {}
    try:
        for name, peer in tiered.items():
            common = {"b": peer.server.address, "topic": "cold", "pids": peer.server.pid}
            config = ",".join(f"{key}={value}" for key, value in COLD_CONFIG.items())
            bench.load.run("topic", partitions=PARTITIONS, config=config, **common)
            bench.load.run("produce", n=records, batch=64 * KIB, linger="20ms", limit="170s", **common)
            _await_offload(peer)
            turns[name] = partial(bench.load.run, "consume", **common)
        results = take_turns(turns, bench.rounds)
    finally:
        _stop(tiered)
    metrics = [
        Metric("mib_per_s", "throughput", "MiB/s", "higher", ">= 2.5x Kafka"),
        Metric("server_cpu_us", "server CPU per record", "us", "lower"),
        Metric("first_ms", "first record", "ms", "lower"),
    ]
    return compare("tiered, cold scan of 6 shards, 1 KiB records", results, metrics)


def _await_offload(peer: Tiered, patience_s: float = 120) -> None:
    """Waits until each shard has only its active segment on disk."""
    deadline = time.monotonic() + patience_s
    while (left := len(_local_segments(peer))) > PARTITIONS:
        if time.monotonic() > deadline:
            raise Skipped(f"{left} segment files were still local after {patience_s:.0f} s")
        time.sleep(0.1)


def _local_segments(peer: Tiered) -> list[str]:
    return [
        name
        for folder, _, names in os.walk(peer.server.directory)
        for name in names
        if name.endswith(".seg") or (name.endswith(".log") and Path(folder).name.startswith("cold-"))
    ]


def _pair(
    bench: Bench, node: Callable[[Bench], Tiered], peer: Callable[[Bench], Tiered] = kafka_on_directory
) -> dict[str, Tiered]:
    """A node and, where it can run, a tiered Kafka that has been warmed up."""
    found = {OURS: node(bench)}
    if bench.has_kafka():
        kafka = peer(bench)
        found["kafka"] = kafka
        with_topic(bench, kafka.server, PARTITIONS, "warm-up", partial(bench.warm_up, kafka.server), HOT_CONFIG)
        kafka.settle()
    return found


def _stop(tiered: Mapping[str, Tiered]) -> None:
    for peer in tiered.values():
        peer.stop()
