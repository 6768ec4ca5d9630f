"""Processes where pods put them: names that resolve late and move, a read-only root, a user without rights, and a stop
that comes at any time and is given a while."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from stratalog.meta_api.attempts import RetryPolicy
from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.commands.table_commands import RegisterNode
from stratalog.model.errors import OutcomeUnknown, Unavailable
from stratalog.model.metadata import NodeInfo
from support.cluster_ports import free_port
from support.etcd_server import NO_ETCD, EtcdServers, etcd_binary, etcd_servers
from support.meta_process import MetaProcess
from support.node_process import NodeProcess
from support.pod_machine import NO_NAMESPACES, Names, as_pod, can_unshare, mounted_volume
from support.waiting import eventually_sync

in_a_pod = pytest.mark.skipif(not can_unshare(), reason=NO_NAMESPACES)
LEASE = "node.lease.ms=1000"
ALLOWED = "http.allowed.hosts=.pods.test"


class NamedNode(NodeProcess):
    """It knows the names, and tells its own to other nodes; clients, which know none, come in by a second listener."""

    def __init__(self, names: Names, folder: Path, node_id: int, meta: str, listen: str = "127.0.0.1") -> None:
        port = free_port()
        listeners = {"advertised.listeners": f"node-{node_id}.pods.test:{port}", "listeners": "outside://127.0.0.1:0"}
        arguments = ("--meta", meta, "--id", str(node_id))
        super().__init__(folder / f"node-{node_id}", settings=listeners, verb=("node", "start"), arguments=arguments)
        self.bootstrap = f"{listen}:{port}"
        self._names = names

    @property
    def outside(self) -> str:
        return re.findall(r"^stratalog ready: .*, outside (\S+)$", self.log_path.read_text(), re.MULTILINE)[-1]

    def command(self, address: str) -> list[str]:
        return self._names.around(super().command(address))


class Starting:
    """A process that is not waited for."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    def says(self, words: str) -> bool:
        return words in self.log.read_text(errors="replace")

    def until(self, words: str) -> None:
        eventually_sync(lambda: self.says(words) or self.process.poll() is not None, 60)
        assert self.says(words), f"ended with {self.process.poll()}: {self.log.read_text(errors='replace')}"

    def stop(self, limit_s: float) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(limit_s)
        finally:
            self.end()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)


@pytest.fixture
def names(tmp_path: Path) -> Names:
    return Names(tmp_path)


@pytest.fixture
def held() -> Iterator[ExitStack]:
    with ExitStack() as held:
        yield held


def meta_at(folder: Path, held: ExitStack, host: str = "127.0.0.1", port: int = 0) -> MetaProcess:
    made = MetaProcess(folder, "meta", "--data", str(folder / "meta"), settings=(LEASE, ALLOWED))
    made.address = f"{host}:{port or free_port()}"
    made.url = f"http://{made.address}"
    held.callback(lambda: made.kill() if made.is_running else None)
    return made.start()


def stratalog(*words: str) -> list[str]:
    return [str(Path(sys.executable).with_name("stratalog")), *words]


def produce(bootstrap: str, count: int) -> None:
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "message.timeout.ms": 120_000})
    for number in range(count):
        value = f"{number}".encode() * 40
        producer.produce("flights", value, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(120) == 0 and failed == []


# Names ----------------------------------------------------------------------------------------------------------------
@pytest.mark.fault("node-starts-meta-service")
@in_a_pod
def test_a_node_waits_for_a_meta_service_whose_name_is_not_known_yet(
    tmp_path: Path, names: Names, held: ExitStack
) -> None:
    port = free_port()
    listen = f"127.0.0.1:{free_port()}"
    command = stratalog("node", "start", "--meta", f"http://meta-0.pods.test:{port}", "--id", "1")
    command += ["--data", str(tmp_path / "node"), "--listen", listen, "--set", "metrics.listen="]
    node = Starting(names.around(command), tmp_path / "node.log")
    held.callback(node.end)
    node.until("waiting for the meta service")
    meta_at(tmp_path, held, port=port)
    names.set(**{"meta-0": "127.0.0.1"})
    node.until("stratalog ready: kafka")
    assert node.stop(60) == 0


@pytest.mark.fault("pod-address-name-peer")
@in_a_pod
def test_nodes_and_the_meta_service_are_found_again_where_their_names_have_moved(
    tmp_path: Path, names: Names, held: ExitStack
) -> None:
    names.set(**{"meta-0": "127.0.0.1", "node-1": "127.0.0.1", "node-2": "127.0.0.1"})
    meta = meta_at(tmp_path, held)
    port = int(meta.address.rpartition(":")[2])
    url = f"http://meta-0.pods.test:{port}"
    nodes = [NamedNode(names, tmp_path, number, url) for number in (1, 2)]
    for node in nodes:
        held.callback(node.kill)
        node.start()
    admin = AdminClient({"bootstrap.servers": nodes[0].outside})
    made = admin.create_topics([NewTopic("flights", 1, 2, config={"min.insync.replicas": "2"})])
    made["flights"].result(60)

    # The one that does not lead is another pod from now on.
    leader = admin.list_topics("flights", timeout=30).topics["flights"].partitions[0].leader
    follower = nodes[2 - leader]
    follower.stop()
    names.set(**{f"node-{3 - leader}": "127.0.0.3"})
    follower.bootstrap = f"127.0.0.3:{follower.bootstrap.rpartition(':')[2]}"
    follower.start()

    # So is the meta service.
    meta.stop()
    names.set(**{"meta-0": "127.0.0.4"})
    meta_at(tmp_path, held, "127.0.0.4", port)

    def can_make(number: int) -> bool:
        """Only with the meta service's help."""
        return admin.create_topics([NewTopic(f"more-{number}", 1, 2)])[f"more-{number}"].exception(30) is None

    tries = iter(range(1_000))
    eventually_sync(lambda: can_make(next(tries)), 120)
    # `min.insync.replicas` is 2: what is acknowledged has come to the follower.
    produce(nodes[leader - 1].outside, 100)


@pytest.mark.fault("node-starts-meta-service", "pod-address-name-peer")
@in_a_pod
@pytest.mark.skipif(etcd_binary() is None, reason=NO_ETCD)
def test_a_meta_service_waits_for_the_name_of_etcd_and_follows_it_where_it_moves(
    tmp_path: Path, names: Names, held: ExitStack
) -> None:
    etcd = held.enter_context(etcd_servers(tmp_path / "etcd", 1))
    port = etcd.endpoints[0].rpartition(":")[2]
    listen = f"127.0.0.1:{free_port()}"
    command = stratalog("meta", "start", "--listen", listen, "--store", f"etcd://etcd-0.pods.test:{port}")
    meta = Starting(names.around([*command, "--set", "metrics.listen="]), tmp_path / "meta.log")
    held.callback(meta.end)
    meta.until("stratalog ready: meta")
    assert (status(f"http://{listen}/healthz"), status(f"http://{listen}/readyz")) == (200, 503)
    names.set(**{"etcd-0": "127.0.0.1"})
    eventually_sync(lambda: status(f"http://{listen}/readyz") == 200, 120)
    move(etcd, tmp_path, port, held)
    names.set(**{"etcd-0": "127.0.0.5"})
    eventually_sync(lambda: asyncio.run(is_written(f"http://{listen}")), 120)
    assert meta.process.poll() is None
    assert meta.stop(30) == 0


def move(etcd: EtcdServers, folder: Path, port: str, held: ExitStack) -> None:
    """Its member ends, and one with its data begins at another address."""
    etcd.kill(0)
    urls = ["--listen-client-urls", f"http://127.0.0.5:{port}", "--advertise-client-urls", f"http://127.0.0.5:{port}"]
    peer = free_port()
    urls += ["--listen-peer-urls", f"http://127.0.0.1:{peer}"]
    with (folder / "moved.log").open("ab") as log:
        moved = subprocess.Popen(
            [str(etcd_binary()), "--name", "m0", "--data-dir", str(folder / "etcd" / "m0"), *urls],
            stdout=log,
            stderr=log,
        )
    held.callback(moved.wait)
    held.callback(moved.kill)


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


async def is_written(url: str) -> bool:
    """A change, which is one only once etcd has it."""
    client = HttpMetaClient(url, RetryPolicy(attempts=1))
    try:
        await client.perform(RegisterNode(NodeInfo(1, "disk", "host", 9092)))
    except (Unavailable, OutcomeUnknown):
        return False
    finally:
        await client.close()
    return True


# The file system and the user -----------------------------------------------------------------------------------------
@pytest.mark.fault("read-root-home-tmp")
@in_a_pod
def test_a_node_and_a_meta_service_need_nothing_to_write_but_their_volume(held: ExitStack) -> None:
    # Not below the test's own folder, into which only its owner may look.
    tmp_path = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="stratalog-pod-")))
    tmp_path.chmod(0o755)
    volumes = [mounted_volume(tmp_path / name) for name in ("of-meta", "of-node")]
    address, listen = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    command = stratalog("meta", "start", "--listen", address, "--data", str(volumes[0]), "--set", "metrics.listen=")
    meta = Starting(as_pod(command, volumes[0]), tmp_path / "meta.log")
    held.callback(meta.end)
    meta.until("stratalog ready: meta")
    command = stratalog("node", "start", "--meta", f"http://{address}", "--id", "1", "--data", str(volumes[1]))
    command += ["--listen", listen, "--set", "metrics.listen=", "--set", "log.segment.bytes=100000"]
    for _ in range(2):
        node = Starting(as_pod([*command, "--bucket", str(volumes[1] / "bucket")], volumes[1]), tmp_path / "node.log")
        held.callback(node.end)
        node.until("stratalog ready: kafka")
        produce(listen, 2_000)
        assert node.stop(60) == 0
        assert "Traceback" not in node.log.read_text()
        node.log.unlink()
    owners = {(found.stat().st_uid, found.stat().st_gid) for found in volumes[1].rglob("*")}
    assert owners == {(10_001, 10_001)}
    assert meta.stop(30) == 0 and "Traceback" not in meta.log.read_text()


# The stop -------------------------------------------------------------------------------------------------------------
@pytest.mark.fault("node-starts-meta-service")
def test_a_node_that_waits_for_the_meta_service_stops_on_a_signal(tmp_path: Path, held: ExitStack) -> None:
    command = stratalog("node", "start", "--meta", f"http://127.0.0.1:{free_port()}", "--id", "1")
    command += ["--data", str(tmp_path / "node"), "--listen", "127.0.0.1:0", "--set", "metrics.listen="]
    node = Starting(command, tmp_path / "node.log")
    held.callback(node.end)
    node.until("waiting for the meta service")
    assert node.stop(60) == 0
    assert node.says("stopped before it was ready") and not node.says("Traceback")


@pytest.mark.fault("sigterm-meta-service-etcd")
def test_a_node_stops_in_order_while_the_meta_service_hangs(tmp_path: Path, held: ExitStack) -> None:
    """Within the time that a pod is given, and so that its next start scans nothing."""
    meta = meta_at(tmp_path, held)
    node = NodeProcess(
        tmp_path / "node-1",
        bucket=str(tmp_path / "bucket"),
        verb=("node", "start"),
        arguments=("--meta", meta.url, "--id", "1"),
    )
    held.callback(node.kill)
    node.start()
    produce(node.bootstrap, 1_000)
    meta.pause()
    try:
        node.stop(110)
    finally:
        meta.resume()
    assert (tmp_path / "node-1" / "node" / "clean.json").exists()


@pytest.mark.fault("sigterm-meta-service-etcd")
@pytest.mark.skipif(etcd_binary() is None, reason=NO_ETCD)
def test_a_meta_service_stops_within_its_time_while_etcd_hangs(tmp_path: Path, held: ExitStack) -> None:
    etcd = held.enter_context(etcd_servers(tmp_path / "etcd", 1))
    meta = MetaProcess(tmp_path, "meta", "--store", etcd.url, settings=(LEASE,))
    held.callback(lambda: meta.kill() if meta.is_running else None)
    meta.start()
    eventually_sync(lambda: status(f"{meta.url}/readyz") == 200, 60)
    etcd.freeze(0)
    try:
        meta.stop()
    finally:
        etcd.thaw(0)


@pytest.mark.fault("sigterm-meta-service-etcd")
def test_a_start_that_is_given_up_leaves_a_directory_that_the_next_one_takes(tmp_path: Path, held: ExitStack) -> None:
    meta = meta_at(tmp_path, held)
    meta.pause()
    node = NodeProcess(tmp_path / "node-1", verb=("node", "start"), arguments=("--meta", meta.url, "--id", "1"))
    held.callback(node.kill)
    waiting = Starting(node.command("127.0.0.1:0"), tmp_path / "waiting.log")
    held.callback(waiting.end)
    waiting.until("waiting for the meta service")
    assert waiting.stop(60) == 0
    meta.resume()
    node.start()
    node.stop()


@pytest.mark.fault("sigterm-meta-service-etcd")
@in_a_pod
def test_the_first_process_of_a_container_hears_a_stop_before_it_is_a_server(tmp_path: Path, held: ExitStack) -> None:
    """The kernel drops what such a process has no handler for. Here it waits for an answer that never comes."""
    silent = held.enter_context(socket.create_server(("127.0.0.1", 0)))
    address = f"127.0.0.1:{silent.getsockname()[1]}"
    command = Starting(
        ["unshare", "--pid", "--fork", "--kill-child", *stratalog("topics", "list", "--admin", address)],
        tmp_path / "command.log",
    )
    held.callback(command.end)
    held.enter_context(silent.accept()[0])
    (first,) = Path(f"/proc/{command.process.pid}/task/{command.process.pid}/children").read_text().split()
    os.kill(int(first), signal.SIGTERM)
    assert command.process.wait(20) == 128 + signal.SIGTERM, "not by the 30 s after which the question is given up"
