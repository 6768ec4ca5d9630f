"""A PostgreSQL server for tests: the real one, of a Debian package, over a Unix socket and over TLS on the loopback.

Installed by `tools/postgres.sh`; where it is not there, `postgres_folder()` is None and its tests skip with
NO_POSTGRES. The server refuses to run as root, so that a test process of root starts it as the user `postgres`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.certificates import Certificates
from support.cluster_ports import free_port

NO_POSTGRES = "PostgreSQL's server is not installed: run tools/postgres.sh"
USER = "postgres"
PASSWORD = "sink's password"


def postgres_folder() -> Path | None:
    """Where its programs are: Debian keeps them off PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda one: int(one.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """A running server. `ca_file` holds who signed the certificate that it shows as 127.0.0.1."""

    folder: Path
    port: int
    ca_file: Path

    def url(self, database: str = "postgres") -> str:
        """Through the socket, where every user is let in without a password."""
        return f"postgresql://{USER}@/{database}?host={self.folder}&port={self.port}"

    def tls_url(self, database: str = "postgres", more: str = "") -> str:
        """Through TCP: by TLS, and with the password."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}{more}"

    def query(self, statement: str, database: str = "postgres", *values: Any) -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement, values or None)
            return [] if cursor.description is None else cursor.fetchall()


@contextmanager
def postgres_server(certificates: Certificates) -> Iterator[PostgresServer]:
    """Its data are lost in a power cut, which no test of it causes. Its folder is short: a socket's path has 107
    bytes."""
    programs = postgres_folder()
    assert programs is not None, NO_POSTGRES
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    port = free_port()
    as_user = []
    if os.geteuid() == 0:
        as_user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    (folder / "password").write_text(PASSWORD)
    for source, name in ((certificates.server, "server.crt"), (certificates.server_key, "server.key")):
        shutil.copy(source, folder / name)
        (folder / name).chmod(0o600)
    (folder / "access").write_text("local all all trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n")
    folder.chmod(0o755)
    if as_user:
        for path in (folder, *folder.iterdir()):
            shutil.chown(path, USER, USER)
    options = {
        "unix_socket_directories": folder,
        "listen_addresses": "127.0.0.1",
        "port": port,
        "hba_file": folder / "access",
        "ssl": "on",
        "ssl_cert_file": folder / "server.crt",
        "ssl_key_file": folder / "server.key",
        "fsync": "off",
        "shared_buffers": "16MB",
        "dynamic_shared_memory_type": "mmap",
    }
    words = " ".join(f"-c {name}={value}" for name, value in options.items())
    data = folder / "data"
    control = [*as_user, str(programs / "pg_ctl"), "-D", str(data), "-w", "-t", "60"]
    made = [*as_user, str(programs / "initdb"), "-D", str(data), "-U", USER, "-N", "-E", "UTF8", "--locale=C"]
    try:
        subprocess.run([*made, f"--pwfile={folder}/password"], check=True, capture_output=True, cwd="/")
        start = [*control, "-l", str(folder / "log"), "-o", words, "start"]
        subprocess.run(start, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")
        try:
            yield PostgresServer(folder, port, certificates.ca)
        finally:
            stop = [*control, "-m", "immediate", "stop"]
            subprocess.run(stop, check=True, stdout=subprocess.DEVNULL, cwd="/")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
