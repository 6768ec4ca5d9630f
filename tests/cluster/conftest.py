"""Real processes: etcd, the meta service, nodes."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.etcd_server import NO_ETCD, EtcdServers, etcd_binary, etcd_servers
from support.meta_process import MetaProcess
from support.node_process import add_logs_to_report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What the nodes said belongs to the report of a test that failed."""
    report = yield
    add_logs_to_report(report)
    return report


@pytest.fixture
def etcd_of_three(tmp_path: Path) -> Iterator[EtcdServers]:
    if etcd_binary() is None:
        pytest.skip(NO_ETCD)
    with etcd_servers(tmp_path / "etcd", 3) as servers:
        yield servers


@pytest.fixture
def three_metas(
    etcd_of_three: EtcdServers, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[list[MetaProcess]]:
    """Three instances over one etcd. Nodes need no heartbeats unless a test gives the lease in ms as parameter."""
    settings = (f"node.lease.ms={getattr(request, 'param', 600_000)}",)
    metas = [
        MetaProcess(tmp_path, f"meta-{number}", "--store", etcd_of_three.url, settings=settings) for number in range(3)
    ]
    with ThreadPoolExecutor() as starting:
        list(starting.map(MetaProcess.start, metas))
    yield metas
    for meta in metas:
        if meta.is_running:
            meta.resume()
            meta.kill()
