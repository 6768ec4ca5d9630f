"""Clients of other libraries over TLS, against a real node whose certificate is replaced meanwhile."""

from __future__ import annotations

import datetime
import ssl
import time
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest

from support.certificates import Authority
from support.closed_clients import by_aiokafka, by_kafka_python, by_librdkafka
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


def of_librdkafka(node: SecureNode, files: Path) -> dict[str, Any]:
    return {
        "bootstrap.servers": node.secure,
        "security.protocol": "ssl",
        "ssl.ca.location": str(files / "ca.crt"),
        "ssl.certificate.location": str(files / "tls.crt"),
        "ssl.key.location": str(files / "tls.key"),
    }


def of_kafka_python(node: SecureNode, files: Path) -> dict[str, Any]:
    return {
        "bootstrap_servers": node.secure,
        "security_protocol": "SSL",
        "ssl_cafile": str(files / "ca.crt"),
        "ssl_certfile": str(files / "tls.crt"),
        "ssl_keyfile": str(files / "tls.key"),
    }


def of_aiokafka(node: SecureNode, files: Path) -> dict[str, Any]:
    context = ssl.create_default_context(cafile=str(files / "ca.crt"))
    context.load_cert_chain(files / "tls.crt", files / "tls.key")
    return {"bootstrap_servers": node.secure, "security_protocol": "SSL", "ssl_context": context}


CLIENTS = {
    "librdkafka": (of_librdkafka, by_librdkafka),
    "kafka-python": (of_kafka_python, by_kafka_python),
    "aiokafka": (of_aiokafka, by_aiokafka),
}


@pytest.mark.parametrize("client", CLIENTS)
def test_each_client_writes_and_reads_over_tls(
    tmp_path: Path, authority: Authority, client_files: Path, client: str
) -> None:
    settings, round_trip = CLIENTS[client]
    with SecureNode(tmp_path, authority) as node:
        assert round_trip(settings(node, client_files), client, VALUES) == VALUES
        assert node.metrics()["stratalog_kafka_handshakes_failed_total"] == 0


def test_a_renewed_certificate_is_shown_without_a_restart_and_no_write_fails(
    tmp_path: Path, authority: Authority, client_files: Path
) -> None:
    with SecureNode(tmp_path, authority) as node:
        settings = of_librdkafka(node, client_files)
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
        assert node.metrics()["stratalog_tls_is_rejected"] == 1
        assert node.metrics()["stratalog_tls_expires_seconds"] > time.time()
        fresh = confluent_kafka.Producer(settings)
        fresh.produce("renewed", b"with the earlier certificate", on_delivery=lambda error, _: failures.append(error))
        assert fresh.flush(10) == 0
        assert failures == [None] * 22


@pytest.mark.slow  # as long as a certificate is valid
def test_a_name_that_the_certificate_lacks_ends_clients_and_an_expired_client_keeps_its_connection(
    tmp_path: Path, authority: Authority
) -> None:
    """As in Kafka, a certificate counts when a connection begins."""
    with SecureNode(tmp_path, authority) as node:
        short = authority.issue("alice", ends=datetime.timedelta(seconds=20))
        files = short.write_folder(tmp_path / "short", authority.certificate)
        settings = of_librdkafka(node, files)
        failures: list[object] = []
        producer = confluent_kafka.Producer(settings)
        end = time.monotonic() + 25
        while time.monotonic() < end:
            producer.produce("expires", b"value", on_delivery=lambda error, _: failures.append(error))
            assert producer.flush(10) == 0
        assert set(failures) == {None}
        failed = node.metrics()["stratalog_kafka_handshakes_failed_total"]
        with pytest.raises(confluent_kafka.KafkaException):
            confluent_kafka.admin.AdminClient(settings).list_topics(timeout=5)
        assert node.metrics()["stratalog_kafka_handshakes_failed_total"] > failed
        authority.issue("node", host="elsewhere.example").write_folder(node.folder)
        eventually_sync(lambda: node.metrics()["stratalog_tls_reloads_total"] == 1, timeout=20)
        good = authority.issue("bob").write_folder(tmp_path / "bob", authority.certificate)
        with pytest.raises(confluent_kafka.KafkaException):
            confluent_kafka.admin.AdminClient(of_librdkafka(node, good)).list_topics(timeout=5)
        producer.produce("expires", b"value", on_delivery=lambda error, _: failures.append(error))
        assert producer.flush(10) == 0 and set(failures) == {None}


def test_a_node_does_not_start_without_the_certificate_that_its_listener_needs(tmp_path: Path) -> None:
    settings = {"listeners": f"{SECURE}://127.0.0.1:0", "listener.security.protocol.map": f"{SECURE}:SSL"}
    with pytest.raises(AssertionError, match=r"ssl\.certificate\.folder"), NodeProcess(tmp_path, settings=settings):
        pass
