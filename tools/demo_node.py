"""The demo's own node: a child process on loopback, with everything it has in one folder."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from pathlib import Path

from demo_stage import DemoFailed, Node, Stage, end_processes, node_settings

USUAL_PORTS = {"kafka": 9092, "admin": 9644}
_READY_S = 30


def free_port(wanted: int | None) -> int:
    with socket.socket() as probe:
        if wanted is not None:
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", wanted))
                return wanted
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_node(directory: Path, segment_bytes: int, *, on_usual_ports: bool) -> Stage:
    """Raises: DemoFailed with the node's own words."""
    kafka, admin = (f"127.0.0.1:{free_port(port if on_usual_ports else None)}" for port in USUAL_PORTS.values())
    command = [str(Path(sys.executable).with_name("stratalog")), "start"]
    command += ["--data", str(directory / "node"), "--bucket", str(directory / "bucket"), "--listen", kafka]
    settings = {"metrics.listen": admin} | node_settings(segment_bytes)
    command += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "node.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )

    deadline = time.monotonic() + _READY_S
    while "stratalog ready:" not in log.read_text(encoding="utf-8", errors="replace"):
        if process.poll() is not None or time.monotonic() > deadline:
            end_processes([process])
            raise DemoFailed(f"the node did not start: {log.read_text(encoding='utf-8', errors='replace')}")
        time.sleep(0.01)
    node = Node("node", kafka, admin, directory / "node", log)
    return Stage(kafka, (node,), directory, f"kill {process.pid}", lambda: end_processes([process]))
