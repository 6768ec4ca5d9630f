"""A cluster's own authority: what it issues is accepted by TLS for the names in it, and for nothing else."""

from __future__ import annotations

import contextlib
import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from stratalog.model.errors import Conflict, InvalidRequest
from stratalog.settings.choices import ClientAuth
from stratalog.tls.authority import (
    Authority,
    Issued,
    client_holder,
    hosts_of,
    is_issued_by,
    is_key_of,
    load_certificate,
    meta_holder,
    node_holder,
    operator_holder,
    uris_of,
)
from stratalog.tls.contexts import TlsRules, client_context, server_context
from stratalog.tls.material import TlsMaterial
from support import certificates

NOW = datetime.now(UTC)
YEAR = timedelta(days=365)
CLUSTER = "6a4d2c1e-0b7f-4a55-9a53-1f2b3c4d5e6f"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.create(CLUSTER, 10 * YEAR, NOW)


def material(issued: Issued, authority: Authority) -> TlsMaterial:
    return TlsMaterial(issued.certificate, issued.key, authority.certificate)


def handshake(server: TlsMaterial, client: TlsMaterial, host: str) -> x509.Certificate:
    """The client's certificate as the server sees it. Raises: ssl.SSLError where one of them refuses the other."""
    ours, theirs = server_context(server, TlsRules(ClientAuth.REQUIRED)), client_context(client, TlsRules())
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        theirs.wrap_bio(to_client, to_server, server_hostname=host),
        ours.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(4):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    with contextlib.suppress(ssl.SSLWantReadError):
        ends[0].read(1)
    der = ends[1].getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der)


@pytest.mark.parametrize("host", ["node-1.example.com", "127.0.0.1", "::1"])
def test_parts_of_a_cluster_prove_to_each_other_who_they_are(authority: Authority, host: str) -> None:
    node = authority.issue(node_holder(1, ["node-1.example.com", "127.0.0.1", "::1"]), YEAR, NOW)
    meta = authority.issue(meta_holder(["meta"]), YEAR, NOW)
    seen = handshake(material(node, authority), material(meta, authority), host)
    assert uris_of(seen) == [f"stratalog://{CLUSTER}/meta"]
    assert uris_of(load_certificate(node.certificate)) == [f"stratalog://{CLUSTER}/node/1"]


def test_a_server_is_refused_under_a_name_that_its_certificate_lacks(authority: Authority) -> None:
    node = authority.issue(node_holder(1, ["node-1.example.com"]), YEAR, NOW)
    client = authority.issue(client_holder("alice"), YEAR, NOW)
    with pytest.raises(ssl.SSLCertVerificationError, match="node-2"):
        handshake(material(node, authority), material(client, authority), "node-2.example.com")


def test_a_client_cannot_serve_and_has_no_name_of_a_part(authority: Authority) -> None:
    client = authority.issue(client_holder("alice"), YEAR, NOW)
    node = authority.issue(node_holder(1, ["localhost"]), YEAR, NOW)
    assert uris_of(load_certificate(client.certificate)) == hosts_of(load_certificate(client.certificate)) == []
    seen = handshake(material(node, authority), material(client, authority), "localhost")
    assert seen.subject.rfc4514_string() == "CN=alice"
    with pytest.raises(ssl.SSLCertVerificationError, match="unsuitable certificate purpose"):
        handshake(material(client, authority), material(node, authority), "localhost")


def test_a_certificate_of_another_cluster_is_refused(authority: Authority) -> None:
    other = Authority.create(CLUSTER, YEAR, NOW)  # the same name, and another key
    stranger = other.issue(node_holder(1, ["localhost"]), YEAR, NOW)
    client = authority.issue(client_holder("alice"), YEAR, NOW)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(material(stranger, other), material(client, authority), "localhost")
    assert not is_issued_by(load_certificate(stranger.certificate), authority.certificate)


def test_what_it_issues_cannot_issue(authority: Authority) -> None:
    node = authority.issue(node_holder(1, ["localhost"]), YEAR, NOW)
    with pytest.raises(InvalidRequest, match="not the certificate of an authority"):
        Authority.load(node.certificate, node.key)


def test_an_authority_is_read_again_from_its_texts(authority: Authority) -> None:
    again = Authority.load(authority.certificate, authority.key)
    issued = again.issue(operator_holder([]), YEAR, NOW)
    assert again.cluster_id == CLUSTER
    assert is_issued_by(load_certificate(issued.certificate), authority.certificate)


@pytest.mark.parametrize(
    ("certificate", "key", "why"),
    [
        (b"", None, "no certificate can be read"),
        (None, b"-----BEGIN PRIVATE KEY-----\nMIGH\n-----END PRIVATE KEY-----\n", "no private key can be read"),
        (None, certificates.Authority().issue("x").key, "not that of the certificate"),
        (certificates.Authority().certificate, None, "not that of the certificate"),
    ],
)
def test_an_authority_whose_texts_do_not_fit_is_refused(
    authority: Authority, certificate: bytes | None, key: bytes | None, why: str
) -> None:
    with pytest.raises(InvalidRequest, match=why) as refused:
        Authority.load(authority.certificate if certificate is None else certificate, key or authority.key)
    assert "MIGH" not in str(refused.value)


def test_an_authority_that_names_no_cluster_is_refused() -> None:
    other = certificates.Authority()
    key = other._key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with pytest.raises(InvalidRequest, match="not the certificate of an authority"):
        Authority.load(other.certificate, key)


def test_a_renewed_certificate_has_the_same_names_and_another_key(authority: Authority) -> None:
    first = authority.issue(node_holder(7, ["node-7", "10.0.0.7"]), timedelta(days=1), NOW)
    renewed = authority.renew(first.certificate, YEAR, NOW)
    before, after = load_certificate(first.certificate), load_certificate(renewed.certificate)
    assert (after.subject, hosts_of(after), uris_of(after)) == (before.subject, hosts_of(before), uris_of(before))
    assert after.not_valid_after_utc > before.not_valid_after_utc and after.serial_number != before.serial_number
    assert is_key_of(after, renewed.key) and not is_key_of(after, first.key)


def test_a_certificate_of_another_authority_is_not_renewed(authority: Authority) -> None:
    other = Authority.create(CLUSTER, YEAR, NOW).issue(node_holder(1, ["localhost"]), YEAR, NOW)
    with pytest.raises(Conflict, match="another authority"):
        authority.renew(other.certificate, YEAR, NOW)


def test_nothing_is_valid_for_longer_than_its_authority() -> None:
    short = Authority.create(CLUSTER, timedelta(days=2), NOW)
    issued = short.issue(node_holder(1, ["localhost"]), YEAR, NOW)
    assert load_certificate(issued.certificate).not_valid_after_utc == short.expires
    with pytest.raises(InvalidRequest, match="the authority expired"):
        short.issue(node_holder(1, ["localhost"]), YEAR, NOW + timedelta(days=3))


@pytest.mark.parametrize("cluster_id", ["", "a/node/1", "a b", "-a", "a" * 64, "é"])
def test_a_cluster_id_that_would_change_the_name_of_a_part_is_refused(cluster_id: str) -> None:
    with pytest.raises(InvalidRequest, match="cluster id"):
        Authority.create(cluster_id, YEAR, NOW)


@pytest.mark.parametrize("host", ["", "host:9092", "http://host", "a b", "*", "a.*.b"])
def test_a_host_that_no_client_could_use_is_refused(host: str) -> None:
    with pytest.raises(InvalidRequest, match="--host"):
        node_holder(1, [host])


@pytest.mark.parametrize("name", ["", "a" * 65, "a\nb"])
def test_a_name_that_no_certificate_can_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="of a certificate"):
        client_holder(name)


def test_keys_are_in_no_text(authority: Authority) -> None:
    issued = authority.issue(client_holder("alice"), YEAR, NOW)
    assert issued.key.decode() not in repr(issued) and "PRIVATE" not in repr(issued)
