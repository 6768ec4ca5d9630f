"""Real etcd members on loopback: one, or a cluster whose members are killed, stopped and started again.

The binary is the one on PATH, where the tests put that of `make etcd` first. Members run without fsync: they lose
nothing while the machine stays up, and tests kill processes, not machines.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stratalog_cli.cluster.etcd import find_etcd as etcd_binary
from support.certificates import Certificates
from support.cluster_ports import free_port
from support.freezing import freeze
from support.s3_servers import is_listening, stop_process
from support.waiting import eventually_sync

NO_ETCD = "no etcd: run tools/etcd.sh (it needs Go), or put etcd and etcdctl 3.5.21 or later on PATH"


class EtcdServers:
    """The members of one cluster, as processes. Blocking."""

    def __init__(self, folder: Path, members: int, *flags: str, tls: Certificates | None = None) -> None:
        """With `tls` clients reach it by TLS alone, and must show a certificate."""
        self._folder = folder
        self._flags = flags
        self._tls = tls
        self._user: str | None = None
        self._clients = [free_port() for _ in range(members)]
        self._peers = [free_port() for _ in range(members)]
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * members

    @property
    def endpoints(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self._clients]

    @property
    def url(self) -> str:
        return f"etcd://{','.join(self.endpoints)}"

    def start(self, member: int) -> None:
        binary = etcd_binary()
        assert binary is not None, NO_ETCD
        names = [f"m{index}=http://127.0.0.1:{port}" for index, port in enumerate(self._peers)]
        scheme = "http" if self._tls is None else "https"
        client, peer = f"{scheme}://127.0.0.1:{self._clients[member]}", f"http://127.0.0.1:{self._peers[member]}"
        command = [
            str(binary), "--name", f"m{member}", "--data-dir", str(self._folder / f"m{member}"), "--unsafe-no-fsync",
            "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", ",".join(names), "--log-level", "error",
            "--heartbeat-interval", "50", "--election-timeout", "500", *self._flags,
        ]  # fmt: skip
        if self._tls is not None:
            command += ["--cert-file", str(self._tls.server), "--key-file", str(self._tls.server_key)]
            command += ["--trusted-ca-file", str(self._tls.ca), "--client-cert-auth"]
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"m{member}.log").open("ab") as log:
            self._processes[member] = subprocess.Popen(command, stdout=log, stderr=log)

    def start_all(self) -> None:
        for member in range(len(self._processes)):
            self.start(member)
        self.wait_until_well()

    def wait_until_well(self) -> None:
        """Every member that runs answers, and they have a leader."""
        running = [index for index, process in enumerate(self._processes) if process is not None]
        eventually_sync(lambda: all(is_listening(self._clients[index]) for index in running), timeout=30)
        eventually_sync(lambda: self._ask("endpoint", "health", may_fail=True) is not None, timeout=30)

    def leader(self) -> int:
        """The member that leads the others."""
        states = json.loads(self._ask("endpoint", "status", "--write-out", "json") or "[]")
        leading = {
            state["Endpoint"] for state in states if state["Status"]["leader"] == state["Status"]["header"]["member_id"]
        }
        (endpoint,) = leading
        return self.endpoints.index(endpoint)

    def want_users(self, user: str, password: str, prefix: str) -> None:
        """From now on etcd serves only root and `user`, which may use keys that begin with `prefix`."""
        self._ask("user", "add", "root:test-root")
        self._ask("user", "grant-role", "root", "root")
        self._ask("user", "add", f"{user}:{password}")
        self._ask("role", "add", "meta")
        self._ask("role", "grant-permission", "meta", "--prefix=true", "readwrite", prefix)
        self._ask("user", "grant-role", user, "meta")
        self._ask("auth", "enable")
        self._user = "root:test-root"

    def forget_tokens(self) -> None:
        """A change of users makes every token an old one."""
        self._ask("user", "add", "somebody-else:x")

    def give_room(self) -> None:
        """What an operator does after NOSPACE."""
        (state,) = json.loads(self._ask("endpoint", "status", "--write-out", "json") or "[]")
        self._ask("compaction", str(state["Status"]["header"]["revision"]))
        self._ask("defrag")
        self._ask("alarm", "disarm")

    def kill(self, member: int) -> None:
        process = self._processes[member]
        assert process is not None
        process.kill()
        process.wait()
        self._processes[member] = None

    def freeze(self, member: int) -> None:
        process = self._processes[member]
        assert process is not None
        freeze(process.pid)

    def thaw(self, member: int) -> None:
        self._signal(member, signal.SIGCONT)

    def _signal(self, member: int, number: int) -> None:
        process = self._processes[member]
        assert process is not None
        process.send_signal(number)

    def stop(self) -> None:
        for process in self._processes:
            if process is not None:
                process.send_signal(signal.SIGCONT)
                stop_process(process)

    def _ask(self, *words: str, may_fail: bool = False) -> str | None:
        binary = shutil.which("etcdctl")
        assert binary is not None, NO_ETCD
        running = [self.endpoints[index] for index, process in enumerate(self._processes) if process is not None]
        command = [binary, "--endpoints", ",".join(running), "--command-timeout", "5s", *words]
        if self._tls is not None:
            command += ["--cacert", str(self._tls.ca), "--cert", str(self._tls.client)]
            command += ["--key", str(self._tls.client_key)]
        if self._user is not None:
            command += ["--user", self._user]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert may_fail or done.returncode == 0, done.stderr
        return done.stdout if done.returncode == 0 else None


@contextmanager
def etcd_servers(folder: Path, members: int, *flags: str, tls: Certificates | None = None) -> Iterator[EtcdServers]:
    servers = EtcdServers(folder, members, *flags, tls=tls)
    try:
        servers.start_all()
        yield servers
    finally:
        servers.stop()
