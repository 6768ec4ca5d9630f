"""Where the demo plays: the nodes it asks, where they keep things, and what their clients connect to."""

from __future__ import annotations

import subprocess
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from stratalog.admin_api.client import AdminClient
from stratalog.connect.shown_certificate import tls_of
from stratalog.tls.outgoing import ClientTls


class DemoFailed(Exception):
    """Something is not as it should be; its words are what the user sees."""


@dataclass(frozen=True, slots=True)
class Security:
    """Of a secure cluster: the files that `cluster start --secure` made, and those of the demo's user."""

    folder: Path

    @property
    def operator_path(self) -> Path:
        """Folder of the certificate that commands show."""
        return self.folder / "operator"

    @property
    def tls(self) -> ClientTls:
        found = tls_of(str(self.operator_path))
        assert found is not None
        return found

    @property
    def admin_path(self) -> Path:
        """Settings of the cluster's administrator."""
        return self.folder / "admin.conf"

    @property
    def user_path(self) -> Path:
        """Settings of the user that writes and reads flights."""
        return self.folder / "demo.conf"


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    kafka: str
    admin: str
    data: Path
    log: Path
    tls: ClientTls | None = None
    """None: it speaks plain text."""

    @property
    def url(self) -> str:
        """Of its admin port."""
        return f"{'http' if self.tls is None else 'https'}://{self.admin}"

    def client(self, timeout_s: float | None = None) -> AdminClient:
        if timeout_s is None:
            return AdminClient(self.url, tls=self.tls)
        return AdminClient(self.url, timeout_s=timeout_s, tls=self.tls)

    def metric(self, *names: str) -> float:
        """The sum of these metrics of the node."""
        https = [] if self.tls is None else [urllib.request.HTTPSHandler(context=self.tls())]
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), *https)
        with opener.open(f"{self.url}/metrics", timeout=10) as answer:
            lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
        # Labels may hold blanks: the value is what follows the last one.
        found = [line.rpartition(" ") for line in lines]
        return sum(float(value) for name, _, value in found if name in names)


@dataclass(frozen=True, slots=True)
class Stage:
    kafka: str
    """Bootstrap servers."""
    nodes: tuple[Node, ...]
    directory: Path
    how_to_end: str
    """What a user types to end it, when it is kept."""
    end_nodes: Callable[[], None]
    beside: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """Processes that were started beside the nodes."""
    security: Security | None = None
    """None: clients come in plain text, and need no login."""

    def end(self) -> None:
        end_processes(self.beside)
        self.end_nodes()

    @property
    def first(self) -> Node:
        """The node to ask for anything that all nodes know."""
        return self.nodes[0]

    @property
    def bucket(self) -> Path:
        return self.directory / "bucket"

    @property
    def replicas(self) -> int:
        return min(3, len(self.nodes))

    @property
    def client_settings(self) -> dict[str, str | int]:
        """Of librdkafka, for producers and consumers."""
        return self._settings(None if self.security is None else self.security.user_path)

    @property
    def admin_settings(self) -> dict[str, str | int]:
        """The same, for making topics."""
        return self._settings(None if self.security is None else self.security.admin_path)

    def _settings(self, file: Path | None) -> dict[str, str | int]:
        login = {} if file is None else dict(line.split("=", 1) for line in file.read_text().splitlines())
        return {**login, "bootstrap.servers": self.kafka, "log_level": 2}  # the loss of a node is reported elsewhere

    def metric(self, *names: str) -> float:
        return sum(node.metric(*names) for node in self.nodes)


def end_processes(processes: list[subprocess.Popen[bytes]], limit_s: float = 20) -> None:
    """Sends SIGTERM, and kills processes that have not ended in time."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def node_settings(segment_bytes: int) -> dict[str, object]:
    return {
        "log.segment.bytes": segment_bytes,
        # A lone record of a quiet shard is in the bucket after a second; freed copies are looked for twice a second.
        "remote.upload.interval.ms": 1000,
        "log.retention.check.interval.ms": 500,
        "group.initial.rebalance.delay.ms": 500,
        # The time between the two checks of a retirement.
        "retire.verify.interval.ms": 1000,
    }
