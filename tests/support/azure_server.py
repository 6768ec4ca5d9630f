"""Azurite, Microsoft's own emulator of Azure Blob Storage, as a process, for the store tests.

`tools/azurite.sh` installs it; where it is not there, `azurite_program()` is None and its tests skip with `NO_AZURITE`
as the reason. Loopback only, a free port, all in memory. The account and its key are the ones that the emulator's pages
publish: no secrets.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from email.utils import formatdate
from pathlib import Path
from urllib.parse import quote

from support.cluster_ports import free_port
from support.s3_servers import is_listening, stop_process
from support.waiting import eventually_sync

ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

_PROGRAM = Path(__file__).resolve().parents[2] / ".cache" / "azurite/node_modules/azurite/dist/src/blob/main.js"
_API_VERSION = "2021-08-06"
NO_AZURITE = "azurite is not installed: run tools/azurite.sh (it needs Node.js)"


@dataclass(frozen=True, slots=True)
class AzureServer:
    """A running server, or another one's port: see `tests/support/scripted_server.py`."""

    port: int
    bucket: str

    account_key: str = ACCOUNT_KEY

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/{ACCOUNT}"

    def url(self, prefix: str = "", *, key: str = "") -> str:
        """For `open_store`."""
        key = quote(key or self.account_key, safe="")
        query = f"endpoint={self.endpoint}&account_name={ACCOUNT}&account_key={key}"
        return f"az://{self.bucket}/{prefix}?{query}"

    def through(self, proxy_port: int) -> AzureServer:
        """The same bucket behind a proxy."""
        return replace(self, port=proxy_port)


def azurite_program() -> Path | None:
    return _PROGRAM if _PROGRAM.exists() and shutil.which("node") else None


@contextmanager
def azurite_server(log: Path, container: str = "stratalog") -> Iterator[AzureServer]:
    port = free_port()
    command = [
        "node", str(_PROGRAM), "--blobPort", str(port), "--inMemoryPersistence", "--disableTelemetry", "--silent",
        "--skipApiVersionCheck",
    ]  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=log.parent)
    try:
        eventually_sync(lambda: is_listening(port) or process.poll() is not None, timeout=60)
        assert process.poll() is None, f"azurite ended at once: see {log}"
        server = AzureServer(port, container)
        _make_container(server)
        yield server
    finally:
        stop_process(process)


def _make_container(server: AzureServer) -> None:
    _send(server, "PUT", "", "restype=container")


def lease(server: AzureServer, key: str) -> None:
    """From now on only the holder of the lease may delete the blob."""
    asked = {"x-ms-lease-action": "acquire", "x-ms-lease-duration": "-1"}
    _send(server, "PUT", f"/{key}", "comp=lease", asked)


def access_tier(server: AzureServer, key: str) -> str:
    return _send(server, "HEAD", f"/{key}")["x-ms-access-tier"]


def _send(
    server: AzureServer, method: str, path: str, query: str = "", more: Mapping[str, str] | None = None
) -> Mapping[str, str]:
    """The headers of the answer to a request that the product never makes, signed as Azure's page "Authorize with
    Shared Key" says."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _API_VERSION, **(more or {})}
    lines = [f"{name}:{headers[name]}" for name in sorted(headers)]
    options = [query.replace("=", ":")] if query else []
    resource = f"/{ACCOUNT}/{ACCOUNT}/{server.bucket}{path}"
    signed = "\n".join([method, *[""] * 11, *lines, resource, *options])
    signature = hmac.new(base64.b64decode(ACCOUNT_KEY), signed.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(signature).decode()}"
    url = f"{server.endpoint}/{server.bucket}{path}?{query}"
    request = urllib.request.Request(url, method=method, headers={**headers, "Content-Length": "0"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return dict(answer.headers)
