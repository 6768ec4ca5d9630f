"""S3 servers for tests: moto in a thread (semantics), versitygw as a process (durability, a real HTTP server).

versitygw is built by `tools/versitygw.sh`; where it is not there, `versitygw_binary()` is None and its tests skip
with `NO_VERSITYGW` as the reason. Loopback only; every server takes a free port and its own bucket.
"""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from support.cluster_ports import free_port
from support.waiting import eventually_sync

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

ACCESS_KEY = "stratalog-test"
SECRET_KEY = "stratalog-test-secret"
REGION = "us-east-1"

_ROOT = Path(__file__).resolve().parents[2]
_BINARY = _ROOT / ".cache" / "bin" / "versitygw"
NO_VERSITYGW = "versitygw is not built: run tools/versitygw.sh (it needs Go)"


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server. `port` may be a proxy's: see `through`."""

    port: int
    bucket: str

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url(self, prefix: str = "") -> str:
        """For `open_store`."""
        query = urlencode(
            {
                "endpoint": self.endpoint,
                "region": REGION,
                "access_key_id": ACCESS_KEY,
                "secret_access_key": SECRET_KEY,
            }
        )
        return f"s3://{self.bucket}/{prefix}?{query}"

    def through(self, proxy_port: int) -> S3Server:
        """The same bucket behind a proxy."""
        return S3Server(proxy_port, self.bucket)


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def make_bucket(server: S3Server, **options: Any) -> None:
    """Through the API, so that the server writes what it needs beside it."""
    client = control_client(server)
    client.create_bucket(Bucket=server.bucket, **options)
    client.close()


def control_client(server: S3Server) -> S3Client:
    """For what the product does not do: making and setting up buckets."""
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        config=Config(
            s3={"addressing_style": "path"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            proxies={},
        ),
    )


@contextmanager
def moto_server(bucket: str = "stratalog") -> Iterator[S3Server]:
    """moto in a thread of this process. All is lost when it ends."""
    from moto.server import ThreadedMotoServer

    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    try:
        server = S3Server(moto.get_host_and_port()[1], bucket)
        make_bucket(server)
        yield server
    finally:
        moto.stop()


def versitygw_binary() -> Path | None:
    return _BINARY if _BINARY.exists() else None


@contextmanager
def versitygw_server(folder: Path, bucket: str = "stratalog") -> Iterator[S3Server]:
    """versitygw over a folder: what was acknowledged there survives the process. Needs user xattrs there."""
    process, server = start_versitygw(folder, free_port(), bucket)
    try:
        yield server
    finally:
        stop_process(process)


def start_versitygw(folder: Path, port: int, bucket: str = "stratalog") -> tuple[subprocess.Popen[bytes], S3Server]:
    """The process itself, for tests that kill and start it again (same folder, same port).

    With keep-alive, as S3 has it: versitygw would close the connection after each answer otherwise.
    """
    binary = versitygw_binary()
    assert binary is not None, NO_VERSITYGW
    folder.mkdir(parents=True, exist_ok=True)
    is_new = not (folder / bucket).exists()
    command = [
        str(binary), "--access", ACCESS_KEY, "--secret", SECRET_KEY, "--region", REGION,
        "--port", f"127.0.0.1:{port}", "--quiet", "--keep-alive", "posix", str(folder),
    ]  # fmt: skip
    log = (folder.parent / f"{folder.name}.log").open("ab")
    process = subprocess.Popen(command, stdout=log, stderr=log)
    log.close()
    server = S3Server(port, bucket)
    try:
        eventually_sync(lambda: is_listening(port) or process.poll() is not None, timeout=30)
        assert process.poll() is None, f"versitygw ended at once: see {log.name}"
        if is_new:
            make_bucket(server)
    except BaseException:
        stop_process(process)
        raise
    return process, server


def stop_process(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=10)
