"""Real nodes of one process, over a real meta service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.node_cluster import NodeCluster


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NodeCluster]:
    """Without a bucket; its nodes are the test's to start."""
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        yield cluster
