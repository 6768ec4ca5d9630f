"""The client that the README shows first runs as it is printed, and the container it starts is a node that takes it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import yaml

from support.node_process import NodeProcess
from support.source_tree import REPOSITORY

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def test_the_first_example_writes_and_reads_three_records(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    with NodeProcess(tmp_path / "data") as node:
        ran = subprocess.run(
            [sys.executable, "-c", example.replace("127.0.0.1:9092", node.bootstrap)],
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr
    records = [f'b\'{flight}\' b\'{{"from": "EWR", "to": "IAH"}}\'' for flight in range(3)]
    assert sorted(ran.stdout.splitlines()) == records


def test_the_container_is_started_with_options_that_a_node_takes(tmp_path: Path) -> None:
    """As deploy/compose.yaml has them, but for the places: data is in this test's folder, ports are free ones."""
    compose = yaml.safe_load((REPOSITORY / "deploy" / "compose.yaml").read_text(encoding="utf-8"))
    (service,) = compose["services"].values()
    verb, *options = service["command"]
    assert verb == "start"
    words = [word for word in options if not word.startswith(("--data=", "--listen=", "--set=metrics.listen="))]
    with NodeProcess(tmp_path / "data", arguments=tuple(words)) as node:
        assert node.get("/readyz")
    assert all(port.startswith("127.0.0.1:") for port in service["ports"]), "clients are not authenticated"
    (image,) = re.findall(r"^IMAGE \?= (\S+)$", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert service["image"] == image
