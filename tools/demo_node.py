"""The demo's own node: a child process on loopback, with everything it has in one folder."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from stratalog.admin_api.client import AdminClient

USUAL_PORTS = {"kafka": 9092, "admin": 9644}
_READY_S = 30


class DemoFailed(Exception):
    """Something is not as it should be; its words are what the user sees."""


@dataclass(slots=True)
class Node:
    process: subprocess.Popen[bytes]
    directory: Path
    kafka: str
    admin: str

    @property
    def log(self) -> Path:
        return self.directory / "node.log"

    def client(self) -> AdminClient:
        return AdminClient(self.admin)

    def metric(self, *names: str) -> float:
        """The sum of these metrics of the node."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://{self.admin}/metrics", timeout=10) as answer:
            lines = [line.split() for line in answer.read().decode().splitlines() if not line.startswith("#")]
        return sum(float(value) for name, value in lines if name in names)

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)


def free_port(wanted: int | None) -> int:
    with socket.socket() as probe:
        if wanted is not None:
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", wanted))
                return wanted
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_node(directory: Path, segment_bytes: int, *, on_usual_ports: bool) -> Node:
    """Raises: DemoFailed with the node's own words."""
    kafka, admin = (f"127.0.0.1:{free_port(port if on_usual_ports else None)}" for port in USUAL_PORTS.values())
    command = [str(Path(sys.executable).with_name("stratalog")), "start"]
    command += ["--data", str(directory / "node"), "--bucket", str(directory / "bucket"), "--listen", kafka]
    settings = {
        "metrics.listen": admin,
        "log.segment.bytes": segment_bytes,
        # A lone record of a quiet shard is in the bucket after a second; freed copies are looked for twice a second.
        "remote.upload.interval.ms": 1000,
        "log.retention.check.interval.ms": 500,
        "group.initial.rebalance.delay.ms": 500,
    }
    command += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "node.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    node = Node(process, directory, kafka, admin)
    deadline = time.monotonic() + _READY_S
    while "stratalog ready:" not in node.log.read_text(encoding="utf-8", errors="replace"):
        if process.poll() is not None or time.monotonic() > deadline:
            node.end()
            raise DemoFailed(f"the node did not start: {node.log.read_text(encoding='utf-8', errors='replace')}")
        time.sleep(0.01)
    return node
