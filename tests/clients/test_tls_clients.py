"""Clients of other libraries over TLS, against a real node whose certificate is replaced meanwhile."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from support.certificates import Authority
from support.cluster_ports import free_port
from support.node_process import NodeProcess
from support.waiting import eventually_sync

SECURE = "secure"
VALUES = [b"value %d" % number for number in range(50)] + [b"x" * 400_000]


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def client_files(tmp_path: Path, authority: Authority) -> Path:
    """`ca.crt`, `tls.crt` and `tls.key` of the client alice."""
    return authority.issue("alice").write_folder(tmp_path / "client", authority.certificate)


class SecureNode(NodeProcess):
    def __init__(self, folder: Path, authority: Authority, **settings: str) -> None:
        self.port = free_port()
        self.folder = authority.issue("node").write_folder(folder / "tls", authority.certificate)
        super().__init__(
            folder / "data",
            settings={
                "listeners": f"{SECURE}://127.0.0.1:{self.port}",
                "listener.security.protocol.map": f"{SECURE}:SSL",
                "ssl.certificate.folder": str(self.folder),
                "ssl.client.auth": "required",
            }
            | settings,
        )

    @property
    def secure(self) -> str:
        return f"127.0.0.1:{self.port}"


def of_librdkafka(node: SecureNode, files: Path) -> list[bytes]:
    settings = {
        "bootstrap.servers": node.secure,
        "security.protocol": "ssl",
        "ssl.ca.location": str(files / "ca.crt"),
        "ssl.certificate.location": str(files / "tls.crt"),
        "ssl.key.location": str(files / "tls.key"),
    }
    producer = confluent_kafka.Producer(settings)
    for value in VALUES:
        producer.produce("librdkafka", value)
    assert producer.flush(30) == 0
    consumer = confluent_kafka.Consumer(settings | {"group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe(["librdkafka"])
    got: list[bytes] = []

    def read() -> bool:
        message = consumer.poll(0.2)
        if message is not None:
            assert message.error() is None
            got.append(message.value() or b"")
        return len(got) == len(VALUES)

    eventually_sync(read)
    consumer.close()
    return got


def of_kafka_python(node: SecureNode, files: Path) -> list[bytes]:
    settings = {
        "bootstrap_servers": node.secure,
        "security_protocol": "SSL",
        "ssl_cafile": str(files / "ca.crt"),
        "ssl_certfile": str(files / "tls.crt"),
        "ssl_keyfile": str(files / "tls.key"),
    }
    producer = kafka.KafkaProducer(**settings, acks="all")
    for sent in [producer.send("kafka-python", value) for value in VALUES]:
        sent.get(30)
    producer.close()
    consumer = kafka.KafkaConsumer(
        "kafka-python", **settings, auto_offset_reset="earliest", consumer_timeout_ms=30_000, group_id=None
    )
    got = [next(consumer).value for _ in VALUES]
    consumer.close()
    return got


def of_aiokafka(node: SecureNode, files: Path) -> list[bytes]:
    context = ssl.create_default_context(cafile=str(files / "ca.crt"))
    context.load_cert_chain(files / "tls.crt", files / "tls.key")
    settings = {"bootstrap_servers": node.secure, "security_protocol": "SSL", "ssl_context": context}

    async def work() -> list[bytes]:
        producer = AIOKafkaProducer(**settings, acks="all")
        await producer.start()
        for value in VALUES:
            await producer.send_and_wait("aiokafka", value)
        await producer.stop()
        consumer = AIOKafkaConsumer("aiokafka", **settings, auto_offset_reset="earliest")
        await consumer.start()
        async with asyncio.timeout(30):
            got = [(await consumer.getone()).value for _ in VALUES]
        await consumer.stop()
        return got

    return asyncio.run(work())


@pytest.mark.parametrize("client", [of_librdkafka, of_kafka_python, of_aiokafka])
def test_each_client_writes_and_reads_over_tls(
    tmp_path: Path, authority: Authority, client_files: Path, client: Callable[[SecureNode, Path], list[bytes]]
) -> None:
    with SecureNode(tmp_path, authority) as node:
        assert client(node, client_files) == VALUES
        assert node.metrics()["stratalog_kafka_handshakes_failed_total"] == 0


def test_a_renewed_certificate_is_shown_without_a_restart_and_no_write_fails(
    tmp_path: Path, authority: Authority, client_files: Path
) -> None:
    with SecureNode(tmp_path, authority) as node:
        settings = {
            "bootstrap.servers": node.secure,
            "security.protocol": "ssl",
            "ssl.ca.location": str(client_files / "ca.crt"),
            "ssl.certificate.location": str(client_files / "tls.crt"),
            "ssl.key.location": str(client_files / "tls.key"),
        }
        failures: list[object] = []
        producer = confluent_kafka.Producer(settings)
        authority.issue("node").write_folder(node.folder)
        for number in range(20):
            producer.produce("renewed", b"%d" % number, on_delivery=lambda error, _: failures.append(error))
            assert producer.flush(10) == 0
        eventually_sync(lambda: node.metrics()["stratalog_tls_reloads_total"] == 1, timeout=20)
        fresh = confluent_kafka.Producer(settings)
        fresh.produce("renewed", b"over a new connection", on_delivery=lambda error, _: failures.append(error))
        assert fresh.flush(10) == 0
        assert failures == [None] * 21
        (node.folder / "tls.key").write_bytes(b"no key")
        eventually_sync(lambda: node.metrics()["stratalog_tls_rejected_total"] == 1, timeout=20)
        fresh = confluent_kafka.Producer(settings)
        fresh.produce("renewed", b"with the earlier certificate", on_delivery=lambda error, _: failures.append(error))
        assert fresh.flush(10) == 0
        assert failures == [None] * 22


def test_a_node_does_not_start_without_the_certificate_that_its_listener_needs(tmp_path: Path) -> None:
    settings = {"listeners": f"{SECURE}://127.0.0.1:0", "listener.security.protocol.map": f"{SECURE}:SSL"}
    with pytest.raises(AssertionError, match=r"ssl\.certificate\.folder"), NodeProcess(tmp_path, settings=settings):
        pass
