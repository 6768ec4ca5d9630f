"""What produce, consume, groups and trim say where the listener refuses them: who, which right is missing, and the
command that gives it. Against a real node with rules."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AclOperation, NewTopic, ResourceType
from typer.testing import CliRunner, Result

from stratalog.connect.client_settings import read_client_settings
from stratalog.connect.missing_right import Right, missing_right
from stratalog.model.rights import Operation
from stratalog.model.rights import ResourceType as Types
from stratalog_cli.entry import build_app
from support.closed_node import PASSWORD, ClosedNode
from support.waiting import eventually_sync

APP = build_app()
SETTINGS = {"authorizer.class.name": "stratalog", "super.users": "User:ANONYMOUS", "offsets.topic.num.partitions": "1"}
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
OWN = {"STRATALOG_CLIENT_CONFIG": None}
"""The option sets it in this process: named here, it is as before once the command is over."""

WITHOUT_THE_FIRST_CHECK = """
from stratalog_cli.connect.kafka_clients import KafkaPlace
from stratalog_cli.entry import main
KafkaPlace.require_right = lambda *_: None
main()
"""


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audit")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, audit: Path) -> Iterator[ClosedNode]:
    with ClosedNode(tmp_path_factory.mktemp("closed"), SETTINGS | {"audit.log.dir": str(audit)}) as node:
        admin = node.new_admin()
        topics = ("orders", "trimmed")
        for made in admin.create_topics([NewTopic(name, 1, 1) for name in topics]).values():
            made.result(30)
        producer = Producer({"bootstrap.servers": node.bootstrap})
        for name in topics:
            producer.produce(name, b"one")
        assert producer.flush(30) == 0
        reader = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "billing"})
        reader.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
        reader.close()
        yield node


class User:
    """Who runs commands, and has no right yet."""

    def __init__(self, node: ClosedNode, folder: Path, name: str) -> None:
        self.node, self.name = node, name
        node.set_user(name, "SCRAM-SHA-512")
        self.file = folder / "client.properties"
        lines = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": name,
            "sasl.password": PASSWORD,
            "ssl.truststore.location": node.ca,
        }
        self.file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))

    def may(self, operation: AclOperation, of_type: ResourceType, name: str) -> None:
        self.node.allow(self.name, operation, of_type, name)

    def run(self, *words: str, lines: bytes = b"") -> Result:
        return CliRunner().invoke(
            APP,
            ["--client-config", str(self.file), *words],
            input=lines,
            env={"XDG_CONFIG_HOME": "/nonexistent", "STRATALOG_BOOTSTRAP": self.node.closed} | OWN,
        )

    def refused(self, *words: str, lines: bytes = b"") -> str:
        """The command in the refusal, without its program."""
        ran = self.run(*words, lines=lines)
        assert ran.exit_code == 2, ran.output
        return self.command_in(ran.stderr)

    def command_in(self, stderr: str) -> str:
        said = stderr.splitlines()[-1]
        assert said.startswith(f"stratalog: User:{self.name} has no right to "), stderr
        (command,) = re.findall(r"`stratalog (acls add .*?)`", said)
        assert isinstance(command, str)
        return command

    def follow(self, command: str) -> None:
        """As the administrator: the internal listener asks for no login."""
        words = [*shlex.split(command), "--bootstrap", self.node.bootstrap]
        made = CliRunner().invoke(APP, words, env={"STRATALOG_CLIENT_CONFIG": None})
        assert made.exit_code == 0, made.output


@pytest.fixture
def user(node: ClosedNode, tmp_path: Path, request: pytest.FixtureRequest) -> User:
    return User(node, tmp_path, re.sub(r"\W", "-", str(request.node.name)))


def test_a_producer_that_does_what_it_is_told_may_write(user: User) -> None:
    words = ("produce", "orders")
    command = user.refused(*words, lines=b"a\n")
    assert command == f"acls add --allow-principal User:{user.name} --operation WRITE --topic orders"
    user.follow(command)
    assert user.run(*words, lines=b"a\n").exit_code == 0


def test_a_topic_that_nobody_has_made_is_not_distinguished_from_one_that_is_not_shown(user: User) -> None:
    assert user.refused("produce", "no such topic", lines=b"a\n") == (
        f"acls add --allow-principal User:{user.name} --operation WRITE --topic 'no such topic'"
    )


def test_a_producer_that_only_sees_the_topic_is_refused_before_it_sends(user: User) -> None:
    user.may(DESCRIBE, TOPIC, "orders")
    assert "--operation WRITE --topic orders" in user.refused("produce", "orders", lines=b"a\n")


@pytest.mark.parametrize("has_a_right_to_an_id", [False, True], ids=["fatal-error", "refused-batch"])
def test_a_right_that_is_taken_after_the_start_is_named_too(user: User, has_a_right_to_an_id: bool) -> None:
    """librdkafka meets this as a fatal error where it has no producer id, else as a refused batch. In a process of its
    own: confluent-kafka raises a fatal error where no exception may be, which pytest's hooks do not survive."""
    user.may(DESCRIBE, TOPIC, "orders")
    if has_a_right_to_an_id:
        user.may(WRITE, TOPIC, "another")
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_FIRST_CHECK, "--client-config", str(user.file), "produce", "orders"],
        env=os.environ | {"XDG_CONFIG_HOME": "/nonexistent", "STRATALOG_BOOTSTRAP": user.node.closed},
        input="a\nb\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 2 and "Traceback" not in ran.stderr, ran.stderr
    assert "--operation WRITE --topic orders" in user.command_in(ran.stderr)


def test_a_consumer_that_does_what_it_is_told_may_read(user: User) -> None:
    user.follow(user.refused("consume", "orders"))
    assert user.run("consume", "orders", "--limit", "1").stdout == "one\n"


def test_a_consumer_that_only_sees_the_topic_is_told_what_it_lacks(user: User) -> None:
    user.may(DESCRIBE, TOPIC, "orders")
    assert "--operation READ --topic orders" in user.refused("consume", "orders")


def test_runs_of_consume_are_one_kind_of_denial(user: User, audit: Path) -> None:
    user.may(READ, TOPIC, "orders")
    for _ in range(2):
        assert user.run("consume", "orders").exit_code == 0
    user.refused("groups", "describe", "the last one")

    def denied() -> list[str]:
        """Groups, in the order of the log."""
        lines = [json.loads(line) for file in audit.iterdir() for line in file.read_text().splitlines()]
        return [one["resource"] for one in lines if one["principal"] == f"User:{user.name}"]

    eventually_sync(lambda: "the last one" in denied())
    assert denied() == ["stratalog-consume", "the last one"]


def test_who_may_see_no_group_is_told_so(user: User) -> None:
    said = user.run("groups", "list").stdout
    assert f"none that User:{user.name} may see" in said


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ("groups describe billing", ["DESCRIBE --group billing"]),
        (
            "groups reset billing --topic orders --to-earliest",
            ["DESCRIBE --group billing", "READ --topic orders", "READ --group billing"],
        ),
        (
            "groups delete-offsets billing --topic orders --yes",
            ["DESCRIBE --group billing", "READ --topic orders", "DELETE --group billing"],
        ),
        ("topics trim trimmed --to-offset 1 --yes", ["DELETE --topic trimmed"]),
        ("topics trim trimmed --to-offset 1 --dry-run", ["DELETE --topic trimmed"]),
    ],
)
def test_each_right_that_a_command_lacks_is_named_in_turn(user: User, words: str, missing: list[str]) -> None:
    """Nothing is named that the command does not need: after the last one it is done, or refused for another reason."""
    for operation in missing:
        command = user.refused(*words.split())
        assert command.endswith(f"--operation {operation}")
        user.follow(command)
    assert "has no right" not in user.run(*words.split()).output


def test_a_command_logs_in_by_a_token(user: User, tmp_path: Path) -> None:
    """Its user is in the token, which the command does not look into."""
    token = tmp_path / "token"
    token.write_text(user.node.issuer.token(user.name))
    user.file.write_text(
        f"security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\nssl.truststore.location={user.node.ca}\n"
        f"sasl.oauthbearer.token.endpoint.url={token.as_uri()}\n"
    )
    refused = user.run("consume", "orders")
    assert refused.exit_code == 2 and "the user of this token has no right to READ of topic orders" in refused.stderr
    user.may(READ, TOPIC, "orders")
    assert user.run("consume", "orders", "--limit", "1").stdout == "one\n"

    token.write_text(user.node.issuer.token(user.name, ends_in_s=-600))
    expired = user.run("consume", "orders")
    assert expired.exit_code == 2 and f"refuses the token of {token}" in expired.stderr
    assert "the node's log has the reason, at `a bearer token is not taken`" in expired.stderr
    assert token.read_text() not in expired.output


def test_a_user_without_a_right_to_the_cluster_is_told_which_one(user: User) -> None:
    assert user.refused("acls", "list").endswith("--operation DESCRIBE --cluster")
    words = ("acls", "add", "--allow-principal", "User:x", "--topic", "x")
    assert user.refused(*words).endswith("--operation ALTER --cluster")


@pytest.mark.parametrize(
    ("settings", "logs_in"),
    [
        ("security.protocol=PLAINTEXT", False),
        ("security.protocol=SSL", False),
        ("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=eve\nsasl.password=secret", True),
    ],
)
def test_a_command_without_a_login_is_told_to_log_in_before_a_rule_for_everyone(
    tmp_path: Path, settings: str, logs_in: bool
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(settings)
    said = str(missing_right(read_client_settings(file, {}), Right(Operation.WRITE, Types.TOPIC, "orders"), "here:1"))
    assert ("this command did not log in" in said) is not logs_in
    assert ("--client-config FILE" in said) is not logs_in
    assert ("everyone who reaches a listener without a login" in said) is not logs_in
