"""A producer of the pipeline at a listener with TLS, logins and rules: it writes, or says in one sentence why not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from confluent_kafka.admin import AclOperation, ResourceType
from typer.testing import CliRunner, Result

from stratalog.connect.listener import CertificateRefused, LoginRefused
from stratalog.model.errors import Forbidden, WrongServer
from stratalog.objects import open_store
from stratalog_cli.entry import build_app
from stratalog_pipeline.sending.login import KafkaLogin, login_with
from stratalog_pipeline.sending.producer import Sender
from stratalog_pipeline.sending.target_topics import shards_of_topics
from support.archived_tables import add_segment
from support.closed_node import PASSWORD, ClosedNode
from support.cold_data import ColdShard
from support.topics import create_topic, read

SETTINGS = {"authorizer.class.name": "stratalog", "super.users": "User:ANONYMOUS", "offsets.topic.num.partitions": "1"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosedNode]:
    settings = SETTINGS | {"log.retention.ms": "-1"}
    with ClosedNode(tmp_path_factory.mktemp("closed"), settings) as node:
        node.set_user("alice", "SCRAM-SHA-512")
        for topic in ("allowed", "denied", "cold"):
            create_topic(node.bootstrap, topic)
        node.allow("alice", AclOperation.WRITE, ResourceType.TOPIC, "allowed")
        yield node


def client_file(node: ClosedNode, folder: Path, **changed: str) -> str:
    values = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": PASSWORD,
        "ssl.truststore.location": node.ca,
    } | {key.replace("_", "."): value for key, value in changed.items()}
    file = folder / "client.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return str(file)


@pytest.fixture
def login(node: ClosedNode, tmp_path: Path) -> KafkaLogin:
    return login_with(client_file(node, tmp_path), {})


def test_it_logs_in_over_tls_and_writes(node: ClosedNode, login: KafkaLogin) -> None:
    sender = Sender(node.closed, login)
    sender.send("allowed", b"k", b"v", [], None, 0)
    assert sender.flush(30)
    assert [(one.key(), one.value()) for one in read(node.bootstrap, "allowed", 1)] == [(b"k", b"v")]
    assert shards_of_topics(node.closed, login, ["allowed"]) == {"allowed": 1}


def test_a_topic_without_the_right_is_one_sentence_and_its_remedy_helps(node: ClosedNode, login: KafkaLogin) -> None:
    words = rf"^User:alice has no right to WRITE of topic denied at {node.closed}"
    sender = Sender(node.closed, login)
    with pytest.raises(Forbidden, match=words):
        sender.send("denied", None, b"v", [], None, 0)
        sender.flush(30)
    with pytest.raises(Forbidden, match=rf"{words}, and nothing was sent"):
        shards_of_topics(node.closed, login, ["denied"])


def test_a_producer_without_any_right_is_refused_for_its_topic(node: ClosedNode, tmp_path: Path) -> None:
    """The broker refuses to number it, and says that a right to the cluster is missing."""
    node.set_user("nobody", "SCRAM-SHA-512")
    sender = Sender(node.closed, login_with(client_file(node, tmp_path, sasl_username="nobody"), {}))
    with pytest.raises(Forbidden, match=r"^User:nobody has no right to WRITE of topic denied"):
        sender.send("denied", None, b"v", [], None, 0)
        sender.flush(30)


def test_what_does_not_fit_is_said_at_once(node: ClosedNode, tmp_path: Path) -> None:
    """librdkafka would try it again until its records expire."""
    guess = login_with(client_file(node, tmp_path, sasl_password="my guess"), {})
    with pytest.raises(LoginRefused, match="refuses the login of alice by SCRAM-SHA-512") as refused:
        Sender(node.closed, guess)
    assert "my guess" not in str(refused.value)
    with pytest.raises(WrongServer, match=r"speaks TLS, but security.protocol=PLAINTEXT does not"):
        Sender(node.closed)
    stranger = login_with(client_file(node, tmp_path, ssl_truststore_location=""), {})
    with pytest.raises(CertificateRefused, match="not trusted here"):
        shards_of_topics(node.closed, stranger, ["allowed"])


def test_servers_that_do_not_answer_are_left_to_the_client(node: ClosedNode, login: KafkaLogin) -> None:
    sender = Sender(f"127.0.0.1:1,{node.closed}", login)
    sender.send("allowed", None, b"v", [], None, 0)
    assert sender.flush(30)


# The command ----------------------------------------------------------------------------------------------------------
def exported(node: ClosedNode, bucket: Path, *words: str) -> Result:
    """With two records of the topic `cold`."""

    async def fill() -> None:
        store = open_store(str(bucket))
        await add_segment(ColdShard(store), [[b"a", b"b"]])
        await store.close()

    asyncio.run(fill())
    command = ["pipeline", "export", "--bucket", str(bucket), "--to", node.closed, "--as", "kafka", "--threads", "0"]
    environment = {"XDG_CONFIG_HOME": "/nonexistent", "STRATALOG_CLIENT_CONFIG": None}
    return CliRunner().invoke(build_app(("pipeline",)), [*words[:2], *command, *words[2:]], env=environment)


def test_an_export_by_client_settings_says_which_right_is_missing_and_then_writes(
    node: ClosedNode, tmp_path: Path
) -> None:
    file = client_file(node, tmp_path)
    refused = exported(node, tmp_path / "bucket", "--client-config", file)
    assert refused.exit_code == 2, refused.output
    assert refused.stderr.splitlines()[-1].startswith("stratalog: User:alice has no right to WRITE of topic cold")
    assert "Traceback" not in refused.output and PASSWORD not in refused.output
    node.allow("alice", AclOperation.WRITE, ResourceType.TOPIC, "cold")
    done = exported(node, tmp_path / "again", "--client-config", file)
    assert done.exit_code == 0, done.output
    assert [one.value() for one in read(node.bootstrap, "cold", 2)] == [b"a", b"b"]


def test_an_export_takes_no_secret_from_the_command_line(node: ClosedNode, tmp_path: Path) -> None:
    refused = exported(node, tmp_path / "bucket", "--client-config", "/nowhere", "--client", "sasl.password=my guess")
    assert refused.exit_code == 2
    assert "every user of this machine sees a command line" in refused.stderr
    assert "my guess" not in refused.output
