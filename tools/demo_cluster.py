"""The demo's cluster: `stratalog cluster start` as a child process, its parts looked up in `cluster.json`."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from demo_stage import DemoFailed, Node, Stage, node_settings

_READY_S = 90
_BLOCKS = 5
"""So many blocks of ports are tried: between the look at one and its use somebody else may take it."""
_STRATALOG = str(Path(sys.executable).with_name("stratalog"))


class PortsTaken(DemoFailed):
    """Nothing was started."""


def start_cluster(directory: Path, nodes: int, segment_bytes: int, *, on_usual_ports: bool) -> Stage:
    """Raises: DemoFailed with the cluster's own words."""
    is_new = not (directory / "cluster").exists()
    for attempt in range(_BLOCKS):
        base = None if on_usual_ports and not attempt and _are_free(9092, 9644) else _free_block()
        try:
            return _start_at(base, directory, nodes, segment_bytes)
        except PortsTaken:
            if not is_new or attempt == _BLOCKS - 1:
                raise
            shutil.rmtree(directory / "cluster", ignore_errors=True)  # a cluster keeps its ports
    raise AssertionError("the last attempt returns or raises")


def _start_at(port_base: int | None, directory: Path, nodes: int, segment_bytes: int) -> Stage:
    data = directory / "cluster"
    command = [_STRATALOG, "cluster", "start", "--nodes", str(nodes), "--data", str(data)]
    command += ["--bucket", str(directory / "bucket")]
    if port_base is not None:
        command += ["--port-base", str(port_base)]
    command += [word for key, value in node_settings(segment_bytes).items() for word in ("--set", f"{key}={value}")]
    directory.mkdir(parents=True, exist_ok=True)
    said = directory / "cluster.log"
    with said.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )

    def end() -> None:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()  # its parts go with it
            process.wait(10)

    deadline = time.monotonic() + _READY_S
    while "\nready bootstrap=" not in said.read_text(encoding="utf-8", errors="replace"):
        if process.poll() is not None or time.monotonic() > deadline:
            end()
            words = said.read_text(encoding="utf-8", errors="replace")
            is_taken = "is taken" in words or "in use" in words
            raise (PortsTaken if is_taken else DemoFailed)(f"the cluster did not start: {words}")
        time.sleep(0.02)
    told = json.loads((data / "cluster.json").read_text(encoding="utf-8"))
    parts = [part for part in told["parts"] if part["role"] == "node"]
    views = tuple(
        Node(part["addresses"]["admin"], data / part["name"], data / "logs" / f"{part['name']}.log") for part in parts
    )
    how_to_end = f"{_STRATALOG} cluster stop --data {data}"
    return Stage(told["bootstrap"], views, directory, how_to_end, end)


def kill_part(stage: Stage, name: str) -> None:
    """kill -9: nothing is flushed, nobody is told."""
    told = json.loads((stage.directory / "cluster" / "cluster.json").read_text(encoding="utf-8"))
    (pid,) = [part["pid"] for part in told["parts"] if part["name"] == name]
    os.kill(pid, signal.SIGKILL)


def start_part(stage: Stage, name: str) -> None:
    """Returns when it is ready. Raises: DemoFailed."""
    command = [_STRATALOG, "cluster", "start", "--data", str(stage.directory / "cluster"), "--part", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_READY_S)
    if done.returncode != 0:
        raise DemoFailed(f"{name} did not start again: {done.stdout}{done.stderr}")


def _are_free(*bases: int) -> bool:
    return all(_is_free(base + at) for base in bases for at in range(60))


def _free_block() -> int:
    for _ in range(200):
        base = random.randrange(12_000, 32_000, 100)
        if _are_free(base):
            return base
    raise DemoFailed("no 100 free ports in a row were found")


def _is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False
