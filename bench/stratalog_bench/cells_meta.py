"""The meta service over a large state: 1,000 shards of 100 sealed segments, over RocksDB and over one member of etcd.

The service keeps leases of an hour, for the ten nodes that the state names are not there. The work of the nodes that
follow it is one process (`bench/meta_state.py`), which shares the cores with the service.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from stratalog_bench.context import REPOSITORY, Bench, Skipped
from stratalog_bench.processes import Server, cpu_seconds, free_port, start
from stratalog_bench.rows import OURS, Measurement, Metric, Row, compare, take_turns

SHARDS = 1_000
SEGMENTS = 100
WATCHERS = 10
SEALS = 200
QUOTA_BYTES = 4 << 30


def _tool(*words: str) -> dict[str, Any]:
    command = [sys.executable, str(REPOSITORY / "bench" / "meta_state.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr[-2_000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _etcd(bench: Bench) -> Server:
    from stratalog_cli.cluster.etcd import find_etcd

    binary = find_etcd()
    if binary is None:
        raise Skipped("no etcd here")
    client, peer = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
    folder = bench.new_folder("etcd")
    command = [
        *(str(binary), "--name", "one", "--data-dir", str(folder), "--quota-backend-bytes", str(QUOTA_BYTES)),
        *("--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer),
        *("--initial-advertise-peer-urls", peer, "--initial-cluster", f"one={peer}", "--log-level", "info"),
    ]
    address = client.removeprefix("http://")
    server = start("etcd", command, address=address, log=bench.folder / "etcd.log", ready="ready to serve client")
    server.directory = folder
    return bench.keep(server)


def _serve(bench: Bench, place: tuple[str, str]) -> Server:
    address = f"127.0.0.1:{free_port()}"
    command = [str(bench.executable), "meta", "start", "--listen", address, *place]
    for setting in ("metrics.listen=", "log.level=info", "node.lease.ms=3600000"):
        command += ["--set", setting]
    log = bench.folder / f"meta.{time.monotonic_ns()}.log"
    # Over etcd it listens before it leads; over a directory it is ready once it has loaded.
    ready = "this instance leads" if place[0] == "--store" else "stratalog ready"
    return bench.keep(start("meta", command, address=address, log=log, ready=ready))


def _once(bench: Bench, place: tuple[str, str], stored: float) -> Measurement:
    server = _serve(bench, place)
    rss_start, cpu_start = server.rss_mib(), cpu_seconds(server.pid)
    told = _tool("follow", f"http://{server.address}", "--watchers", str(WATCHERS), "--seals", str(SEALS))
    found: dict[str, float] = {
        "stored": stored,
        "ready_s": server.ready_s,
        "rss_start": rss_start,
        "rss_peak": server.peak_rss_mib(),
        "cpu_s": cpu_seconds(server.pid) - cpu_start,
        "snapshot_mib": told["snapshot_bytes"] / (1 << 20),
        "snapshots_s": told["snapshots_s"],
        "decoded_s": told["decoded_s"],
        "watch_bytes": told["watch_bytes"] / max(1, told["seals"]),
        "seals_per_s": told["seals"] / told["sealed_s"],
    }
    server.stop()
    return found


def large_state(bench: Bench, *, kind: str) -> list[Row]:
    if not bench.has_node():
        raise Skipped("the node is not here")
    shards, segments = max(10, int(SHARDS * bench.scale)), SEGMENTS
    if kind == "etcd":
        etcd = _etcd(bench)
        place, where = ("--store", f"etcd://{etcd.address}"), etcd.directory / "member" / "snap" / "db"
    else:
        folder = bench.new_folder("meta")
        place, where = ("--data", str(folder)), folder / "meta"
    _tool("fill", *place, "--shards", str(shards), "--segments", str(segments))
    stored = _size(where) / (shards * segments)
    results = take_turns({OURS: lambda: _once(bench, place, stored)}, bench.rounds)
    metrics = [
        Metric("ready_s", "start to leading", "s", "lower"),
        Metric("rss_start", "RSS at start", "MiB", "lower"),
        Metric("rss_peak", "highest RSS", "MiB", "lower"),
        Metric("stored", "in the store, of a sealed segment", "bytes", "lower"),
        Metric("snapshot_mib", "a node's snapshot", "MiB", "lower"),
        Metric("snapshots_s", f"{WATCHERS} nodes read it at once", "s", "lower"),
        Metric("decoded_s", "one node reads and decodes it", "s", "lower"),
        Metric("watch_bytes", "watch, of a sealed segment to one node", "bytes", "lower"),
        Metric("seals_per_s", f"rolled and sealed under {WATCHERS} watches", "/s", "higher"),
        Metric("cpu_s", "CPU of the service for all of it", "s", "lower"),
    ]
    return compare(f"meta, {shards:,} shards of {segments}, {kind}", results, metrics)


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(one.stat().st_size for one in path.rglob("*") if one.is_file())
