"""Prometheus and promtool, as `tools/prometheus.sh` brings them: the judges of our alerts, dashboard and metrics."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from support.source_tree import REPOSITORY
from support.waiting import eventually_sync

MONITORING = REPOSITORY / "deploy" / "monitoring"
NO_PROMETHEUS = "there is no Prometheus here: run tools/prometheus.sh"


def tool(name: str) -> str | None:
    """Where `prometheus` or `promtool` is; None where it is not."""
    place = f"{REPOSITORY / '.cache' / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    return shutil.which(name, path=place)


def promtool(*arguments: str, folder: Path = MONITORING, given: str | None = None) -> str:
    """What it says. Raises: AssertionError where it finds a fault."""
    binary = tool("promtool")
    assert binary is not None, NO_PROMETHEUS
    done = subprocess.run([binary, *arguments], cwd=folder, input=given, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


class Prometheus:
    """A server that runs."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def ask(self, path: str, **query: str) -> Any:
        """The `data` of an answer of its API."""
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]

    def series(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("query", query=expression)["result"]
        return found

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@contextmanager
def prometheus_of(folder: Path, targets: Sequence[str]) -> Iterator[Prometheus]:
    """A server with the configuration and the rules that we ship, over these addresses, each second."""
    binary = tool("prometheus")
    assert binary is not None, NO_PROMETHEUS
    config = yaml.safe_load((MONITORING / "prometheus.yaml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (job,) = config["scrape_configs"]
    job["static_configs"] = [{"targets": list(targets)}]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    shutil.copy(MONITORING / "alerts.yaml", folder)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [binary, f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    try:
        server = Prometheus(port)
        eventually_sync(server.is_ready, 60)
        yield server
    finally:
        process.terminate()
        process.wait(60)
