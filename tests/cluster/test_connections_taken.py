"""Clients take every connection that they may have: nodes still replicate, fail over, and reach the meta service."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.metadata import Snapshot
from support.meta_process import MetaProcess
from support.node_process import NodeProcess
from support.waiting import eventually_sync

META_SETTINGS = ("node.lease.ms=1000", "recovery.patience.ms=1500")
MOST_CONNECTIONS = 24
IDLE_AT_META = 1_012
SHARDS = 6
NODE_IDS = (1, 2, 3)


class Cluster:
    """Three nodes around one meta service, and a topic of which each node leads shards."""

    def __init__(self, folder: Path) -> None:
        self.meta = MetaProcess(folder, "meta", "--data", str(folder / "meta"), settings=META_SETTINGS).start()
        self.by_id = {
            number: NodeProcess(
                folder / f"node-{number}",
                settings={"max.connections": MOST_CONNECTIONS},
                verb=("node", "start"),
                arguments=("--meta", self.meta.url, "--id", str(number)),
            ).start()
            for number in NODE_IDS
        }
        topic = NewTopic("flights", SHARDS, 3, config={"min.insync.replicas": "2"})
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        admin.create_topics([topic])["flights"].result(30)
        eventually_sync(lambda: set(self.leaders()) == set(NODE_IDS), 60)
        self.producer = Producer(
            {"bootstrap.servers": self.bootstrap, "acks": "all", "enable.idempotence": True, "log_level": 0}
            | {"message.timeout.ms": 90_000}
        )
        self.failed: list[object] = []
        self.acknowledged = 0

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.by_id.values())

    def snapshot(self) -> Snapshot:
        async def read() -> Snapshot:
            client = HttpMetaClient(self.meta.url)
            try:
                return await client.snapshot()
            finally:
                await client.close()

        return asyncio.run(read())

    def leaders(self) -> list[int | None]:
        found = self.snapshot()
        (topic,) = [one for one in found.topics if one.name == "flights"]
        return [one.segments[-1].leader for one in found.shards if one.key.topic_id == topic.topic_id]

    def is_whole(self) -> bool:
        found = self.snapshot()
        (topic,) = [one for one in found.topics if one.name == "flights"]
        actives = [one.segments[-1] for one in found.shards if one.key.topic_id == topic.topic_id]
        return all(one.leader is not None and {*one.isr} == {*NODE_IDS} for one in actives)

    def write(self, count: int = 30) -> None:
        """To every shard; returns once all records are acknowledged."""

        def note(error: object, _: object) -> None:
            if error is None:
                self.acknowledged += 1
            else:
                self.failed.append(error)

        before = self.acknowledged
        for number in range(count):
            self.producer.produce("flights", b"%d" % number, partition=number % SHARDS, on_delivery=note)
        left = self.producer.flush(90)
        assert left == 0 and not self.failed, (left, self.failed[:3])
        assert self.acknowledged == before + count

    def close(self) -> None:
        for node in self.by_id.values():
            node.kill()
        self.meta.kill()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    running = Cluster(tmp_path)
    try:
        yield running
    finally:
        running.close()


@contextmanager
def silent_connections(address: str, count: int) -> Iterator[list[socket.socket]]:
    """`count` connections that send nothing. The other side may close some of them."""
    host, _, port = address.rpartition(":")
    with ExitStack() as stack:
        opened = []
        for _number in range(count):
            one = stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
            one.setblocking(False)
            opened.append(one)
        yield opened


def is_open(one: socket.socket) -> bool:
    try:
        return one.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8_192), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.fault("clients-take-connections-node")
def test_nodes_replicate_and_fail_over_while_clients_hold_every_connection(cluster: Cluster) -> None:
    cluster.write()  # its connections are among those that clients may have
    with ExitStack() as stack:
        held = {
            number: stack.enter_context(silent_connections(node.bootstrap, 2 * MOST_CONNECTIONS))
            for number, node in cluster.by_id.items()
        }
        for ones in held.values():
            eventually_sync(lambda ones=ones: sum(map(is_open, ones)) < MOST_CONNECTIONS, 30)  # type: ignore[misc]
            assert sum(map(is_open, ones)) > MOST_CONNECTIONS // 2, "clients hold nearly all places"
        cluster.write()
        cluster.by_id[3].kill()
        eventually_sync(lambda: 3 not in cluster.leaders() and None not in cluster.leaders(), 60)
        cluster.by_id[3].start()
        # A node that begins a life connects to all others, where clients hold every place of their own.
        eventually_sync(cluster.is_whole, 90)
        cluster.write()


@pytest.mark.fault("idle-half-sent-http")
@pytest.mark.usefixtures("many_descriptors")
def test_a_meta_service_full_of_idle_connections_elects_leaders_and_admits_nodes(cluster: Cluster) -> None:
    cluster.write()
    with silent_connections(cluster.meta.address, IDLE_AT_META):
        cluster.write()
        cluster.by_id[3].kill()
        eventually_sync(lambda: 3 not in cluster.leaders() and None not in cluster.leaders(), 60)
        cluster.write()
        cluster.by_id[3].start()
        eventually_sync(cluster.is_whole, 90)
        cluster.write()
