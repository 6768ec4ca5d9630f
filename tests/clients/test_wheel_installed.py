"""The wheel in an environment of its own: what `pip install` of it gives runs, a node and its clients included."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from support.node_process import NodeProcess
from support.source_tree import REPOSITORY


class InstalledNode(NodeProcess):
    """Of another environment than the one that runs the tests."""

    stratalog = Path()

    def command(self, address: str) -> list[str]:
        return [str(self.stratalog), *super().command(address)[1:]]


def run(*words: str | Path, **environment: str) -> str:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "STRATALOG", "VIRTUAL"))}
    done = subprocess.run(
        [str(word) for word in words],
        env=clean | environment,
        input="one\ntwo\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        cwd="/",
    )
    assert done.returncode == 0, f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_wheel_installed_in_a_fresh_environment_runs_a_node_and_its_clients(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=REPOSITORY, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("stratalog-*.whl")
    home = tmp_path / "fresh"
    venv.create(home, with_pip=True)
    python, stratalog = home / "bin" / "python", home / "bin" / "stratalog"
    locked = REPOSITORY / "requirements" / "all.txt"
    run(python, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", locked)
    # With its extras, so that what the lock lacks is missed here, and taken from nowhere.
    run(python, "-m", "pip", "install", "--quiet", "--no-index", f"{wheel}[all]")
    run(python, "-m", "pip", "check")

    assert run(stratalog, "--version").startswith("stratalog 0.")
    assert "produce" in run(stratalog, "-h")
    InstalledNode.stratalog = stratalog
    with InstalledNode(tmp_path / "data", str(tmp_path / "bucket"), {"offsets.topic.num.partitions": 1}) as node:
        where = {"STRATALOG_ADMIN": node.admin, "STRATALOG_BOOTSTRAP": node.bootstrap}
        run(stratalog, "topics", "create", "t", **where)
        run(stratalog, "produce", "t", **where)
        assert run(stratalog, "consume", "t", **where) == "one\ntwo\n"
        assert "0 errors" in run(stratalog, "verify", "t", **where) or "clean" in run(stratalog, "verify", "t", **where)
