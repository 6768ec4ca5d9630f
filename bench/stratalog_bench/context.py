"""Everything a cell needs: the servers (started when first asked for), the load generator, folders, how long to run.

Use as a context manager: whatever was started is ended, and its data removed, when the block ends.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

from stratalog.kafka import fetch
from stratalog_bench import certificates, kafka_peer, load_tool
from stratalog_bench.certificates import Certificates
from stratalog_bench.load_tool import LoadTool
from stratalog_bench.processes import Server, free_port, start

REPOSITORY = Path(__file__).resolve().parent.parent.parent
PRODUCE_ANSWER_BYTES = 60


class Skipped(Exception):
    """A cell cannot run here; the message says what is missing."""


class Bench:
    """One run of the benchmark.

    `seconds` scales the measured stretches, `rounds` is how often each system is measured (at least 3 for a result that
    is meant to be believed).
    """

    def __init__(self, *, seconds: float, rounds: int, scale: float = 1.0) -> None:
        self.seconds = seconds
        self.rounds = rounds
        self.scale = scale
        self.cache = REPOSITORY / ".cache" / "bench"
        self.executable = Path(sys.executable).with_name("stratalog")
        self._servers: list[Server] = []
        self._names = itertools.count()

    def __enter__(self) -> Bench:
        self.cache.mkdir(parents=True, exist_ok=True)
        # Beside the checkout and not in /tmp, which may be memory: all systems write to the same real disk.
        self.folder = Path(tempfile.mkdtemp(prefix="run-", dir=self.cache))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers:
            server.stop()
        for server in self._servers:  # what they said is worth keeping, what they stored is not
            if server.log.exists():
                shutil.copy(server.log, self.cache / f"last-{server.name}.log")
        shutil.rmtree(self.folder, ignore_errors=True)

    def stop_all(self) -> None:
        """Ends all that runs, what cells share too: for the last cells, which need the machine for themselves."""
        for server in self._servers:
            server.stop()

    # --- what is here ---------------------------------------------------------------------------------------------

    @cached_property
    def load(self) -> LoadTool:
        if program := load_tool.missing():
            raise Skipped(f"no {program}: the load generator cannot be built")
        return LoadTool.build(REPOSITORY / "bench" / "load", self.cache)

    def has_kafka(self) -> bool:
        return kafka_peer.missing() is None

    def has_node(self) -> bool:
        return "BENCH_WITHOUT_NODE" not in os.environ

    # --- servers --------------------------------------------------------------------------------------------------

    def new_folder(self, name: str) -> Path:
        return self.folder / f"{name}-{next(self._names)}"

    def start_node(
        self, *settings: str, data: Path | None = None, bucket: str | None = None, without: str = ""
    ) -> Server:
        """A node of our own. `settings` are KEY=VALUE; without `data` on a fresh folder; `without`: see
        `bench/peers/node_without.py`."""
        data = data or self.new_folder("node")
        port = free_port()
        command = [str(self.executable)]
        if without:
            command = [sys.executable, str(REPOSITORY / "bench" / "peers" / "node_without.py"), without]
        command += ["start", "--data", str(data), "--listen", f"127.0.0.1:{port}"]
        if bucket:
            command += ["--bucket", bucket]
        # Deleted topics give their pages back at once, as with the Kafka peer.
        for setting in ("metrics.listen=127.0.0.1:0", "log.level=warning", "remote.delete.delay.ms=1000", *settings):
            command += ["--set", setting]
        log = self.folder / f"{data.name}.{time.monotonic_ns()}.log"
        server = start("stratalog", command, address=f"127.0.0.1:{port}", log=log, ready="ready")
        server.directory = data
        return self.keep(server)

    def start_kafka(self, settings: Mapping[str, str] | None = None) -> Server:
        directory = self.new_folder("kafka")
        port = kafka_peer.prepare(self.kafka_jars, directory, dict(settings or {}))
        return self.keep(kafka_peer.run(self.kafka_jars, directory, port))

    @cached_property
    def kafka_jars(self) -> Path:
        if program := kafka_peer.missing():
            raise Skipped(f"no {program}: Apache Kafka cannot be started")
        return kafka_peer.install(REPOSITORY / "bench" / "peers", REPOSITORY / ".cache" / "peers")

    def start_tcp(self, reply_bytes: int = PRODUCE_ANSWER_BYTES, files: int = 0, echo: bool = False) -> Server:
        port = free_port()
        script = REPOSITORY / "bench" / "peers" / "tcp_server.py"
        command = [sys.executable, str(script), "--port", str(port), "--reply", str(reply_bytes)]
        if echo:
            command.append("--echo")
        if files:
            command += ["--files", str(files), "--dir", str(self.new_folder("files"))]
        log = self.folder / f"tcp-{port}.log"
        return self.keep(start("tcp", command, address=f"127.0.0.1:{port}", log=log, ready="ready"))

    def keep(self, server: Server) -> Server:
        """Ends an already started server with this run."""
        self._servers.append(server)
        return server

    @cached_property
    def node(self) -> Server:
        """The node that most cells share: no object store, so that it does what the Kafka peer does."""
        return self.start_node()

    @cached_property
    def certificates(self) -> Certificates:
        return certificates.write(self.new_folder("certificates"))

    @cached_property
    def secure_node(self) -> tuple[Server, Server]:
        """One node: its listener of TLS, and the one in plain text."""
        port = free_port()
        server = self.start_node(
            f"listeners=tls://127.0.0.1:{port}",
            "listener.security.protocol.map=tls:SSL",
            f"ssl.certificate.folder={self.certificates.folder}",
        )
        return replace(server, address=f"127.0.0.1:{port}"), server

    @cached_property
    def secure_kafka(self) -> Server:
        """A Kafka's listener of TLS, warmed up."""
        port = free_port()
        server = self.start_kafka(
            {
                "listeners": f"SSL://127.0.0.1:{port}",
                "advertised.listeners": f"SSL://127.0.0.1:{port}",
                "listener.security.protocol.map": "SSL:SSL",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self.certificates.keystore),
            }
        )
        secure = replace(server, address=f"127.0.0.1:{port}")
        ca = self.certificates.authority
        with_topic(self, secure, 6, "warm-up", lambda topic: self.warm_up(secure, topic, ca), ca=ca)
        return secure

    @cached_property
    def node_without_journal(self) -> Server:
        return self.start_node(without="journal")

    @cached_property
    def node_without_disk(self) -> Server:
        """What the load generator gets out of a node that keeps nothing."""
        return self.start_node(without="disk")

    @cached_property
    def kafka(self) -> Server:
        """The Kafka that most cells share, warmed up: a JVM speeds up for as long as it compiles."""
        server = self.start_kafka()
        with_topic(self, server, 6, "warm-up", lambda topic: self.warm_up(server, topic))
        return server

    def warm_up(self, server: Server, topic: str, ca: Path | None = None) -> dict[str, Any]:
        for size, seconds in ((16384, 12.0), (1024, 8.0)):
            self.load.run(
                "raw-produce",
                b=server.address,
                topic=topic,
                size=size,
                secs=seconds * self.scale,
                warm=0.1,
                pids=server.pid,
                ca=ca,
            )
            self.load.run(
                "raw-fetch",
                b=server.address,
                topic=topic,
                size=size,
                secs=3 * self.scale,
                check=False,
                batches=100,
                ca=ca,
            )
        return self.load.run("produce", b=server.address, topic=topic, secs=20 * self.scale, warm=0.1, ca=ca)

    def systems(self) -> dict[str, Server]:
        """The systems that speak Kafka, as far as they can run here."""
        found: dict[str, Server] = {}
        if self.has_node():
            found["stratalog"] = self.node
        if self.has_kafka():
            found["kafka"] = self.kafka
        return found


def with_topic(
    bench: Bench,
    server: Server,
    partitions: int,
    name: str,
    work: Callable[[str], dict[str, Any]],
    config: Mapping[str, str] | None = None,
    ca: Path | None = None,
) -> dict[str, Any]:
    """Runs `work` on a topic of its own and deletes it afterwards. `ca`: over TLS, with this authority."""
    topic = f"{name}-{time.monotonic_ns()}"
    settings = ",".join(f"{key}={value}" for key, value in (config or {}).items())
    bench.load.run("topic", b=server.address, topic=topic, partitions=partitions, config=settings, ca=ca)
    try:
        return work(topic)
    finally:
        bench.load.run("topic", b=server.address, topic=topic, delete=True, ca=ca)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        "unknown",
    )
    memory = int(Path("/proc/meminfo").read_text().split()[1]) // 1024
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_mib": memory,
        "kernel": os.uname().release,
        "python": sys.version.split()[0],
        "hot_path": "compiled" if str(fetch.__file__).endswith(".so") else "interpreted",
        "commit": commit.stdout.strip(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def dump(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
