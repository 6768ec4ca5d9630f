"""The cold tier: scans beside raw ranged GETs from the same store, and what a scan does to hot traffic."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import obstore
from obstore.store import LocalStore

from stratalog_bench.context import Bench, Skipped
from stratalog_bench.processes import Server
from stratalog_bench.rows import OURS, Measurement, Metric, Row, compare, take_turns

PARTITIONS = 2
RANGE_BYTES = 4 << 20
PARALLEL = 8
COLD_TOPIC = "cold"
COLD_CONFIG = "remote.storage.enable=true,segment.bytes=33554432,local.retention.bytes=1,local.retention.ms=1"
SETTINGS = ("remote.upload.interval.ms=1000", "log.retention.check.interval.ms=300", "remote.read.policy=NotInDisk")
CALM = "the same without a scan"
ELSEWHERE = "the same, and the scan is of another node"


class ColdNode:
    """A node with a topic that lies in the object store only, but for its active segments."""

    def __init__(self, bench: Bench) -> None:
        if not bench.has_node():
            raise Skipped("the node is not here")
        self.bench = bench
        self.bucket = bench.new_folder("bucket")
        self.bucket.mkdir()
        self.node: Server = bench.start_node(*SETTINGS, bucket=self.bucket.as_uri())
        self.records = int(1_000_000 * bench.scale)
        common = {"b": self.node.address, "topic": COLD_TOPIC}
        bench.load.run("topic", partitions=PARTITIONS, config=COLD_CONFIG, **common)
        bench.load.run("produce", n=self.records, batch=65536, linger="20ms", limit="170s", **common)
        self._await_tiering()

    def segment_files(self) -> list[Path]:
        return sorted(self.node.directory.rglob("*.seg"))

    def _await_tiering(self, patience_s: float = 120) -> None:
        """Waits until each shard has only its active segment on disk."""
        deadline = time.monotonic() + patience_s
        while len(self.segment_files()) > PARTITIONS:
            if time.monotonic() > deadline:
                raise Skipped(f"{len(self.segment_files())} segment files were still local after {patience_s:.0f} s")
            time.sleep(0.1)

    def scan(self, **options: Any) -> dict[str, Any]:
        common = {"b": self.node.address, "pids": self.node.pid, "topic": COLD_TOPIC}
        return self.bench.load.run("consume", **common, **options)

    def raw_gets(self) -> Measurement:
        """Every data object of the bucket by ranged GETs, several at a time, through the library that the node uses."""
        store = LocalStore(self.bucket)
        objects = [
            (entry["path"], entry["size"])
            for page in obstore.list(store)
            for entry in page
            if entry["path"].endswith((".chunk", ".bundle"))
        ]
        ranges = [
            (path, start, min(start + RANGE_BYTES, size))
            for path, size in objects
            for start in range(0, size, RANGE_BYTES)
        ]

        def get(piece: tuple[str, int, int]) -> int:
            path, start, end = piece
            return len(obstore.get_range(store, path, start=start, end=end))

        began = time.monotonic()
        with ThreadPoolExecutor(PARALLEL) as pool:
            total = sum(pool.map(get, ranges))
        return {"mib_per_s": total / (1 << 20) / (time.monotonic() - began)}


def scans(bench: Bench) -> list[Row]:
    cold = ColdNode(bench)
    turns: dict[str, Callable[[], Measurement]] = {
        OURS: lambda: cold.scan(partition_fetch=4 << 20),
        "ranged GETs of the same objects": cold.raw_gets,
    }
    try:
        results = take_turns(turns, bench.rounds)
    finally:
        cold.node.stop()
    metrics = [
        Metric("mib_per_s", "throughput", "MiB/s", "higher", ">= 0.8 of the GETs"),
        Metric("server_cpu_us", "server CPU per record", "us", "lower"),
        Metric("first_ms", "first record", "ms", "lower"),
    ]
    return compare("cold scan of a topic, 1 KiB records", results, metrics)


def hot_beside_cold(bench: Bench) -> list[Row]:
    """Acknowledgements and deliveries at a steady rate, alone and while another client scans cold data all the time: of
    the same node, and of another one, which takes its share of the cores and nothing else."""
    cold, other = ColdNode(bench), ColdNode(bench)
    node = cold.node
    bench.load.run("topic", b=node.address, topic="hot", partitions=PARTITIONS)
    steady = {"b": node.address, "pids": node.pid, "topic": "hot", "rate": 2000, "linger": "0ms", "warm": 1}

    def alone() -> Measurement:
        return bench.load.run("e2e", secs=bench.seconds, **steady)

    def beside(scanned: ColdNode) -> Measurement:
        hot = bench.load.begin("e2e", secs=bench.seconds, **steady)
        while hot.poll() is None:
            scanned.scan(secs=bench.seconds, polite=True)
        return bench.load.finish(hot)

    turns: dict[str, Callable[[], Measurement]] = {
        OURS: partial(beside, cold),
        CALM: alone,
        ELSEWHERE: partial(beside, other),
    }
    try:
        results = take_turns(turns, bench.rounds)
    finally:
        node.stop()
        other.node.stop()
    metrics = []
    for peer, target in ((CALM, ">= 0.8 (moves by less than a quarter)"), (ELSEWHERE, None)):
        metrics += [
            Metric("ack_p99_ms", "p99 of the acknowledgement", "ms", "lower", target, peers=(peer,)),
            Metric("p99_ms", "p99 until consumed", "ms", "lower", target, peers=(peer,)),
            Metric("p50_ms", "p50 until consumed", "ms", "lower", peers=(peer,)),
        ]
    return compare("hot traffic at 2,000 records/s during a cold scan", results, metrics)
