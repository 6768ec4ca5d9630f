"""A real instance of the meta service as a child process: started, killed, paused, stopped, started again in its place.

Blocking. Everything it prints goes to one file over all its lives. Every one still alive at interpreter exit is killed.
"""

from __future__ import annotations

import atexit
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import weakref
from pathlib import Path

from support.cluster_ports import free_port
from support.freezing import freeze
from support.waiting import eventually_sync

READY = re.compile(r"^stratalog ready: meta (?P<url>\S+), admin (?P<admin>\S+), store .*$", re.MULTILINE)
_AS_INSTALLED = str(Path(__file__).with_name("as_installed"))
_alive: weakref.WeakSet[MetaProcess] = weakref.WeakSet()


class MetaFailed(AssertionError):
    """It did not start, or ended otherwise than it should: the end of its log."""


class MetaProcess:
    def __init__(
        self, folder: Path, name: str, *place: str, settings: tuple[str, ...] = (), scheme: str = "http"
    ) -> None:
        """`place` is `--data DIR` or `--store URL`; `scheme` is that of its HTTP ports, by its settings."""
        self.address = f"127.0.0.1:{free_port()}"
        self.url = f"{scheme}://{self.address}"
        self.admin = ""
        self.log_path = folder / f"{name}.log"
        self._place = place
        self._settings = ("metrics.listen=127.0.0.1:0", *settings)
        self._process: subprocess.Popen[bytes] | None = None
        _alive.add(self)

    def start(self) -> MetaProcess:
        command = [str(Path(sys.executable).with_name("stratalog")), "meta", "start", "--listen", self.address]
        command += self._place
        for setting in self._settings:
            command += ["--set", setting]
        begin = len(self.log())
        with self.log_path.open("ab") as output:
            process = self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONPATH": _AS_INSTALLED},
                start_new_session=True,
            )
        eventually_sync(lambda: READY.search(self.log()[begin:]) or process.poll() is not None, timeout=60)
        ready = READY.search(self.log()[begin:])
        if ready is None:
            raise MetaFailed(f"ended with {process.returncode} before it was ready\n{self.log()[begin:]}")
        assert ready["url"] == self.url
        self.admin = ready["admin"]
        return self

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._wait()

    def pause(self) -> None:
        assert self._process is not None
        freeze(self._process.pid)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """Raises MetaFailed when it does not end with code 0."""
        self._signal(signal.SIGTERM)
        if self._wait() != 0:
            raise MetaFailed(f"ended with {self._wait()} after SIGTERM\n{self.log()[-4_000:]}")

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "it was never started"
        self._process.send_signal(number)

    def _wait(self) -> int:
        assert self._process is not None
        return self._process.wait(60)

    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def get(self, path: str) -> str:
        """The body of a GET on its admin address, of a refusal too."""
        try:
            with urllib.request.urlopen(f"http://{self.admin}{path}", timeout=10) as response:
                return bytes(response.read()).decode()
        except urllib.error.HTTPError as refused:
            return refused.read().decode()

    def metric(self, name: str) -> float:
        (line,) = [line for line in self.get("/metrics").splitlines() if line.startswith(name)]
        return float(line.rpartition(" ")[2])


@atexit.register
def _kill_what_is_left() -> None:
    for one in list(_alive):
        if one.is_running:
            one.kill()
