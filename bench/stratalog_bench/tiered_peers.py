"""The servers of the tiered cells: a node with a bucket, and Kafka with its tiered storage switched on.

Kafka's remote tier is LocalTieredStorage of its own test jars, where the node's bucket is a directory, and
`bench/peers/S3RemoteStorage.java` where it is on an S3 server: the same server program for both. Each server's
remote folder is known, so that a cell can see what lies there and wait until what it wrote is gone again.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from stratalog_bench.context import REPOSITORY, Bench, Skipped
from stratalog_bench.processes import Server, free_port, start

NODE_SETTINGS = ("remote.upload.interval.ms=1000", "log.retention.check.interval.ms=300")
KAFKA_SETTINGS = {
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
    "remote.log.storage.manager.impl.prefix": "rsm.config.",
    "rsm.config.delete.on.close": "false",
    "remote.log.metadata.manager.listener.name": "PLAINTEXT",
    "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "5",
    # What is ready goes up at once, as with the node: the default looks every 30 s.
    "remote.log.manager.task.interval.ms": "300",
    "log.retention.check.interval.ms": "300",
    "log.initial.task.delay.ms": "300",
}
S3_ACCESS, S3_SECRET = "bench", "benchbench"
_SETTLED_BYTES = 16 << 20
_STAYS_AFTER_S = 4.0
"""Objects whose size has not shrunk for this long stay: bundles with few dead parts, for example."""


@dataclass(frozen=True, slots=True)
class Tiered:
    """A server and the folder that is its remote tier. `beside` are helpers of its own, which are not measured."""

    server: Server
    remote: Path
    beside: tuple[Server, ...] = field(default=())

    def remote_mib(self) -> float:
        return _size_bytes(self.remote) / (1 << 20)

    def settle(self, patience_s: float = 60) -> None:
        """Waits until what a deleted topic left is gone from the disk and from the remote tier, but for what stays."""
        end = time.monotonic() + patience_s
        smallest, shrank_at = self._size_bytes(), time.monotonic()
        while smallest > _SETTLED_BYTES and time.monotonic() < min(end, shrank_at + _STAYS_AFTER_S):
            time.sleep(0.1)
            if (size := self._size_bytes()) < smallest:
                smallest, shrank_at = size, time.monotonic()

    def _size_bytes(self) -> int:
        return _size_bytes(self.server.directory) + _size_bytes(self.remote)

    def stop(self) -> None:
        for server in (self.server, *self.beside):
            server.stop()


def node_on_directory(bench: Bench, *settings: str, without: str = "") -> Tiered:
    if not bench.has_node():
        raise Skipped("the node is not here")
    bucket = bench.new_folder("bucket")
    bucket.mkdir()
    return Tiered(bench.start_node(*NODE_SETTINGS, *settings, bucket=bucket.as_uri(), without=without), bucket)


def kafka_on_s3(bench: Bench) -> Tiered:
    store = s3_server(bench)
    settings = KAFKA_SETTINGS | {
        "remote.log.storage.manager.class.name": "S3RemoteStorage",
        "rsm.config.endpoint": f"http://127.0.0.1:{store.port}",
        "rsm.config.bucket": store.bucket.name,
        "rsm.config.access.key": S3_ACCESS,
        "rsm.config.secret.key": S3_SECRET,
    }
    return Tiered(bench.start_kafka(settings), store.bucket, (store.server,))


@dataclass(frozen=True, slots=True)
class S3Server:
    server: Server
    port: int
    bucket: Path
    """Its folder."""

    def url(self, port: int) -> str:
        """Of a cluster in the bucket, by a port that leads to the server."""
        credentials = f"access_key_id={S3_ACCESS}&secret_access_key={S3_SECRET}&region=us-east-1"
        return f"s3://bench/cluster?endpoint=http://127.0.0.1:{port}&{credentials}"


def s3_server(bench: Bench) -> S3Server:
    """versitygw, a real S3 server over a folder."""
    built = subprocess.run([REPOSITORY / "tools" / "versitygw.sh"], capture_output=True, text=True, check=False)
    if built.returncode:
        raise Skipped("versitygw cannot be built here: " + built.stderr.strip()[-200:])
    folder, port = bench.new_folder("s3"), free_port()
    bucket = folder / "buckets" / "bench"
    bucket.mkdir(parents=True)
    command = [
        *(built.stdout.strip(), "--access", S3_ACCESS, "--secret", S3_SECRET, "--keep-alive", "--quiet"),
        *("--port", f"127.0.0.1:{port}", "posix", str(bucket.parent)),
    ]
    gateway = bench.keep(start("versitygw", command, address=f"127.0.0.1:{port}", log=folder / "s3.log", ready=""))
    _await_port(port)
    return S3Server(gateway, port, bucket)


def node_on_s3(bench: Bench, *settings: str) -> Tiered:
    """A node whose bucket is served by versitygw."""
    if not bench.has_node():
        raise Skipped("the node is not here")
    store = s3_server(bench)
    node = bench.start_node(*NODE_SETTINGS, *settings, bucket=store.url(store.port))
    return Tiered(node, store.bucket, (store.server,))


def kafka_on_directory(bench: Bench) -> Tiered:
    remote = bench.new_folder("kafka-remote")
    remote.mkdir()
    return Tiered(bench.start_kafka(KAFKA_SETTINGS | {"rsm.config.dir": str(remote)}), remote)


def _await_port(port: int, patience_s: float = 30) -> None:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise Skipped(f"versitygw does not listen on port {port}")


def _size_bytes(folder: Path) -> int:
    """Bytes on the disk, as far as they are still there when they are looked at."""
    total = 0
    for path, _, names in os.walk(folder):  # passes over what is deleted meanwhile
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                # Blocks, not lengths: Kafka's index files are long and empty.
                total += os.lstat(f"{path}/{name}").st_blocks * 512
    return total
