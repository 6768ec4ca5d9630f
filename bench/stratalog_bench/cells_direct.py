"""Topics that the object store acknowledges (`storage.policy=Direct`), beside replicated ones on the same three nodes.

The store is versitygw behind a link that passes each answer on late: 20, 60 and 200 ms, as stores near and far do.
"""

from __future__ import annotations

import re
import sys
import time
from functools import partial
from typing import Any

from stratalog_bench.clusters import Cluster, admin_of, delete_topic, make_topic, scraped, start_stratalog
from stratalog_bench.context import REPOSITORY, Bench, Skipped
from stratalog_bench.processes import Server, free_port, start
from stratalog_bench.rows import OURS, Metric, Row, compare, take_turns
from stratalog_bench.tiered_peers import s3_server

DELAYS_MS = (0, 20, 60, 200)
INTERVAL_MS = 250
LINGER_MS = 100
"""A client has five requests under way: with more of them an answer that takes 300 ms would bound its rate."""
PARTITIONS = 6
RATE = 4_000
FAST_RATE = 24_000
"""Where the fixed costs of three nodes are no longer most of what a record costs."""
MANY = 10_000
REPLICATED = "replicated three times"
_PUT = 'stratalog_object_store_latency_seconds_bucket{operation="put",le="'


def acknowledge(bench: Bench, delay_ms: int, rate: int = RATE) -> list[Row]:
    """`rate` records of 1 KiB a second with acks=all: their waits, their cost, and the number of objects."""
    cluster, beside = _cluster(bench, delay_ms)
    try:
        turns = {
            OURS: partial(_produce, bench, cluster, "Direct", rate),
            REPLICATED: partial(_produce, bench, cluster, "Replicated", rate),
        }
        results = take_turns(turns, bench.rounds)
    finally:
        cluster.stop()
        for server in beside:
            server.stop()
    metrics = [
        Metric("p99_ms", "p99", "ms", "lower"),
        Metric("server_cpu_us", "server CPU per record, all nodes", "us", "lower", "<= 0.6x"),
    ]
    name = f"Direct, a store {delay_ms} ms away: {rate:,} records/s, acks=all"
    rows = compare(name, results, metrics)
    direct = results[OURS]
    bound = [LINGER_MS + INTERVAL_MS + 1.5 * float(run["put_p99_ms"]) for run in direct]
    waits = [float(run["p99_ms"]) for run in direct]
    rows.append(Row(f"{name}: p99", "ms", "lower", waits, "linger + interval + 1.5 x the store's p99", bound, ">= 1"))
    puts = [float(run["puts_per_s"]) for run in direct]
    return [*rows, Row(f"{name}: objects per node", "1/s", "lower", puts, target="<= 12")]


def many_shards(bench: Bench) -> list[Row]:
    """10,000 Direct shards on three nodes: a record for each, twice, and the objects that this took."""
    shards = max(100, int(MANY * bench.scale))
    cluster, beside = _cluster(bench, 0)
    try:
        topic = make_topic(bench, cluster, shards, "d", storage_policy="Direct", segment_bytes=64 << 20)
        patient: dict[str, Any] = {"patience": "60s", "limit": "570s", "patience_s": 600}
        first = bench.load.run("write-each", b=cluster.address, topic=topic, **patient)
        before = _puts(cluster)
        again = bench.load.run("write-each", b=cluster.address, topic=topic, **patient)
        after = _puts(cluster)
        rss_mib = max(node.rss_mib() for node in cluster.nodes.values())
    finally:
        cluster.stop()
        for server in beside:
            server.stop()
    puts = max(after.values(), default=0.0) - max(before.values(), default=0.0)
    rate = puts / float(again["seconds"]) / len(cluster.nodes)
    name = f"{shards:,} Direct shards, 3 nodes"
    return [
        Row(f"{name}: until each has a record", "s", "lower", [float(first["seconds"])]),
        Row(f"{name}: until each has one more", "s", "lower", [float(again["seconds"])]),
        Row(f"{name}: objects per node meanwhile", "1/s", "lower", [rate], target="<= 12"),
        Row(f"{name}: RSS of the largest node", "MiB", "lower", [rss_mib]),
    ]


def _cluster(bench: Bench, delay_ms: int) -> tuple[Cluster, list[Server]]:
    if not bench.has_node():
        raise Skipped("the node is not here")
    bench.stop_all()
    store = s3_server(bench)
    beside, port = [store.server], store.port
    if delay_ms:
        port = free_port()
        command = [sys.executable, str(REPOSITORY / "bench/peers/slow_link.py"), str(port), str(store.port)]
        log = bench.new_folder("link.log")
        link = start("slow-link", [*command, str(delay_ms)], address=f"127.0.0.1:{port}", log=log, ready="ready")
        beside.append(bench.keep(link))
    settings = (f"direct.commit.interval.ms={INTERVAL_MS}", "remote.upload.interval.ms=600000")
    return start_stratalog(bench, *settings, bucket=store.url(port)), beside


def _produce(bench: Bench, cluster: Cluster, policy: str, rate: int) -> dict[str, Any]:
    topic = make_topic(bench, cluster, PARTITIONS, "d", storage_policy=policy, segment_bytes=64 << 20)
    options = {"b": cluster.address, "pids": cluster.pids, "acks": "all", "rate": rate}
    options |= {"linger": f"{LINGER_MS}ms", "batch": 1 << 20}
    before, began = _puts(cluster), time.monotonic()
    try:
        found = bench.load.run("produce", topic=topic, secs=bench.seconds, warm=5, **options)
    finally:
        after, seconds = _puts(cluster), time.monotonic() - began
        delete_topic(bench, cluster, topic)
        time.sleep(1.5 * bench.scale)
    grown = {bound: after[bound] - before.get(bound, 0.0) for bound in sorted(after)}
    count = max(grown.values(), default=0.0)
    found["puts_per_s"] = count / seconds / len(cluster.nodes)
    found["put_p99_ms"] = next((1_000 * bound for bound, below in grown.items() if below >= 0.99 * count), 0.0)
    return found


def _puts(cluster: Cluster) -> dict[float, float]:
    """Of all nodes: seconds -> the number of puts that took no longer."""
    found: dict[float, float] = {}
    for node in cluster.nodes.values():
        for name, value in scraped(admin_of(node)).items():
            if name.startswith(_PUT):
                bound = float(re.sub(r"[^0-9.+eEInf-]", "", name[len(_PUT) :]))
                found[bound] = found.get(bound, 0.0) + value
    return found
