"""Nodes that come and go, beside Kafka's reassignment of the same data; and ten thousand shards on three nodes.

Each cell has clusters of its own, one at a time: what it measures is how much is copied, and for how long.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from stratalog_bench.clusters import Cluster, admin_of, make_topic, start_kafka, start_stratalog
from stratalog_bench.context import Bench
from stratalog_bench.processes import cpu_seconds
from stratalog_bench.rows import OURS, Measurement, Metric, Row, compare, take_turns

MIB = 1 << 20
GIB = 1 << 30
KEPT_BYTES = GIB
HELD_BYTES = 10 * GIB
MANY = 10_000
_LOAD = {"batch": 64 << 10, "linger": "20ms", "limit": "900s"}
_REST_S = 20.0
_SETTLE_S = 75.0
"""New files are flushed within `flush.interval.ms` (30 s), and have their checkpoints one interval later."""


def _in_turns(bench: Bench, ours: Callable[[], Measurement], peer: Callable[[], Measurement], rounds: int) -> Any:
    turns = {}
    if bench.has_node():
        turns[OURS] = partial(_alone, bench, ours)
    if bench.has_kafka():
        turns["kafka"] = partial(_alone, bench, peer)
    return take_turns(turns, rounds)


def _alone(bench: Bench, work: Callable[[], Measurement]) -> Measurement:
    """Nothing else runs, and nothing of what it wrote is left."""
    bench.stop_all()
    before = set(bench.folder.iterdir())
    try:
        return work()
    finally:
        bench.stop_all()
        for folder in set(bench.folder.iterdir()) - before:
            if folder.is_dir():
                shutil.rmtree(folder, ignore_errors=True)


def _written(bench: Bench, cluster: Cluster, topic: str, size_bytes: int, acks: str) -> None:
    bench.load.run(
        "produce", b=cluster.address, topic=topic, acks=acks, n=max(1000, int(size_bytes * bench.scale) >> 10), **_LOAD
    )


def scale_out(bench: Bench) -> list[Row]:
    """A fourth node beside three that hold 1 GiB three times, until it leads and has acknowledged a write."""

    def ours() -> Measurement:
        cluster = start_stratalog(bench)
        topic = make_topic(bench, cluster, 30, "s")
        _written(bench, cluster, topic, KEPT_BYTES, "all")
        began = time.monotonic()
        cluster.add(4)
        admins = ",".join(admin_of(node) for node in cluster.nodes.values())
        _cli(bench, cluster, "rebalance", "--seal", "--admin", admins)
        bench.load.run("leads", b=cluster.address, topic=topic, node=4)
        seconds = time.monotonic() - began
        return {"seconds": seconds, "moved_mib": cluster.counted("stratalog_replication_fetched_bytes_total", 4) / MIB}

    def peer() -> Measurement:
        cluster = start_kafka(bench, more=1)
        topic = make_topic(bench, cluster, 30, "s")
        _written(bench, cluster, topic, KEPT_BYTES, "all")
        began = time.monotonic()
        cluster.add(4)
        bench.load.run("reassign", b=cluster.address, topic=topic, to="1,2,3,4", replicas=3)
        bench.load.run("leads", b=cluster.address, topic=topic, node=4)
        return {"seconds": time.monotonic() - began, "moved_mib": _data_bytes(cluster, topic, 4) / MIB}

    metrics = [
        Metric(
            "seconds", "until the new node leads and has taken a write, its start included", "s", "lower", "< Kafka"
        ),
        Metric("moved_mib", "copied to the new node", "MiB", "lower", "0 of what was there"),
    ]
    return compare("scale-out 3 to 4, 1 GiB three times", _in_turns(bench, ours, peer, min(bench.rounds, 2)), metrics)


def retire(bench: Bench) -> list[Row]:
    """Retires a node with the only copy of 10 GiB: the time until all of it is served without the node."""

    def ours() -> Measurement:
        bucket = bench.new_folder("bucket")
        cluster = start_stratalog(bench, "min.insync.replicas=1", nodes=1, bucket=bucket.as_uri())
        topic = make_topic(bench, cluster, 12, "r", replicas=1, min_insync_replicas=1)
        _written(bench, cluster, topic, HELD_BYTES, "1")
        for node_id in (2, 3):
            cluster.add(node_id)
        before, stored = _between(cluster), _size_of(bucket)
        began = time.monotonic()
        _cli(bench, cluster, "nodes", "retire", "1")
        _until(cluster, {"mount", "done"})
        released = time.monotonic()
        stay = ",".join(cluster.nodes[node_id].address for node_id in (2, 3))
        bench.load.run("first-read", b=stay, topic=topic)
        read = time.monotonic()
        _until(cluster, {"done"})
        return {
            "seconds": time.monotonic() - began,
            "between_mib": (_between(cluster) - before) / MIB,
            "uploaded_mib": (_size_of(bucket) - stored) / MIB,
            "read_s": read - released,
        }

    def peer() -> Measurement:
        cluster = start_kafka(bench)
        topic = make_topic(bench, cluster, 12, "r", replicas=1, min_insync_replicas=1)
        bench.load.run("reassign", b=cluster.address, topic=topic, to="1")
        _written(bench, cluster, topic, HELD_BYTES, "1")
        found = bench.load.run("reassign", b=cluster.address, topic=topic, to="2,3", limit="900s")
        between = sum(_data_bytes(cluster, topic, node_id) for node_id in (2, 3))
        return {"seconds": float(found["seconds"]), "between_mib": between / MIB}

    metrics = [
        Metric("seconds", "until it is done", "s", "lower", "< Kafka"),
        Metric("between_mib", "copied between nodes", "MiB", "lower", "0"),
    ]
    title = "a node that holds 10 GiB leaves"
    results = _in_turns(bench, ours, peer, 1)
    own = {OURS: results.get(OURS, [])}
    more = [
        Metric("uploaded_mib", "uploaded meanwhile: what was not in the store yet", "MiB", "lower"),
        Metric("read_s", "mount to the first record of each shard", "s", "lower", "< 5 s"),
    ]
    return [*compare(title, results, metrics), *compare(title, own, more)]


def ten_thousand_shards(bench: Bench) -> list[Row]:
    """Of three replicas each, on three nodes; one of these is killed."""
    shards = max(100, int(MANY * bench.scale))
    # Thousands of requests queue for seconds: a client that retries after one second only makes the queue longer.
    patient: dict[str, Any] = {"patience": "60s", "limit": "570s", "patience_s": 600}

    def ours() -> Measurement:
        cluster = start_stratalog(bench)
        topic = make_topic(bench, cluster, shards, "t")
        first = bench.load.run("write-each", b=cluster.address, topic=topic, **patient)
        flushing = _cpu_at_rest(cluster, _REST_S * bench.scale, _SETTLE_S * bench.scale)
        found = {
            "first_s": float(first["seconds"]),
            "rss_mib": max(node.rss_mib() for node in cluster.nodes.values()),
            "flush_cpu": flushing,
            "rest_cpu": _cpu_at_rest(cluster, 0.0, _REST_S * max(bench.scale, 0.1)),
        }
        cluster.nodes[1].kill()
        others = ",".join(cluster.nodes[node_id].address for node_id in (2, 3))
        took = bench.load.run("write-each", b=others, topic=topic, led_by=1, **patient)
        cluster.add(1)
        return found | {"failover_s": float(took["seconds"]), "start_s": cluster.nodes[1].ready_s}

    metrics = [
        Metric("first_s", "until each has a record", "s", "lower"),
        Metric("rss_mib", "RSS of the largest node", "MiB", "lower"),
        Metric("flush_cpu", "CPU of the busiest node while the new files are flushed", "% of a core", "lower"),
        Metric("rest_cpu", "CPU at rest of the busiest node", "% of a core", "lower", "<= 5"),
        Metric("failover_s", "a node killed: until all that it led take writes again", "s", "lower", "<= 10 s"),
        Metric("start_s", "its start again, to ready", "s", "lower"),
    ]
    results = take_turns({OURS: partial(_alone, bench, ours)}, 1)
    return compare(f"3 nodes, {shards:,} shards of 3 replicas", results, metrics)


def _cpu_at_rest(cluster: Cluster, after_s: float, for_s: float) -> float:
    """Of the busiest node, in per cent of a core, over `for_s` from `after_s` on."""
    time.sleep(after_s)
    before = {node_id: cpu_seconds(node.pid) for node_id, node in cluster.nodes.items()}
    began = time.monotonic()
    time.sleep(for_s)
    spent = max(cpu_seconds(node.pid) - before[node_id] for node_id, node in cluster.nodes.items())
    return 100 * spent / max(time.monotonic() - began, 0.001)


def _cli(bench: Bench, cluster: Cluster, *words: str) -> None:
    assert cluster.meta is not None
    command = [str(bench.executable), *words, "--meta", f"http://{cluster.meta.address}"]
    subprocess.run(command, check=True, timeout=120, capture_output=True)


def _until(cluster: Cluster, steps: set[str], limit_s: float = 600) -> None:
    """Until the retirement of the first node that leaves is at one of these."""
    assert cluster.meta is not None
    deadline = time.monotonic() + limit_s
    found: Mapping[str, Any] = {}
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"http://{cluster.meta.address}/v1/retirements", timeout=10) as answer:
            found = json.load(answer)["items"][0]
        if found["retirement"]["step"] in steps:
            return
        time.sleep(0.05)
    raise TimeoutError(f"the retirement is not at {', '.join(sorted(steps))} after {limit_s:.0f} s: {found}")


def _between(cluster: Cluster) -> float:
    """Bytes that the nodes that stay have taken from others."""
    names = ("stratalog_replication_fetched_bytes_total", "stratalog_peer_read_bytes_total")
    return sum(cluster.counted(name, 2, 3) for name in names)


def _size_of(bucket: Path) -> int:
    return sum(path.stat().st_size for path in bucket.rglob("*") if path.is_file())


def _data_bytes(cluster: Cluster, topic: str, node_id: int) -> int:
    """Of the topic, on a Kafka broker's disk."""
    data: Path = cluster.nodes[node_id].directory / "data"
    logs = (path for folder in data.glob(f"{topic}-*") for path in folder.glob("*.log"))
    return sum(path.stat().st_size for path in logs)
