"""Where the demo plays: the nodes it asks, where they keep things, and what their clients connect to."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stratalog.admin_api.client import AdminClient


class DemoFailed(Exception):
    """Something is not as it should be; its words are what the user sees."""


@dataclass(frozen=True, slots=True)
class Node:
    admin: str
    data: Path
    log: Path

    def client(self) -> AdminClient:
        return AdminClient(self.admin)

    def metric(self, *names: str) -> float:
        """The sum of these metrics of the node."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://{self.admin}/metrics", timeout=10) as answer:
            lines = [line.split() for line in answer.read().decode().splitlines() if not line.startswith("#")]
        return sum(float(value) for name, value in lines if name in names)


@dataclass(frozen=True, slots=True)
class Stage:
    kafka: str
    """Bootstrap servers."""
    nodes: tuple[Node, ...]
    directory: Path
    how_to_end: str
    """What a user types to end it, when it is kept."""
    end: Callable[[], None]

    @property
    def first(self) -> Node:
        """Whom to ask what all nodes know."""
        return self.nodes[0]

    @property
    def bucket(self) -> Path:
        return self.directory / "bucket"

    @property
    def replicas(self) -> int:
        return min(3, len(self.nodes))

    def metric(self, *names: str) -> float:
        return sum(node.metric(*names) for node in self.nodes)


def node_settings(segment_bytes: int) -> dict[str, object]:
    return {
        "log.segment.bytes": segment_bytes,
        # A lone record of a quiet shard is in the bucket after a second; freed copies are looked for twice a second.
        "remote.upload.interval.ms": 1000,
        "log.retention.check.interval.ms": 500,
        "group.initial.rebalance.delay.ms": 500,
    }
