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
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from demo_secure import admit_user
from demo_stage import DemoFailed, Node, Security, Stage, end_processes, node_settings

_READY_S = 90
_BLOCKS = 5
"""How many blocks of ports are tried: another process may take a port between the check and its use."""
_STRATALOG = str(Path(sys.executable).with_name("stratalog"))


class PortsTaken(DemoFailed):
    """Nothing was started."""


def start_cluster(directory: Path, nodes: int, segment_bytes: int, *, on_usual_ports: bool, is_secure: bool) -> Stage:
    """Raises: DemoFailed with the cluster's own words."""
    is_new = not (directory / "cluster").exists()
    for attempt in range(_BLOCKS):
        base = None if on_usual_ports and not attempt and _are_free(9092, 9644) else _free_block()
        try:
            return _start_at(base, directory, nodes, segment_bytes, is_secure=is_secure)
        except PortsTaken:
            if not is_new or attempt == _BLOCKS - 1:
                raise
            shutil.rmtree(directory / "cluster", ignore_errors=True)  # a cluster keeps its ports
    raise AssertionError("the last attempt returns or raises")


def _start_at(port_base: int | None, directory: Path, nodes: int, segment_bytes: int, *, is_secure: bool) -> Stage:
    data = directory / "cluster"
    command = [_STRATALOG, "cluster", "start", "--nodes", str(nodes), "--data", str(data)]
    command += ["--bucket", str(directory / "bucket")]
    if is_secure:
        command += ["--secure"]
    if port_base is not None:
        command += ["--port-base", str(port_base)]
    command += [word for key, value in node_settings(segment_bytes).items() for word in ("--set", f"{key}={value}")]
    directory.mkdir(parents=True, exist_ok=True)
    said = directory / "cluster.log"
    with said.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )

    deadline = time.monotonic() + _READY_S
    while "\nready bootstrap=" not in said.read_text(encoding="utf-8", errors="replace"):
        if process.poll() is not None or time.monotonic() > deadline:
            end_processes([process], 60)
            words = said.read_text(encoding="utf-8", errors="replace")
            is_taken = "is taken" in words or "in use" in words
            raise (PortsTaken if is_taken else DemoFailed)(f"the cluster did not start: {words}")
        time.sleep(0.02)
    how_to_end = f"{_STRATALOG} cluster stop --data {data}"
    told = _cluster_json(directory)
    security = Security(data / "security") if is_secure else None
    # Its parts go with it, if it is killed.
    end = partial(end_processes, [process], 60)
    stage = Stage(told["bootstrap"], _nodes(directory, security), directory, how_to_end, end, security=security)
    if security is not None:
        try:
            admit_user(stage, security)
        except BaseException:
            end()
            raise
    return stage


def _cluster_json(directory: Path) -> Any:
    return json.loads((directory / "cluster" / "cluster.json").read_text(encoding="utf-8"))


def _nodes(directory: Path, security: Security | None) -> tuple[Node, ...]:
    data = directory / "cluster"
    tls = None if security is None else security.tls
    return tuple(
        Node(
            part["name"],
            part["addresses"]["kafka"],
            part["addresses"]["admin"],
            data / part["name"],
            data / "logs" / f"{part['name']}.log",
            tls,
        )
        for part in _cluster_json(directory)["parts"]
        if part["role"] == "node"
    )


def _pid_of(stage: Stage, name: str) -> int | None:
    (pid,) = [part["pid"] for part in _cluster_json(stage.directory)["parts"] if part["name"] == name]
    return pid


def kill_part(stage: Stage, name: str) -> None:
    """Kills with `kill -9`: the part flushes nothing and signs off nowhere."""
    pid = _pid_of(stage, name)
    if pid is None:
        raise DemoFailed(f"{name} was to be killed, and does not run")
    os.kill(pid, signal.SIGKILL)


def start_part(stage: Stage, name: str) -> None:
    """Returns when it is ready. Raises: DemoFailed."""
    run_stratalog(["cluster", "start", "--data", str(stage.directory / "cluster"), "--part", name])


# Nodes that come and go -----------------------------------------------------------------------------------------------
def run_stratalog(words: list[str], limit_s: float = _READY_S, security: Security | None = None) -> None:
    """Raises: DemoFailed with the command's own words."""
    try:
        shown = {} if security is None else {"STRATALOG_CERTIFICATE_FOLDER": str(security.operator_path)}
        done = subprocess.run(
            [_STRATALOG, *words],
            env=os.environ | shown,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        raise DemoFailed(f"`stratalog {' '.join(words)}` was not over after {limit_s:g} s") from None
    if done.returncode != 0:
        raise DemoFailed(f"`stratalog {' '.join(words)}` failed: {done.stdout}{done.stderr}")


def add_node(stage: Stage) -> Stage:
    """Returns when it is ready. Raises: DemoFailed."""
    run_stratalog(["cluster", "add", "--data", str(stage.directory / "cluster")])
    return replace(stage, nodes=_nodes(stage.directory, stage.security))


def meta_urls(stage: Stage) -> str:
    parts = _cluster_json(stage.directory)["parts"]
    scheme = "http" if stage.security is None else "https"
    return ",".join(f"{scheme}://{part['addresses']['http']}" for part in parts if part["role"] == "meta")


def is_running(stage: Stage, name: str) -> bool:
    return _pid_of(stage, name) is not None


def start_volume(stage: Stage, name: str, meta: str) -> None:
    """A process that reads the directory of a node that was retired in volume mode. Raises: DemoFailed."""
    data = stage.directory / "cluster"
    command = [_STRATALOG, "node", "start", "--read-only", "--data", str(data / name), "--meta", meta]
    if stage.security is not None:
        settings = {
            "ssl.certificate.folder": stage.security.folder / name,
            "security.inter.broker.protocol": "SSL",
        }
        command += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    said = data / "logs" / f"{name}-read-only.log"
    with said.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0", "--set", "metrics.listen="],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    stage.beside.append(process)
    deadline = time.monotonic() + _READY_S
    while "stratalog ready:" not in said.read_text(encoding="utf-8", errors="replace"):
        if process.poll() is not None or time.monotonic() > deadline:
            words = said.read_text(encoding="utf-8", errors="replace")
            raise DemoFailed(f"the directory of {name} is not read: {words}")
        time.sleep(0.02)


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
