"""Clients in Java, Go and JavaScript with each way to prove who they are: what they may do, and what they hear else.

`make test-clients` runs these tests. They take minutes: each client is a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation, NewTopic, ResourceType

from support.certificates import Authority
from support.client_programs import PROGRAM_CLIENTS, ClientProgram, Login, with_a_wrong_proof
from support.closed_node import PASSWORD, SCRAM, ClosedNode
from support.tokens import Issuer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

GUARDED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
VALUES = [b"value %d" % number for number in range(20)]
WAYS = ("certificate", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
DENIED = {
    "java": "error TopicAuthorizationException Not authorized to access topics: [secret]",
    "franz-go": "error TOPIC_AUTHORIZATION_FAILED",
    "kafkajs": "error KafkaJSProtocolError TOPIC_AUTHORIZATION_FAILED",
}
GROUP_DENIED = {
    "java": "error GroupAuthorizationException Not authorized to access group: others",
    "franz-go": "GROUP_AUTHORIZATION_FAILED",
    "kafkajs": "error KafkaJSGroupCoordinatorNotFound",
}
NO_PASSWORD = {
    "java": "error SaslAuthenticationException",
    "franz-go": "SASL_AUTHENTICATION_FAILED",
    "kafkajs": "error KafkaJSSASLAuthenticationError",
}
NO_TOKEN = NO_PASSWORD | {
    # Neither reads the reason in the answer (RFC 7628): the one stops there, the other continues and is cut off.
    "franz-go": "unexpected data in oauth response",
    "kafkajs": "error KafkaJSConnectionClosedError",
}
NO_CERTIFICATE = {
    "java": "error SslAuthenticationException",
    "franz-go": "unknown certificate authority",
    "kafkajs": "unknown ca",
}


@pytest.fixture(scope="module", params=PROGRAM_CLIENTS)
def client(request: pytest.FixtureRequest, repository: Path) -> ClientProgram:
    return PROGRAM_CLIENTS[request.param].find(repository)


@pytest.fixture
def name(client: ClientProgram) -> str:
    return next(name for name, kind in PROGRAM_CLIENTS.items() if isinstance(client, kind))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosedNode]:
    with ClosedNode(tmp_path_factory.mktemp("languages"), GUARDED) as node:
        prepare(node)
        yield node


@pytest.fixture(scope="module")
def node_of_short_logins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosedNode]:
    short = {"connections.max.reauth.ms": "3000"}
    with ClosedNode(tmp_path_factory.mktemp("short"), GUARDED | short) as node:
        prepare(node)
        yield node


def prepare(node: ClosedNode) -> None:
    """There are a topic that alice may use, and one that she may not."""
    for mechanism in SCRAM:
        node.set_user("alice", mechanism)
    admin = node.new_admin()
    for future in admin.create_topics([NewTopic(one, 1, 1) for one in ("secret", "shared")]).values():
        future.result(30)
    node.allow("alice", AclOperation.WRITE, ResourceType.TOPIC, "shared")
    node.allow("alice", AclOperation.READ, ResourceType.TOPIC, "shared")


def login_of(node: ClosedNode, way: str, folder: Path) -> Login:
    if way == "certificate":
        files = node.authority.issue("alice").write_folder(folder / "alice")
        return Login(node.mutual, node.ca, certificate=str(files / "tls.crt"), key=str(files / "tls.key"))
    login = Login(node.closed, node.ca, way)
    if way != "OAUTHBEARER":
        return replace(login, user="alice", password=PASSWORD)
    token = folder / "alice.jwt"
    token.write_text(node.issuer.token("alice"))
    return replace(login, token=str(token))


@pytest.mark.parametrize("way", WAYS)
def test_a_client_writes_and_reads_what_it_may(
    node: ClosedNode, client: ClientProgram, name: str, way: str, tmp_path: Path
) -> None:
    topic = f"{name}-{way}"
    admin = node.new_admin()
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    for operation in (AclOperation.WRITE, AclOperation.READ):
        node.allow("alice", operation, ResourceType.TOPIC, topic)
    node.allow("alice", AclOperation.READ, ResourceType.GROUP, topic)
    done = client.copy(login_of(node, way, tmp_path), topic, topic, len(VALUES))
    assert (done.code, done.read) == (0, VALUES), done.lines


def test_a_client_is_told_that_a_topic_is_not_for_it(
    node: ClosedNode, client: ClientProgram, name: str, tmp_path: Path
) -> None:
    done = client.copy(login_of(node, "SCRAM-SHA-512", tmp_path), "secret", "shared", 1)
    assert done.code == 1
    assert DENIED[name] in done.errors, done.lines


def test_a_client_is_told_that_a_group_is_not_for_it(
    node: ClosedNode, client: ClientProgram, name: str, tmp_path: Path
) -> None:
    done = client.copy(login_of(node, "SCRAM-SHA-512", tmp_path), "shared", "others", 1)
    assert done.code == 1
    assert GROUP_DENIED[name] in done.errors, done.lines


@pytest.mark.parametrize("way", WAYS)
def test_a_client_with_a_wrong_proof_is_told_so(
    node: ClosedNode, client: ClientProgram, name: str, way: str, tmp_path: Path
) -> None:
    stranger = Authority("stranger").issue("alice").write_folder(tmp_path / "stranger")
    token = tmp_path / "forged.jwt"
    token.write_text(Issuer(tmp_path / "forger").token("alice"))
    foreign = Login("", "", token=str(token), certificate=str(stranger / "tls.crt"), key=str(stranger / "tls.key"))
    done = client.copy(with_a_wrong_proof(login_of(node, way, tmp_path), foreign), "shared", "shared", 1)
    assert done.code == 1
    told = {"certificate": NO_CERTIFICATE, "OAUTHBEARER": NO_TOKEN}.get(way, NO_PASSWORD)
    assert told[name] in done.errors, done.lines


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512", "OAUTHBEARER"])
def test_a_client_logs_in_again_while_it_writes_and_keeps_its_connections(
    node_of_short_logins: ClosedNode, client: ClientProgram, mechanism: str, tmp_path: Path
) -> None:
    node = node_of_short_logins
    before = node.metrics()
    login = login_of(node, mechanism, tmp_path)
    done = client.write(login, "shared", 9)
    assert done.code == 0, done.lines
    after = node.metrics()
    assert after["stratalog_login_expired_total"] == before["stratalog_login_expired_total"]
    logins = after["stratalog_login_succeeded_total"] - before["stratalog_login_succeeded_total"]
    connections = after["stratalog_kafka_accepted_total"] - before["stratalog_kafka_accepted_total"]
    assert logins > connections
