"""A node whose log has nowhere to go: the disk under it is full, or its reader is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.ledger import commit, create_topics
from support.node_process import NodeProcess
from support.raw_client import RawClient
from support.waiting import eventually_sync


class WithoutLog(NodeProcess):
    """Standard error is a device that is always full; standard output is as ever."""

    def command(self, address: str) -> list[str]:
        return ["sh", "-c", 'exec "$@" 2>/dev/full', "sh", *super().command(address)]


@pytest.mark.fault("log-cannot-written-disk")
def test_a_node_whose_log_cannot_be_written_starts_serves_and_counts_the_lines(tmp_path: Path) -> None:
    with WithoutLog(tmp_path / "data", str(tmp_path / "bucket"), {"log.level": "debug"}) as node:
        create_topics(node.bootstrap, {"orders": (3, {})})
        with RawClient(node.bootstrap) as client:
            eventually_sync(lambda: commit(client, "auditors", {("orders", 0): 7}) == {("orders", 0): 0})
        assert node.metrics()["stratalog_log_lines_lost_total"] >= 1
        node.kill_and_restart()
        with RawClient(node.bootstrap) as client:
            eventually_sync(lambda: commit(client, "auditors", {("orders", 0): 8}) == {("orders", 0): 0})
        node.stop()
