"""A real node as a child process: started, killed with SIGKILL, stopped and started again on the same address and data.

    with NodeProcess(tmp_path / "data", bucket=str(tmp_path / "bucket"), settings={"num.partitions": 3}) as node:
        Producer({"bootstrap.servers": node.bootstrap})

The Kafka port is kept over restarts, so that clients find the node again. It is taken from below the kernel's range of
ephemeral ports: a client that keeps connecting to a dead ephemeral port on loopback in the end connects to itself and
holds the port. Everything the node prints goes to one file beside its data, over all its lives; `add_logs_to_report`
shows its end when a test fails. Every node still alive at interpreter exit is killed. Methods block; from a coroutine
use `asyncio.to_thread` where it matters.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import pytest

from support.cluster_ports import free_port
from support.freezing import freeze
from support.waiting import eventually_sync

READY = re.compile(r"^stratalog ready: kafka (?P<kafka>\S+), admin (?P<admin>\S+),.*$", re.MULTILINE)

_AS_INSTALLED = str(Path(__file__).with_name("as_installed"))
_SHOWN_LINES = 25
_SHOWN_COLUMNS = 300
_START_ATTEMPTS = 5

_alive: weakref.WeakSet[NodeProcess] = weakref.WeakSet()
_in_memory: set[Path] = set()
"""What nodes of this process's tests keep outside their folders."""


class NodeFailed(AssertionError):
    """A node did not start, or ended with another code than it should: says which, with the end of its log."""


class NodeProcess:
    """One node and its data folder. Not thread-safe, `kill` excepted."""

    def __init__(
        self,
        data_dir: Path,
        bucket: str | None = None,
        settings: Mapping[str, Any] | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] = (),
        verb: tuple[str, ...] = ("start",),
    ) -> None:
        """`verb` is `node start` for a node of a cluster; `--meta` is among the arguments then."""
        self.data_dir = data_dir
        self.bucket = bucket
        self.settings: dict[str, Any] = {"metrics.listen": "127.0.0.1:0"} | dict(settings or {})
        self.bootstrap = ""
        """HOST:PORT of the Kafka listener; the same over restarts."""
        self.admin = ""
        """HOST:PORT of the admin and metrics HTTP; may change over restarts, empty when it is off."""
        self.log_path = data_dir.with_name(data_dir.name + ".log")
        self.lives = 0
        self.log_mark = 0
        """Where the test that runs now found the log."""
        self._environment = dict(environment or {})
        self._arguments = arguments
        self._verb = verb
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        _alive.add(self)

    # Life -----------------------------------------------------------------------------------------------------------
    def start(self, timeout: float = 60.0) -> Self:
        """Start it and return when it is ready. Raises: NodeFailed with the end of its log."""
        first = not self.bootstrap
        for attempt in itertools.count(1):
            address = self.bootstrap or f"127.0.0.1:{free_port()}"
            try:
                return self._start(address, timeout)
            except NodeFailed as failure:
                if not first or attempt == _START_ATTEMPTS or "cannot listen" not in str(failure):
                    raise
        raise AssertionError("unreachable")

    def _start(self, address: str, timeout: float) -> Self:
        assert not self.is_running, f"the node on {self.bootstrap} runs already (pid {self.pid})"
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        begin = self.log_path.stat().st_size if self.log_path.exists() else 0
        with self.log_path.open("ab") as output:
            process = self._process = subprocess.Popen(
                self.command(address),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONPATH": _AS_INSTALLED} | self._environment,
                start_new_session=True,
            )
        self.lives += 1
        ready: re.Match[str] | None = None

        def is_decided() -> bool:
            nonlocal ready
            ready = READY.search(self._log_from(begin))
            return ready is not None or process.poll() is not None

        try:
            eventually_sync(is_decided, timeout)
        except AssertionError:
            self.kill()
            raise NodeFailed(f"not ready within {timeout} s\n{self.log_tail()}") from None
        if ready is None:
            raise NodeFailed(f"ended with code {process.returncode} before it was ready\n{self.log_tail()}")
        self.bootstrap = ready["kafka"]
        self.admin = "" if ready["admin"] == "off" else ready["admin"]
        _in_memory.add(self.memory_file)
        return self

    def command(self, address: str) -> list[str]:
        """What is run: the installed command, in this interpreter's environment."""
        command = [str(Path(sys.executable).with_name("stratalog")), *self._verb]
        command += ["--data", str(self.data_dir), "--listen", address]
        if self.bucket is not None:
            command += ["--bucket", self.bucket]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={_as_setting(value)}"]
        return [*command, *self._arguments]

    def kill(self) -> None:
        """SIGKILL: the node flushes nothing and signs off nowhere. May be called from another thread while clients
        work."""
        with self._lock:
            if self.is_running:
                assert self._process is not None
                self._process.kill()
                self._process.wait(10)

    def stop(self, timeout: float = 60.0) -> None:
        """SIGTERM, then wait. Raises: NodeFailed when it does not end in time or not with code 0."""
        if not self.is_running:
            return
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise NodeFailed(f"still running {timeout} s after SIGTERM\n{self.log_tail()}") from None
        if code != 0:
            raise NodeFailed(f"ended with code {code} after SIGTERM\n{self.log_tail()}")

    def restart(self, timeout: float = 60.0) -> Self:
        """Stop in order, and start again on the same data and address."""
        self.stop()
        return self.start(timeout)

    @property
    def memory_file(self) -> Path:
        """Where the node keeps the ends of its segments (`disk/ends_in_memory.py`): it goes when the machine starts
        again."""
        identity = json.loads((self.data_dir / "node" / "node.json").read_text())
        return Path("/dev/shm") / f"stratalog-{identity['storage_id']}"

    def kill_and_restart(self, timeout: float = 60.0) -> Self:
        self.kill()
        return self.start(timeout)

    def pause(self) -> None:
        """SIGSTOP: alive for the kernel, dead for everybody else."""
        assert self.is_running, "the node does not run"
        freeze(self.pid)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None and self.is_running, "the node does not run"
        self._process.send_signal(number)

    def __enter__(self) -> Self:
        return self.start() if not self.is_running else self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.stop()
        else:
            self.kill()

    # What it is -----------------------------------------------------------------------------------------------------
    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the node was never started"
        return self._process.pid

    @property
    def host_and_port(self) -> tuple[str, int]:
        host, _, port = self.bootstrap.rpartition(":")
        return host, int(port)

    def rss_bytes(self) -> int:
        return self._status_kib("VmRSS") << 10

    def peak_rss_bytes(self) -> int:
        return self._status_kib("VmHWM") << 10

    def _status_kib(self, key: str) -> int:
        text = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii", errors="replace")
        match = re.search(rf"^{key}:\s+(\d+) kB", text, re.MULTILINE)
        return int(match.group(1)) if match else 0

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    # What it says ---------------------------------------------------------------------------------------------------
    def log_text(self) -> str:
        """Everything it printed, over all its lives."""
        return self._log_from(0)

    def log_tail(self, lines: int = _SHOWN_LINES, begin: int = 0) -> str:
        return "\n".join(line[:_SHOWN_COLUMNS] for line in self._log_from(begin).splitlines()[-lines:])

    def _log_from(self, position: int) -> str:
        with contextlib.suppress(FileNotFoundError), self.log_path.open("rb") as log:
            log.seek(position)
            return log.read().decode(errors="replace")
        return ""

    def get(self, path: str, timeout: float = 10.0) -> str:
        """The body of a GET on the admin address."""
        assert self.admin, "the admin address is off"
        with urllib.request.urlopen(f"http://{self.admin}{path}", timeout=timeout) as response:
            return bytes(response.read()).decode()

    def metrics(self) -> dict[str, float]:
        """Name, with its labels as exported, to value."""
        values = {}
        for line in self.get("/metrics").splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                values[name] = float(value)
        return values


def add_logs_to_report(report: pytest.TestReport) -> None:
    """For `pytest_runtest_makereport`: what nodes said during a test that failed, its end if it is long."""
    for node in sorted(_alive, key=lambda node: str(node.data_dir)):
        if report.failed and (said := node.log_tail(begin=node.log_mark)):
            state = f"pid {node.pid}" if node.is_running else "not running"
            report.sections.append((f"node {node.bootstrap} ({state}), {node.log_path}", said))
        if report.when == "setup":
            node.log_mark = node.log_path.stat().st_size if node.log_path.exists() else 0


def _as_setting(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@atexit.register
def _kill_what_is_left() -> None:
    for node in list(_alive):
        node.kill()
    for path in _in_memory:
        path.unlink(missing_ok=True)
