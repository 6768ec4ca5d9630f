"""Commands at listeners with TLS and SASL: they log in, and say what does not fit where they cannot."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner, Result

from stratalog.connect.brokers import check_broker
from stratalog.connect.client_settings import ClientSettings, settings_of
from stratalog.connect.listener import CertificateRefused, LoginRefused
from stratalog.model.errors import InvalidRequest, Unavailable, WrongServer
from stratalog_cli.entry import build_app
from support.certificates import DAY, Authority
from support.closed_node import PASSWORD, ClosedNode
from support.cluster_ports import free_port
from support.identity_provider import CLIENT, SECRET, IdentityProvider, identity_provider

APP = build_app()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosedNode]:
    with ClosedNode(tmp_path_factory.mktemp("closed"), {"offsets.topic.num.partitions": "1"}) as node:
        node.set_user("alice", "SCRAM-SHA-256")
        node.set_user("alice", "SCRAM-SHA-512")
        yield node


def settings(node: ClosedNode, **changed: str) -> ClientSettings:
    values = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": PASSWORD,
        "ssl.truststore.location": node.ca,
    }
    return settings_of(values | {key.replace("_", "."): value for key, value in changed.items()}, "client.properties")


def at(address: str, given: ClientSettings) -> None:
    host, _, port = address.rpartition(":")
    check_broker(host, int(port), given)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_command_logs_in_by_each_mechanism(node: ClosedNode, mechanism: str) -> None:
    at(node.closed, settings(node, sasl_mechanism=mechanism))


def test_a_command_logs_in_without_tls(node: ClosedNode) -> None:
    at(node.plain, settings(node, security_protocol="SASL_PLAINTEXT"))


def test_a_command_logs_in_with_a_token_of_an_identity_provider(node: ClosedNode, tmp_path: Path) -> None:
    """By a connection of its own, and by those of librdkafka, which fetches its tokens itself."""
    (tmp_path / "idp.crt").write_bytes(node.authority.certificate)
    with identity_provider(node.authority, tmp_path / "idp") as provider:
        provider.token = node.issuer.token(CLIENT)
        given = settings(node, **of_provider(provider, tmp_path / "idp.crt"))
        for _ in range(2):
            at(node.closed, given)
        assert len(provider.asked) == 1, "the token is kept"
        admin = AdminClient({"bootstrap.servers": node.closed, **given.of_librdkafka()})
        assert admin.list_topics(timeout=30).brokers
        assert provider.asked == [{"grant_type": ["client_credentials"], "scope": ["kafka"]}] * 2


def test_what_an_identity_provider_or_the_listener_refuses_is_said(node: ClosedNode, tmp_path: Path) -> None:
    (tmp_path / "idp.crt").write_bytes(node.authority.certificate)
    with identity_provider(node.authority, tmp_path / "idp") as provider:
        changed = of_provider(provider, tmp_path / "idp.crt")
        provider.token = node.issuer.token(CLIENT, ends_in_s=600, iat=None)
        with pytest.raises(LoginRefused, match=r"refuses the token of https://127\.0\.0\.1"):
            at(node.closed, settings(node, **changed))
        with pytest.raises(InvalidRequest, match=r"401, invalid_client\) to robot: check") as refused:
            at(node.closed, settings(node, **changed | {"sasl_oauthbearer_client_secret": "guess"}))
        assert "guess" not in str(refused.value)


def of_provider(provider: IdentityProvider, authority: Path) -> dict[str, str]:
    return {
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauthbearer_token_endpoint_url": provider.url,
        "sasl_oauthbearer_client_id": CLIENT,
        "sasl_oauthbearer_client_secret": SECRET,
        "sasl_oauthbearer_scope": "kafka",
        "https_ca_location": str(authority),
    }


def test_a_wrong_password_and_an_unknown_user_are_refused_alike(node: ClosedNode) -> None:
    said = []
    for changed in ({"sasl_password": "guess"}, {"sasl_username": "nobody"}):
        with pytest.raises(LoginRefused, match=r"refuses the login of") as refused:
            at(node.closed, settings(node, **changed))
        assert "guess" not in str(refused.value) and PASSWORD not in str(refused.value)
        said.append(str(refused.value).replace("nobody", "alice"))
    assert said[0] == said[1] and "check user and password (settings of client.properties)" in said[0]


def test_an_authority_that_is_not_trusted_is_named(node: ClosedNode, tmp_path: Path) -> None:
    other = tmp_path / "other.crt"
    other.write_bytes(Authority().certificate)
    with pytest.raises(CertificateRefused, match=rf"not trusted here .{other}.: set ssl.truststore.location"):
        at(node.closed, settings(node, ssl_truststore_location=str(other)))
    with pytest.raises(CertificateRefused, match=r"the authorities of this system"):
        at(node.closed, settings(node, ssl_truststore_location=""))


def test_a_host_that_the_certificate_does_not_name_is_refused_with_the_names_that_it_has(node: ClosedNode) -> None:
    address = node.closed.replace("127.0.0.1", "localhost")
    with pytest.raises(CertificateRefused, match=r"is not for localhost, but for 127\.0\.0\.1"):
        at(address, settings(node))
    at(address, settings(node, ssl_endpoint_identification_algorithm=""))


def test_tls_at_a_listener_in_plain_text_is_explained(node: ClosedNode) -> None:
    for protocol, wanted in (("SASL_SSL", "SASL_PLAINTEXT"), ("SSL", "PLAINTEXT")):
        with pytest.raises(WrongServer, match=rf"speaks no TLS.*or set security.protocol={wanted} for this one"):
            at(node.bootstrap, settings(node, security_protocol=protocol))


def test_plain_text_at_a_listener_with_tls_is_explained(node: ClosedNode) -> None:
    for protocol, wanted in (("SASL_PLAINTEXT", "SASL_SSL"), ("PLAINTEXT", "SSL")):
        with pytest.raises(WrongServer, match=rf"speaks TLS, but .*set security.protocol={wanted}"):
            at(node.closed, settings(node, security_protocol=protocol))


def test_a_client_without_a_login_hears_which_mechanisms_there_are(node: ClosedNode) -> None:
    for address, protocol in ((node.closed, "SSL"), (node.plain, "PLAINTEXT")):
        with pytest.raises(LoginRefused, match=r"asks for a login, by .*SCRAM-SHA-512.*security.protocol=SASL_"):
            at(address, settings(node, security_protocol=protocol))


def test_a_login_where_none_is_asked_for_is_explained(node: ClosedNode) -> None:
    with pytest.raises(WrongServer, match=r"asks for no login.*set security.protocol=PLAINTEXT"):
        at(node.bootstrap, settings(node, security_protocol="SASL_PLAINTEXT"))


def test_a_mechanism_that_is_not_offered_is_refused_with_those_that_are(node: ClosedNode) -> None:
    with pytest.raises(LoginRefused, match=r"does not offer PLAIN, but SCRAM-SHA-256, SCRAM-SHA-512: .*without TLS"):
        at(node.plain, settings(node, security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN"))


def test_an_http_port_is_named_as_such(node: ClosedNode) -> None:
    for protocol in ("SASL_SSL", "PLAINTEXT"):
        with pytest.raises(WrongServer, match=r"speaks HTTP: an admin or meta port"):
            at(node.admin, settings(node, security_protocol=protocol))


def test_nothing_that_answers_is_told_from_a_refusal(node: ClosedNode) -> None:
    with pytest.raises(Unavailable, match=r"does not answer"):
        at(f"127.0.0.1:{free_port()}", settings(node))


def test_files_of_the_client_that_cannot_be_used_are_named(node: ClosedNode, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=rf"{tmp_path}/none cannot be read"):
        at(node.closed, settings(node, ssl_truststore_location=str(tmp_path / "none")))
    (tmp_path / "empty.crt").write_text("nothing")
    with pytest.raises(InvalidRequest, match=rf"{tmp_path}/empty.crt.*no certificate can be read"):
        at(node.closed, settings(node, ssl_truststore_location=str(tmp_path / "empty.crt")))


@contextlib.contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Answers each connection, one after the other, and ends it. Gives the address."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                taken, _ = listening.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), taken:
                answer(taken)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


def tls_server(context: ssl.SSLContext, *, behind: str = "") -> AbstractContextManager[str]:
    """Makes the handshake, and ends the connection; or has the broker that is `behind` answer requests."""

    def answer(taken: socket.socket) -> None:
        with context.wrap_socket(taken, server_side=True) as secured:
            secured.settimeout(5)
            if behind:
                relay(secured, behind)
            else:
                secured.recv(1)

    return answering(answer)


def relay(client: ssl.SSLSocket, address: str) -> None:
    """One request and its answer after the other, until the client ends the connection."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 5) as broker:
        while frame := framed(client):
            broker.sendall(frame)
            client.sendall(framed(broker))


def framed(sender: socket.socket) -> bytes:
    """Empty at the end of the connection."""
    size = exactly(sender, 4)
    return size and size + exactly(sender, int.from_bytes(size))


def exactly(sender: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count and (part := sender.recv(count - len(found))):
        found += part
    return found


def alerting(alert: int) -> AbstractContextManager[str]:
    """Answers each connection with this alert of TLS."""

    def answer(taken: socket.socket) -> None:
        taken.recv(1 << 16)
        taken.sendall(b"\x15\x03\x03\0\2\2" + bytes([alert]))

    return answering(answer)


def served(authority: Authority, folder: Path, **how: object) -> ssl.SSLContext:
    issued = authority.issue("server", **how).write_folder(folder, authority.certificate)  # type: ignore[arg-type]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued / "tls.crt", issued / "tls.key")
    return context


@pytest.mark.parametrize(
    ("begins", "ends", "why"), [(-2 * DAY, -DAY, "has expired: renew it"), (DAY, 2 * DAY, "check the clocks")]
)
def test_a_certificate_outside_its_time_is_explained(tmp_path: Path, begins: object, ends: object, why: str) -> None:
    authority = Authority()
    context = served(authority, tmp_path, begins=begins, ends=ends)
    given = ClientSettings(settings_of({"security.protocol": "SSL"}, "").protocol, authorities=str(tmp_path / "ca.crt"))
    with tls_server(context) as address, pytest.raises(CertificateRefused, match=why):
        at(address, given)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_server_that_asks_for_a_certificate_says_so(tmp_path: Path, version: ssl.TLSVersion) -> None:
    """By TLS 1.3 the refusal comes after the handshake, with the first answer."""
    authority = Authority()
    context = served(authority, tmp_path)
    context.verify_mode, context.maximum_version = ssl.CERT_REQUIRED, version
    context.load_verify_locations(tmp_path / "ca.crt")
    given = settings_of({"security.protocol": "SSL", "ssl.truststore.location": str(tmp_path / "ca.crt")}, "")
    with (
        tls_server(context) as address,
        pytest.raises(CertificateRefused, match=r"asks clients for a certificate.*ssl.keystore.location"),
    ):
        at(address, given)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_s_certificate_that_has_expired_is_named_with_its_end(tmp_path: Path, version: ssl.TLSVersion) -> None:
    authority = Authority()
    context = served(authority, tmp_path)
    context.verify_mode, context.maximum_version = ssl.CERT_REQUIRED, version
    context.load_verify_locations(tmp_path / "ca.crt")
    authority.issue("alice", begins=-2 * DAY, ends=-DAY).write_folder(tmp_path / "own")
    with (
        tls_server(context) as address,
        pytest.raises(CertificateRefused, match=r"own/tls.crt has expired at 20\d\d-\d\d-\d\d .* UTC.*: renew it"),
    ):
        at(address, with_certificate(tmp_path, tmp_path / "own"))


BAD_CERTIFICATE, CERTIFICATE_UNKNOWN = 42, 46


@pytest.mark.parametrize(
    ("alert", "own", "why"),
    [
        (BAD_CERTIFICATE, None, "asks clients for a certificate, and none was shown"),
        (CERTIFICATE_UNKNOWN, -DAY, "has expired at"),
        (CERTIFICATE_UNKNOWN, DAY, "does not trust the certificate"),
    ],
)
def test_an_alert_with_several_meanings_is_explained_by_what_the_client_shows(
    tmp_path: Path, alert: int, own: timedelta | None, why: str
) -> None:
    """As a server in Java sends them."""
    authority = Authority()
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    if own is not None:
        authority.issue("alice", begins=-2 * DAY, ends=own).write_folder(tmp_path / "own")
    given = with_certificate(tmp_path, None if own is None else tmp_path / "own")
    with alerting(alert) as address, pytest.raises(CertificateRefused, match=why):
        at(address, given)


def with_certificate(trusted: Path, own: Path | None) -> ClientSettings:
    values = {"security.protocol": "SSL", "ssl.truststore.location": str(trusted / "ca.crt")}
    if own is not None:
        values |= {"ssl.certificate.location": str(own / "tls.crt"), "ssl.key.location": str(own / "tls.key")}
    return settings_of(values, "client.properties")


def test_a_certificate_for_other_names_that_cannot_be_read_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """OpenSSL verifies it, and compares the name of the host."""
    authority = Authority()
    authority.issue_unreadable("elsewhere.example").write_folder(tmp_path, authority.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    with (
        tls_server(context) as address,
        pytest.raises(CertificateRefused, match=rf"{address}: the certificate cannot be read"),
    ):
        at(address, with_certificate(tmp_path, None))


# Commands ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def file(node: ClosedNode, tmp_path: Path) -> Path:
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config=org.apache.kafka.common.security."
        f'scram.ScramLoginModule required username="alice" password="{PASSWORD}";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={node.ca}\n"
    )
    return file


def run(*words: object, text: str | None = None, **environment: str) -> Result:
    cleared = dict.fromkeys(("STRATALOG_ADMIN", "STRATALOG_CONTEXT", "STRATALOG_META", "STRATALOG_CLIENT_CONFIG"))
    return CliRunner().invoke(APP, list(map(str, words)), input=text, env={**cleared, **environment})


def test_a_context_holds_how_to_log_in(node: ClosedNode, file: Path, tmp_path: Path) -> None:
    home = {"XDG_CONFIG_HOME": str(tmp_path / "home")}
    added = run(
        "context", "add", "safe", "--bootstrap", node.closed, "--client-config", file, "--admin", node.admin, **home
    )
    assert added.exit_code == 0, added.output
    kept = (tmp_path / "home" / "stratalog" / "contexts.json").read_text()
    assert str(file) in kept and PASSWORD not in kept
    assert run("topics", "create", "orders", "--shards", 1, **home).exit_code == 0

    written = run("produce", "orders", text="one\ntwo\n", **home)
    assert written.exit_code == 0, written.output
    assert run("consume", "orders", **home).stdout == "one\ntwo\n"
    assert run("groups", "reset", "g", "--topic", "orders", "--to-latest", **home).exit_code == 0
    deleted = run("groups", "delete-offsets", "g", "--topic", "orders", "--yes", **home)
    assert deleted.exit_code == 0, deleted.output
    shown = run("context", "show", "-o", "json", **home).stdout
    assert json.loads(shown)["client_config"] == str(file) and PASSWORD not in shown


def test_a_login_of_a_context_is_not_shown_at_another_address(node: ClosedNode, file: Path, tmp_path: Path) -> None:
    home = {"XDG_CONFIG_HOME": str(tmp_path / "home")}
    assert run("context", "add", "safe", "--bootstrap", node.closed, "--client-config", file, **home).exit_code == 0
    ran = run("groups", "list", "--bootstrap", node.plain, **home)
    assert ran.exit_code == 2 and "asks for a login" in ran.stderr


def test_a_context_whose_login_is_refused_is_not_kept(node: ClosedNode, file: Path, tmp_path: Path) -> None:
    home = {"XDG_CONFIG_HOME": str(tmp_path / "home")}
    file.write_text(file.read_text().replace(PASSWORD, "another"))
    ran = run("context", "add", "safe", "--bootstrap", node.closed, "--client-config", file, **home)
    assert ran.exit_code == 2 and "--bootstrap 127.0.0.1" in ran.stderr and "is not kept" in ran.stderr
    assert 'another"' not in ran.stderr
    assert "no contexts yet" in run("context", "list", **home).stdout


def test_the_option_goes_before_the_command_and_works_without_a_context(node: ClosedNode, file: Path) -> None:
    ran = run("--client-config", file, "groups", "list", "--bootstrap", node.closed)
    assert ran.exit_code == 0, ran.output


def test_a_comparison_does_not_show_its_login_to_the_other_cluster(node: ClosedNode, file: Path) -> None:
    assert run("topics", "create", "same", "--shards", 1, "--admin", node.admin).exit_code == 0
    words = ("--client-config", file, "topics", "compare", "same", "--bootstrap", node.closed)
    ran = run(*words, "--with", node.closed)
    assert ran.exit_code == 3 and "speaks TLS, but security.protocol=PLAINTEXT" in ran.stderr
    ran = run(*words, "--with", node.closed, "--with-client-config", file)
    assert ran.exit_code == 0, ran.output
