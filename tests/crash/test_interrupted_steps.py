"""A crash between two steps that belong together: the next start finishes what was begun, or takes it back."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.crash_drill import SETTINGS, command
from support.ledger import create_topics
from support.node_process import NodeProcess
from support.raw_client import RawClient, batch_of
from support.waiting import eventually_sync


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path / "data", str(tmp_path / "bucket"), SETTINGS)
    yield node.start()
    node.kill()


def files(node: NodeProcess, pattern: str) -> list[Path]:
    return sorted((node.data_dir / "node" / "segments").rglob(pattern))


@pytest.mark.fault("process-killed-metadata-record")
@pytest.mark.parametrize("left", ["*.seg", "*.[si][ed][gx]"], ids=["the file", "the file and its index"])
def test_a_local_copy_that_was_given_up_but_not_yet_deleted_goes_at_the_next_start(
    node: NodeProcess, tmp_path: Path, left: str
) -> None:
    """The metadata says first that the copy is no longer here; the kill comes before the file is unlinked."""
    create_topics(node.bootstrap, {"orders": (1, {"local.retention.ms": "-1", "retention.ms": "-1"})})
    with RawClient(node.bootstrap) as client:
        for _ in range(10):
            assert client.produce("orders", batch_of(b"x" * 4_000)).error_code == 0
    eventually_sync(lambda: len(files(node, "*.idx")) >= 2, 20)
    index = files(node, "*.idx")[0]
    kept = [path for path in files(node, left) if path.stem == index.stem]
    for path in kept:
        shutil.copy2(path, tmp_path / path.name)
    command("topics", "alter", "orders", "--set", "local.retention.ms=1", "--admin", node.admin)
    eventually_sync(lambda: not any(path.exists() for path in kept), 20)
    node.kill()
    for path in kept:
        shutil.copy2(tmp_path / path.name, path)
    node.start()
    assert not any(path.exists() for path in kept)
    node.stop()
    assert "clean" in command("doctor", str(node.data_dir))


@pytest.mark.fault("killed-holder-write-lock")
def test_a_killed_nodes_next_life_uploads_without_waiting_for_the_lease(node: NodeProcess) -> None:
    eventually_sync(lambda: lock_lines(node) == ["taken"])
    node.kill()
    node.start()
    eventually_sync(lambda: len(lock_lines(node)) > 1, 20)
    assert lock_lines(node) == ["taken", "taken"]


def lock_lines(node: NodeProcess) -> list[str]:
    """What the log says of the write lock, over all lives: it was taken, or another holds it."""
    return re.findall(r"write lock (?:is )?(taken|held)", node.log_text())
