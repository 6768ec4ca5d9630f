"""Real nodes with a second disk: killed while copies move there, and started without it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stratalog.formats.batches.records import Record, encode_batch
from support.crash_drill import Drill, command
from support.ledger import create_topics, read_log
from support.node_process import NodeProcess
from support.raw_client import RawClient
from support.waiting import eventually_sync

_VALUES = 40


@pytest.mark.slow
@pytest.mark.fault("copy-move-cut-short")
@pytest.mark.timeout(3600)
def test_a_node_killed_while_it_moves_copies_loses_nothing(tmp_path: Path, crash_rounds: int, crash_seed: int) -> None:
    (tmp_path / "hdd").mkdir()
    settings = {
        "data.dirs": f"hdd:{tmp_path / 'hdd'}",
        "data.move.after.ms": 0,
        "log.local.retention.ms": 4_000,
    }
    drill = Drill(tmp_path, str(tmp_path / "bucket"), crash_seed, settings=settings)
    drill.begin()
    moved = 0.0
    for _ in range(crash_rounds):
        drill.round()
        moved += drill.node.metrics()["stratalog_moves_copies_total"]
    drill.finish()
    assert moved > 0


def _output(*arguments: str) -> str:
    """Of a command that may find something to report."""
    executable = str(Path(sys.executable).with_name("stratalog"))
    done = subprocess.run([executable, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def _produce(node: NodeProcess, start: int) -> None:
    now_ms = time.time_ns() // 1_000_000
    with RawClient(node.bootstrap) as client:
        for number in range(start, start + _VALUES):
            client.produce("flights", encode_batch([Record(0, now_ms, b"", b"%d" % number * 200)]))


def _offsets(node: NodeProcess) -> list[int]:
    with RawClient(node.bootstrap) as client:
        return [seen.offset for seen in read_log(client, ("flights", 0)).records]


@pytest.mark.slow
@pytest.mark.fault("data-directory-absent")
def test_a_node_starts_without_its_second_disk_and_has_all_with_it(tmp_path: Path) -> None:
    hdd = tmp_path / "hdd"
    hdd.mkdir()
    settings = {"data.dirs": f"hdd:{hdd}", "data.move.after.ms": 0}
    node = NodeProcess(tmp_path / "data", None, settings)
    with node.start():
        create_topics(node.bootstrap, {"flights": (1, {"segment.bytes": "2048"})})
        _produce(node, 0)
        eventually_sync(lambda: node.metrics()["stratalog_moves_copies_total"] >= 2, 30.0)
        assert len(list(hdd.rglob("*.seg"))) >= 2
        node.stop()
        hdd.rename(tmp_path / "unplugged")
        hdd.mkdir()  # an empty mount point
        node.start()
        assert node.metrics()["stratalog_directories_unusable"] == 1
        status = json.loads(_output("status", "--admin", node.admin, "-o", "json"))
        assert any(str(hdd) in line and "is not used" in line for line in status["damaged"])
        _produce(node, _VALUES)
        assert list(hdd.iterdir()) == []
        node.kill()
        assert "may be in the directory that cannot be read" in _output("doctor", str(node.data_dir))
        hdd.rmdir()
        (tmp_path / "unplugged").rename(hdd)
        node.start()
        assert node.metrics()["stratalog_directories_unusable"] == 0
        assert _offsets(node) == list(range(2 * _VALUES))
        node.stop()
        command("doctor", str(node.data_dir))
