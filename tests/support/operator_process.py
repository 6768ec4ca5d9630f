"""An operator as a process of its own, to be killed and frozen: `python -m support.operator_process SETTINGS`.

It is assembled like the product's operator, except for the connection to the meta service. It notes each write to
Kubernetes in a file before it sends it, with the machine's monotonic time. A test can make it die as by SIGKILL after a
number of writes, before it reads the answer or before it sends the request.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stratalog_operator.kube.client import Kubernetes
from stratalog_operator.lease import LeaseTimes
from stratalog_operator.metas import HttpMetaConnections
from stratalog_operator.process import Operator, OperatorSettings

if TYPE_CHECKING:
    from support.operator_place import Place  # its imports would count as memory of the operator

ADMIN = re.compile(r"health and metrics are served.*address=(\S+)")
BUCKET = re.compile(r'^stratalog_operator_reconcile_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)
_alive: weakref.WeakSet[OperatorProcess] = weakref.WeakSet()


class OperatorProcess:
    """Blocking but for `ended`."""

    def __init__(self, place: Place, folder: Path, identity: str, times: LeaseTimes) -> None:
        found = place.configuration()
        self.identity = identity
        self.log_path, self._writes_path = folder / f"{identity}.log", folder / f"{identity}.writes"
        self._settings: dict[str, Any] = {
            "url": found.host,
            "ca": found.ssl_ca_cert,
            "token": found.api_key["BearerToken"],
            "meta": place.meta_url,
            "namespace": place.namespace,
            "identity": identity,
            "times": [times.duration_s, times.renew_within_s, times.retry_s],
            "writes": str(self._writes_path),
        }
        self._process: subprocess.Popen[bytes] | None = None
        _alive.add(self)

    def start(self, *, dies_after: int | None = None, is_answer_lost: bool = False) -> OperatorProcess:
        settings = {**self._settings, "dies_after": dies_after, "is_answer_lost": is_answer_lost}
        tests = str(Path(__file__).resolve().parents[1])
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "support.operator_process", json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"PYTHONPATH": tests},
                start_new_session=True,
            )
        return self

    @property
    def code(self) -> int | None:
        """None while it runs."""
        assert self._process is not None, "it was never started"
        return self._process.poll()

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was never started"
        return self._process.pid

    def passes(self) -> tuple[int, list[tuple[str, int]]]:
        """The number of passes, and how many of them took at most how many seconds, from its metrics."""
        address = ADMIN.findall(self.log())[-1]
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as response:
            page = bytes(response.read()).decode()
        bounds = [(le, int(float(number))) for le, number in BUCKET.findall(page)]
        return bounds[-1][1], bounds

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(60)

    def writes(self) -> list[tuple[float, str]]:
        """When, and what."""
        text = self._writes_path.read_text() if self._writes_path.exists() else ""
        lines = [line.split(" ", 1) for line in text.splitlines()]
        return [(float(at), what) for at, what in lines]

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")


@atexit.register
def _kill_what_is_left() -> None:
    for one in list(_alive):
        if one._process is not None and one.code is None:
            one.send(signal.SIGKILL)


class _Noting(Kubernetes):
    """Notes each write, and dies at the chosen one."""

    path = ""
    dies_after: int | None = None
    is_answer_lost = False
    _count = 0

    async def ask(self, method: str, path: str, *rest: Any, **more: Any) -> dict[str, Any]:
        is_write = method != "GET" and more.get("is_fenced", True)
        if not is_write:
            return await super().ask(method, path, *rest, **more)
        self.may_write()
        with open(self.path, "a") as noted:  # it must be there when the process dies
            noted.write(f"{time.monotonic()} {method} {path}\n")
        _Noting._count += 1
        is_last = self.dies_after is not None and _Noting._count >= self.dies_after
        if is_last and not self.is_answer_lost:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = await super().ask(method, path, *rest, **more)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer


async def _main(given: dict[str, Any]) -> int:
    from kubernetes.aio.client import Configuration

    from stratalog_operator.kube import connect

    _Noting.path, _Noting.dies_after = given["writes"], given["dies_after"]
    _Noting.is_answer_lost = given["is_answer_lost"]
    connect.Kubernetes = _Noting  # type: ignore[attr-defined]  # its own import of it
    configuration = Configuration(host=given["url"], ssl_ca_cert=given["ca"])
    configuration.api_key = {"BearerToken": given["token"]}
    namespace = given["namespace"]
    settings = OperatorSettings(
        given["identity"], (namespace,), namespace, lease_times=LeaseTimes(*given["times"]), admin_listen="127.0.0.1:0"
    )
    stopping = asyncio.Event()

    def take_signals() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)

    take_signals()
    operator = Operator(settings, configuration, HttpMetaConnections(lambda _: given["meta"]), take_signals)
    if not await operator.run(stopping):
        os._exit(1)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(_main(json.loads(sys.argv[1]))))
