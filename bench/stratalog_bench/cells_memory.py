"""What an acknowledgement from memory would gain over the page cache: the same node with its data on a disk, and in
memory (a tmpfs).

A node acknowledges what is in the page cache of its replicas. A tmpfs is that page cache without a disk behind it, so
the difference is all that a policy without a disk can gain.
"""

from __future__ import annotations

import re
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from stratalog_bench.context import Bench, Skipped, with_topic
from stratalog_bench.processes import Server
from stratalog_bench.rows import OURS, Metric, Row, compare, take_turns

IN_MEMORY = "its data in memory"
RATE = 20_000
SHARDS = 8
_MEMORY = Path("/dev/shm")


def acknowledge(bench: Bench) -> list[Row]:
    """20,000 records of 1 KiB a second with acks=all: waits, CPU, and bytes that went to the disk."""
    if not bench.has_node() or not _MEMORY.is_dir():
        raise Skipped("no node, or no memory to put files in")
    with tempfile.TemporaryDirectory(prefix="stratalog-bench-", dir=_MEMORY) as folder:
        nodes = {OURS: bench.start_node(), IN_MEMORY: bench.start_node(data=Path(folder) / "node")}
        try:
            turns = {name: partial(_produce, bench, node) for name, node in nodes.items()}
            results = take_turns(turns, bench.rounds)
        finally:
            for node in nodes.values():
                node.stop()
    metrics = [
        Metric("p50_ms", "p50", "ms", "lower"),
        Metric("p99_ms", "p99", "ms", "lower"),
        Metric("server_cpu_us", "server CPU per record", "us", "lower"),
        Metric("disk_bytes", "bytes to the disk per record", "B", "lower"),
    ]
    return compare(f"acknowledged from memory, {RATE:,} records/s, acks=all", results, metrics)


def _produce(bench: Bench, node: Server) -> dict[str, Any]:
    def run(topic: str) -> dict[str, Any]:
        before = _written_bytes(node)
        options: dict[str, Any] = {"b": node.address, "pids": node.pid, "acks": "all", "rate": RATE}
        found: dict[str, Any] = bench.load.run("produce", topic=topic, secs=bench.seconds, warm=1, **options)
        found["disk_bytes"] = (_written_bytes(node) - before) / ((bench.seconds + 1) * RATE)
        return found

    return with_topic(bench, node, SHARDS, "m", run)


def _written_bytes(node: Server) -> int:
    """What the process has caused to be written to a disk, by the kernel's count."""
    counts = dict(re.findall(r"(\w+): (\d+)", Path(f"/proc/{node.pid}/io").read_text(encoding="ascii")))
    return int(counts["write_bytes"]) - int(counts["cancelled_write_bytes"])
