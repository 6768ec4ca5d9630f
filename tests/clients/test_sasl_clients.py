"""Clients of other libraries log in by each mechanism, against a real node whose users a client has made."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
)
from kafka.net.sasl.oauth import AbstractTokenProvider

from support.closed_clients import by_aiokafka, by_kafka_python
from support.closed_node import CLIENTS, PASSWORD, SCRAM, ClosedNode
from support.waiting import eventually_sync

NEEDS_KCAT = pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
VALUES = [b"value %d" % number for number in range(20)]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosedNode]:
    with ClosedNode(tmp_path_factory.mktemp("closed")) as node:
        for mechanism in SCRAM:
            node.set_user("alice", mechanism)
        yield node


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("client", CLIENTS)
def test_each_client_logs_in_by_each_mechanism(node: ClosedNode, client: str, mechanism: str) -> None:
    settings, round_trip = CLIENTS[client]
    assert round_trip(settings(node, "alice", mechanism), f"{client}-{mechanism}", VALUES) == VALUES


def test_a_client_logs_in_by_a_token(node: ClosedNode) -> None:
    settings = {
        "bootstrap.servers": node.closed,
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": node.ca,
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: (node.issuer.token("robot"), time.time() + 600),
    }
    producer = confluent_kafka.Producer(settings)
    failures: list[object] = []
    producer.poll(0)
    producer.produce("by-token", b"value", on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(30) == 0
    assert failures == [None]
    shown = json.loads(node.get("/v1/clients"))["items"]
    assert ("closed", "User:robot") in {(one["listener"], one["principal"]) for one in shown}


def test_kafka_python_logs_in_by_a_token(node: ClosedNode) -> None:
    class Tokens(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return node.issuer.token("robot")

    settings = node.kafka_python("robot", "OAUTHBEARER") | {"sasl_oauth_token_provider": Tokens()}
    assert by_kafka_python(_without_password(settings), "token-of-kafka-python", VALUES) == VALUES


def test_aiokafka_logs_in_by_a_token(node: ClosedNode) -> None:
    class Tokens(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return node.issuer.token("robot")

    settings = node.aiokafka("robot", "OAUTHBEARER") | {"sasl_oauth_token_provider": Tokens()}
    assert by_aiokafka(_without_password(settings), "token-of-aiokafka", VALUES) == VALUES


def _without_password(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if not name.startswith("sasl_plain_")}


def test_aiokafka_is_told_of_a_wrong_password(node: ClosedNode, caplog: pytest.LogCaptureFixture) -> None:
    """kafka-python (3.0) drops what came right before the end of its connection, and so does not show it."""

    async def connect() -> None:
        async with aiokafka.AIOKafkaProducer(**node.aiokafka("alice") | {"sasl_plain_password": "wrong"}):
            pass

    with pytest.raises(aiokafka.errors.KafkaError):
        asyncio.run(connect())
    assert "SaslAuthenticationFailed" in caplog.text


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_password_writes_nothing(node: ClosedNode, mechanism: str) -> None:
    errors: list[Any] = []
    failed = node.metrics()["stratalog_login_failed_total"]
    producer = confluent_kafka.Producer(node.librdkafka("alice", mechanism, "wrong") | {"error_cb": errors.append})
    outcomes: list[Any] = []
    producer.produce("refused", b"value", on_delivery=lambda error, _: outcomes.append(error))

    def is_refused() -> bool:
        producer.poll(0.1)
        return any(error.code() == confluent_kafka.KafkaError._AUTHENTICATION for error in errors)

    eventually_sync(is_refused)
    producer.purge()
    assert producer.flush(30) == 0
    assert len(outcomes) == 1 and outcomes[0] is not None
    assert node.metrics()["stratalog_login_failed_total"] > failed


def test_a_password_is_not_taken_without_tls(node: ClosedNode) -> None:
    settings = node.librdkafka("alice", "PLAIN") | {
        "bootstrap.servers": node.plain,
        "security.protocol": "sasl_plaintext",
    }
    failed = node.metrics()["stratalog_login_failed_total"]
    with pytest.raises(confluent_kafka.KafkaException):
        AdminClient(settings).list_topics(timeout=5)
    assert node.metrics()["stratalog_login_failed_total"] > failed
    assert AdminClient(settings | {"sasl.mechanism": "SCRAM-SHA-512"}).list_topics(timeout=30).brokers


def test_a_user_that_was_deleted_does_not_log_in_again_and_a_new_password_counts_at_once(node: ClosedNode) -> None:
    node.set_user("bob", "SCRAM-SHA-512", "first")
    settings = node.librdkafka("alice", "SCRAM-SHA-512") | {"sasl.username": "bob"}

    def can(password: str) -> bool:
        try:
            return bool(AdminClient(settings | {"sasl.password": password}).list_topics(timeout=3).topics is not None)
        except confluent_kafka.KafkaException:
            return False

    assert can("first") and not can("second")
    node.set_user("bob", "SCRAM-SHA-512", "second")
    eventually_sync(lambda: can("second"))
    assert not can("first")
    node.delete_user("bob", "SCRAM-SHA-512")
    eventually_sync(lambda: not can("second"))


def test_users_outlive_the_node(tmp_path: Path) -> None:
    with ClosedNode(tmp_path) as node:
        node.set_user("alice", "SCRAM-SHA-512")
        assert by_aiokafka(node.aiokafka("alice", "SCRAM-SHA-512"), "before", VALUES) == VALUES
        node.kill()
    with node:
        assert by_aiokafka(node.aiokafka("alice", "SCRAM-SHA-512"), "after", VALUES) == VALUES
    log = node.log_path.read_text()
    assert PASSWORD not in log


def test_a_client_that_logs_in_again_never_fails_a_write(tmp_path: Path) -> None:
    """librdkafka logs in again when its login is about to end (KIP-368)."""
    with ClosedNode(tmp_path, {"connections.max.reauth.ms": "2000"}) as node:
        node.set_user("alice", "SCRAM-SHA-512")
        producer = confluent_kafka.Producer(node.librdkafka("alice", "SCRAM-SHA-512"))
        failures: list[Any] = []
        until = time.monotonic() + 7
        while time.monotonic() < until:
            producer.produce("again", b"value", on_delivery=lambda error, _: failures.append(error))
            assert producer.flush(10) == 0
        assert not any(failures)
        assert node.metrics()["stratalog_login_succeeded_total"] >= 3


@pytest.mark.slow  # as long as three logins last
@pytest.mark.parametrize("client", ["kafka-python", "aiokafka"])
def test_other_clients_go_on_where_logins_end(tmp_path: Path, client: str) -> None:
    """kafka-python logs in again, aiokafka connects again."""
    with ClosedNode(tmp_path, {"connections.max.reauth.ms": "2000"}) as node:
        node.set_user("alice", "SCRAM-SHA-512")
        until = time.monotonic() + 7
        if client == "kafka-python":
            producer = kafka.KafkaProducer(**node.kafka_python("alice", "SCRAM-SHA-512"), acks="all")
            while time.monotonic() < until:
                producer.send("again", b"value").get(10)
            producer.close()
            assert node.metrics()["stratalog_login_expired_total"] == 0
        else:

            async def write() -> None:
                async with aiokafka.AIOKafkaProducer(**node.aiokafka("alice", "SCRAM-SHA-512"), acks="all") as producer:
                    while time.monotonic() < until:
                        await producer.send_and_wait("again", b"value")

            asyncio.run(write())
        assert node.metrics()["stratalog_login_succeeded_total"] >= 3


@NEEDS_KCAT
def test_kcat_logs_in_over_tls(node: ClosedNode) -> None:
    """Debian's is built with a librdkafka of 2023."""
    by_password = {"sasl.mechanisms": "PLAIN", "sasl.username": "alice", "sasl.password": PASSWORD}
    _kcat(node.closed, "by-kcat", "-P", over_tls(node) | by_password, b"hello\n")
    assert _kcat(node.closed, "by-kcat", "-Ce", over_tls(node) | by_password).stdout == b"hello\n"


@NEEDS_KCAT
def test_kcat_shows_a_certificate(node: ClosedNode, tmp_path: Path) -> None:
    files = node.authority.issue("kcat").write_folder(tmp_path)
    by_certificate = {
        "security.protocol": "ssl",
        "ssl.ca.location": node.ca,
        "ssl.certificate.location": str(files / "tls.crt"),
        "ssl.key.location": str(files / "tls.key"),
    }
    _kcat(node.mutual, "by-certificate", "-P", by_certificate, b"hello\n")
    assert _kcat(node.mutual, "by-certificate", "-Ce", by_certificate).stdout == b"hello\n"


@NEEDS_KCAT
def test_a_token_that_kcat_made_itself_is_not_taken(node: ClosedNode) -> None:
    """The only ones that it has without a program beside it, which are not signed."""
    unsigned = {
        "sasl.mechanisms": "OAUTHBEARER",
        "enable.sasl.oauthbearer.unsecure.jwt": "true",
        "sasl.oauthbearer.config": "principal=alice scope=kafka",
    }

    def is_told() -> bool:
        said = _kcat(node.closed, "by-kcat", "-L", over_tls(node) | unsigned, is_refused=True).stderr
        return b"SASL authentication error" in said and b"invalid_token" in said

    eventually_sync(is_told, 30)  # each try has 3 s for connection, handshake and login


def over_tls(node: ClosedNode) -> dict[str, str]:
    return {"security.protocol": "sasl_ssl", "ssl.ca.location": node.ca}


def _kcat(
    address: str, topic: str, does: str, settings: dict[str, str], sends: bytes = b"", *, is_refused: bool = False
) -> subprocess.CompletedProcess[bytes]:
    words = ["kcat", "-b", address, "-t", topic, does, *(("-m", "3") if does == "-L" else ("-p", "0"))]
    words += [part for key, value in settings.items() for part in ("-X", f"{key}={value}")]
    done = subprocess.run(words, input=sends, capture_output=True, timeout=60, check=False)
    assert (done.returncode != 0) == is_refused, done.stderr.decode()
    return done
