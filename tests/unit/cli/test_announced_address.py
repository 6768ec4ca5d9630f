"""A server that others are sent to under an address that means every machine's own says so at its start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.node_process import NodeProcess
from support.waiting import eventually_sync

WORDS = "set advertised.listeners"


@pytest.mark.parametrize(
    ("listen", "advertised", "is_warned"),
    [("0.0.0.0:0", "", True), ("0.0.0.0:0", "localhost:0", False), ("127.0.0.1:0", "", False)],
)
def test_a_node(tmp_path: Path, listen: str, advertised: str, is_warned: bool) -> None:
    node = NodeProcess(tmp_path / "data", settings={"advertised.listeners": advertised})
    node.bootstrap = listen
    with node:
        log = node.log_path.read_text()
    assert (WORDS in log) is is_warned
    assert ('"level": "error"' in log) is False


@pytest.mark.parametrize(("listen", "is_warned"), [("0.0.0.0:0", True), ("127.0.0.1:0", False)])
def test_an_instance_of_the_meta_service(tmp_path: Path, listen: str, is_warned: bool) -> None:
    program = str(Path(sys.executable).with_name("stratalog"))
    words = [program, "meta", "start", "--listen", listen, "--store", "etcd://127.0.0.1:1"]
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen([*words, "--set", "metrics.listen="], stdout=output, stderr=output, cwd=tmp_path)
    try:
        eventually_sync(lambda: "stratalog ready: " in log.read_text() or process.poll() is not None, 60)
        assert process.poll() is None, log.read_text()
        assert (WORDS in log.read_text()) is is_warned
    finally:
        process.kill()
        process.wait()
