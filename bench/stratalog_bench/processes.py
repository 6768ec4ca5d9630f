"""Servers as child processes: started, awaited, measured and ended by the id that started them.

Linux only: CPU time and memory come from /proc.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path


class StartFailed(Exception):
    """A server did not become ready: what it was, and the end of its log."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(slots=True)
class Server:
    """A running server. `ready_s` is from the call that started it until its line that says it is ready."""

    name: str
    process: subprocess.Popen[bytes]
    address: str
    log: Path
    ready_s: float = 0.0
    began_s: float = 0.0
    directory: Path = field(default_factory=Path)

    @property
    def pid(self) -> int:
        return self.process.pid

    def rss_mib(self) -> float:
        return status_mib(self.pid, "VmRSS")

    def peak_rss_mib(self) -> float:
        return status_mib(self.pid, "VmHWM")

    def reset_peak(self) -> None:
        """The kernel's high-water mark of resident memory starts again from now (5 is its code for that)."""
        with contextlib.suppress(OSError):
            Path(f"/proc/{self.pid}/clear_refs").write_text("5", encoding="ascii")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def stop(self, patience_s: float = 30) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(patience_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)


def status_mib(pid: int, key: str) -> float:
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    match = re.search(rf"^{key}:\s+(\d+) kB", text, re.MULTILINE)
    return int(match.group(1)) / 1024 if match else 0.0


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start(
    name: str,
    command: Sequence[str],
    *,
    address: str,
    log: Path,
    ready: str,
    patience_s: float = 90,
    cwd: Path | None = None,
) -> Server:
    """Starts a server and returns once a line of its output contains `ready`.

    Raises: StartFailed, with the last lines of its log.
    """
    server = begin(name, command, address=address, log=log, cwd=cwd)
    try:
        await_line(server, ready, patience_s)
    except BaseException:  # no caller has it yet to end it
        server.stop()
        raise
    return server


def begin(name: str, command: Sequence[str], *, address: str, log: Path, cwd: Path | None = None) -> Server:
    """Starts a server and waits for nothing."""
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            start_new_session=True,
        )
    return Server(name, process, address, log, began_s=began)


def await_line(server: Server, ready: str, patience_s: float = 90) -> None:
    """Until its output contains `ready`. Raises: StartFailed."""
    wanted = ready.encode()
    while wanted not in server.log.read_bytes():
        if server.process.poll() is not None or time.monotonic() - server.began_s > patience_s:
            server.stop(patience_s=1)
            tail = server.log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
            raise StartFailed(f"{server.name} was not ready within {patience_s:.0f} s: " + "\n".join(tail))
        time.sleep(0.005)
    server.ready_s = time.monotonic() - server.began_s
