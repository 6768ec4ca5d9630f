"""Nodes for the client tests: one that is shared, and a maker for tests that kill theirs or need settings."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.node_process import NodeProcess, add_logs_to_report

SETTINGS = {
    # An empty group would otherwise wait three seconds for company, in every test.
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 500,
    "offsets.topic.num.partitions": 2,
    # Tests write records with times of long ago, which would be due at once.
    "log.retention.ms": -1,
}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    add_logs_to_report(report)
    return report


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node shared by all tests that need no settings and kill nothing: each uses topics and groups of its own."""
    with NodeProcess(tmp_path_factory.mktemp("node") / "data", settings=SETTINGS) as node:
        yield node


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[Callable[..., NodeProcess]]:
    """`start_node(bucket=…, settings={…})`: a node of the test's own, ended with it."""
    nodes: list[NodeProcess] = []

    def start(bucket: str | None = None, settings: dict[str, Any] | None = None, **options: Any) -> NodeProcess:
        directory = tmp_path / f"node-{len(nodes)}" / "data"
        nodes.append(NodeProcess(directory, bucket, SETTINGS | (settings or {}), **options))
        return nodes[-1].start()

    yield start
    for node in nodes:
        node.kill()


_numbers = itertools.count(1)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A unique topic name; not created."""
    words = "".join(char if char.isalnum() else "-" for char in request.node.originalname)
    return f"{words[:60]}-{next(_numbers)}"
