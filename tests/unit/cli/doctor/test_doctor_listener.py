"""`stratalog doctor --bootstrap-server`: what fits and what does not between a client and a listener."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation, ResourceType
from typer.testing import CliRunner, Result

from stratalog_cli.entry import build_app
from support.certificates import DAY, Authority
from support.closed_node import PASSWORD, ClosedNode
from support.cluster_ports import free_port
from support.topics import create_topic
from unit.cli.connect.test_listener import served, tls_server

APP = build_app(("doctor", "context"))
NOWHERE = "127.0.0.1:1"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosedNode]:
    with ClosedNode(tmp_path_factory.mktemp("closed")) as node:
        node.set_user("alice", "SCRAM-SHA-512")
        yield node


def run(*words: object, **environment: str) -> Result:
    cleared = dict.fromkeys(("STRATALOG_CONTEXT", "STRATALOG_BOOTSTRAP", "STRATALOG_CLIENT_CONFIG"))
    env = {**cleared, "XDG_CONFIG_HOME": "/nonexistent", **environment}
    return CliRunner().invoke(APP, list(map(str, words)), env=env)


def client_file(folder: Path, node: ClosedNode, **changed: str) -> Path:
    values = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": PASSWORD,
        "ssl.truststore.location": node.ca,
    }
    values |= {key.replace("_", "."): value for key, value in changed.items()}
    file = folder / "client.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return file


def examined(file: Path, address: str, *more: str) -> tuple[int, Any]:
    ran = run("--client-config", file, "doctor", "--bootstrap-server", address, *more, "--output", "json")
    return ran.exit_code, json.loads(ran.stdout)[0]


def test_a_listener_that_fits_is_clean_and_its_certificate_is_shown(node: ClosedNode, tmp_path: Path) -> None:
    code, seen = examined(client_file(tmp_path, node), node.closed)
    assert code == 0 and seen["errors"] == 0
    assert seen["settings"]["login"] == "alice by SCRAM-SHA-512"
    assert seen["settings"]["certificate"] == "CN=node, for 127.0.0.1"
    assert seen["settings"]["TLS"].startswith("TLSv1.3")
    assert "OAUTHBEARER" in seen["settings"]["mechanisms"]
    assert [(one["severity"], one["what"][:27]) for one in seen["findings"]] == [
        ("warning", "its certificate expires at ")
    ], "that of the test is valid for two days"


@pytest.mark.parametrize(
    ("changed", "what", "step"),
    [
        ({"sasl_password": "wrong"}, "refuses the login of alice by SCRAM-SHA-512 (Auth", "check user and password"),
        ({"sasl_mechanism": "SCRAM-SHA-256"}, "refuses the login of alice by SCRAM-SHA-256", "users list"),
        ({"security_protocol": "SSL"}, "asks for a login, by PLAIN", "set security.protocol=SASL_SSL"),
        ({"ssl_truststore_location": ""}, "authority that is not trusted here", "set ssl.truststore.location"),
        ({"ssl_truststore_location": "/no/ca.crt"}, "/no/ca.crt cannot be read", "a PEM file that this user can read"),
    ],
)
def test_what_the_client_lacks_is_an_error_with_the_next_step(
    node: ClosedNode, tmp_path: Path, changed: dict[str, str], what: str, step: str
) -> None:
    code, seen = examined(client_file(tmp_path, node, **changed), node.closed)
    (finding,) = [one for one in seen["findings"] if one["severity"] == "error"]
    assert code == 1 and what in finding["what"] and finding["next_step"].startswith(("check", "set", "name")), finding
    assert step in finding["next_step"]
    assert PASSWORD not in json.dumps(seen)


@pytest.mark.parametrize(
    ("protocol", "port", "what", "step"),
    [
        ("SASL_SSL", "bootstrap", "speaks no TLS, but security.protocol=SASL_SSL does", "name a listener with TLS"),
        ("SASL_PLAINTEXT", "closed", "speaks TLS, but security.protocol=SASL_PLAINTEXT does not", "SASL_SSL"),
        ("SASL_PLAINTEXT", "bootstrap", "asks for no login", "set security.protocol=PLAINTEXT"),
        ("SASL_SSL", "admin", "speaks HTTP: an admin or meta port", "name the address where Kafka clients connect"),
    ],
)
def test_another_kind_of_port_could_not_be_checked(
    node: ClosedNode, tmp_path: Path, protocol: str, port: str, what: str, step: str
) -> None:
    code, seen = examined(client_file(tmp_path, node, security_protocol=protocol), getattr(node, port))
    assert code == 3 and not seen["is_checked"] and what in seen["findings"][0]["what"]
    assert step in seen["findings"][0]["next_step"]


def test_where_nothing_answers_the_address_and_the_node_are_to_be_checked(node: ClosedNode, tmp_path: Path) -> None:
    code, seen = examined(client_file(tmp_path, node), NOWHERE)
    (found,) = seen["findings"]
    assert code == 3 and f"{NOWHERE} does not answer" in found["what"]
    assert "that a node runs there" in found["next_step"] and "docs/" not in found["next_step"]


def test_an_address_that_clients_are_sent_to_and_cannot_reach_is_an_error(tmp_path: Path) -> None:
    port = free_port()
    advertised = {"listeners": f"closed://127.0.0.1:{port}", "listener.security.protocol.map": "closed:SASL_SSL"}
    with ClosedNode(tmp_path, advertised | {"advertised.listeners": f"closed://{NOWHERE}"}) as node:
        node.set_user("alice", "SCRAM-SHA-512")
        code, seen = examined(client_file(tmp_path, node), f"127.0.0.1:{port}")
    (finding,) = [one for one in seen["findings"] if one["severity"] == "error"]
    assert code == 1 and finding["place"] == NOWHERE and "clients are sent here for node 1" in finding["what"]


def test_a_listener_of_the_context_is_checked_with_the_login_of_the_context(node: ClosedNode, tmp_path: Path) -> None:
    home = {"XDG_CONFIG_HOME": str(tmp_path / "home")}
    file = client_file(tmp_path, node)
    assert run("context", "add", "c", "--bootstrap", node.closed, "--client-config", file, **home).exit_code == 0
    assert run("doctor", "--bootstrap-server", node.closed, **home).exit_code == 0
    other = run("doctor", "--bootstrap-server", node.plain, **home)
    assert other.exit_code == 1 and "asks for a login" in other.stdout


def test_authorities_of_another_cluster_are_named(node: ClosedNode, tmp_path: Path) -> None:
    (tmp_path / "other.crt").write_bytes(Authority().certificate)
    code, seen = examined(client_file(tmp_path, node, ssl_truststore_location=str(tmp_path / "other.crt")), node.closed)
    assert code == 1 and str(tmp_path / "other.crt") in seen["findings"][0]["what"]


# Rights ---------------------------------------------------------------------------------------------------------------
def test_what_a_client_may_do_with_a_topic_is_shown_and_a_missing_right_is_an_error_with_its_command(
    tmp_path: Path,
) -> None:
    with ClosedNode(tmp_path, {"authorizer.class.name": "stratalog", "super.users": "User:ANONYMOUS"}) as node:
        node.set_user("alice", "SCRAM-SHA-512")
        create_topic(node.bootstrap, "orders")
        create_topic(node.bootstrap, "salaries")
        node.allow("alice", AclOperation.READ, ResourceType.TOPIC, "orders")
        code, seen = examined(client_file(tmp_path, node), node.closed, "--topic", "orders", "--topic", "salaries")
    (finding,) = [one for one in seen["findings"] if one["severity"] == "error"]
    assert code == 1 and seen["settings"]["may, of topic orders"] == "DESCRIBE, READ"
    assert "User:alice has no right to READ of topic salaries" in finding["what"]
    assert "stratalog acls add --allow-principal User:alice --operation READ --topic salaries" in finding["next_step"]


def test_a_topic_that_is_not_there_is_no_missing_right(node: ClosedNode, tmp_path: Path) -> None:
    code, seen = examined(client_file(tmp_path, node), node.closed, "--topic", "none")
    assert code == 0 and "there is no such topic" in seen["settings"]["may, of topic none"]


# Certificates ---------------------------------------------------------------------------------------------------------
def with_certificate(folder: Path, node: ClosedNode, own: Path | None) -> Path:
    values = {"security.protocol": "SSL", "ssl.truststore.location": node.ca}
    if own is not None:
        values |= {"ssl.certificate.location": str(own / "tls.crt"), "ssl.key.location": str(own / "tls.key")}
    file = folder / "client.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return file


def test_a_client_s_certificate_is_shown_and_its_end_is_warned_of(node: ClosedNode, tmp_path: Path) -> None:
    own = node.authority.issue("alice").write_folder(tmp_path / "alice")
    code, seen = examined(with_certificate(tmp_path, node, own), node.mutual)
    assert code == 0 and seen["settings"]["client certificate"].startswith("CN=alice, valid until 20")
    warned = [one["what"] for one in seen["findings"] if one["severity"] == "warning"]
    assert len(warned) == 2 and f"the client's certificate {own}/tls.crt expires at 20" in warned[1]


@pytest.mark.parametrize(
    ("own", "what", "step"),
    [
        ("none", "it asks clients for a certificate, and none was shown", "set ssl.keystore.location"),
        ("expired", "alice/tls.crt has expired at 20", "renew it (`stratalog certs renew`)"),
        ("foreign", "it does not trust the certificate", "its ca.crt must hold who issued that"),
        ("of another with the same name", "it does not trust the certificate", "its ca.crt must hold who issued that"),
    ],
)
def test_a_client_s_certificate_that_a_listener_does_not_take_is_an_error_with_the_next_step(
    node: ClosedNode, tmp_path: Path, own: str, what: str, step: str
) -> None:
    others = {"foreign": Authority("another"), "of another with the same name": Authority()}
    authority = others.get(own, node.authority)
    issued = authority.issue("alice", begins=-2 * DAY, ends=-DAY if own == "expired" else DAY)
    folder = issued.write_folder(tmp_path / "alice")
    code, seen = examined(with_certificate(tmp_path, node, None if own == "none" else folder), node.mutual)
    (finding,) = seen["findings"]
    assert code == 1 and what in finding["what"] and step in finding["next_step"], finding


def test_a_node_s_certificate_that_has_expired_is_an_error(node: ClosedNode, tmp_path: Path) -> None:
    """A node does not start with such a one: this is another server, as a node is whose certificate ran out."""
    context = served(node.authority, tmp_path / "server", begins=-2 * DAY, ends=-DAY)
    with tls_server(context) as address:
        code, seen = examined(with_certificate(tmp_path, node, None), address)
    (finding,) = seen["findings"]
    assert (
        code == 1 and "the certificate there has expired" in finding["what"] and "certs renew" in finding["next_step"]
    )


def test_a_certificate_that_cannot_be_read_is_an_error_beside_the_other_findings(
    node: ClosedNode, tmp_path: Path
) -> None:
    """A node does not start with such a one: something before it may have it."""
    node.authority.issue_unreadable("127.0.0.1").write_folder(tmp_path / "before")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "before" / "tls.crt", tmp_path / "before" / "tls.key")
    with tls_server(context, behind=node.bootstrap) as address:
        code, seen = examined(with_certificate(tmp_path, node, None), address)
    assert code == 1 and "the certificate cannot be read" in seen["findings"][0]["what"]
    assert seen["settings"]["nodes"] == "1 node" and "certificate" not in seen["settings"]


@pytest.mark.parametrize("words", [(), ("--bootstrap-server", NOWHERE, "/tmp"), ("/tmp", "--topic", "t")])
def test_one_thing_is_checked_at_a_time(words: tuple[str, ...]) -> None:
    assert run("doctor", *words).exit_code == 2
