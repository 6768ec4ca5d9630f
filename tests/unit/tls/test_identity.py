"""Certificates of a process: read, refused, and replaced while it runs."""

from __future__ import annotations

import contextlib
import os
import shutil
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from stratalog.model.errors import InvalidRequest
from stratalog.model.members import Part
from stratalog.settings.choices import ClientAuth, PortProtocol
from stratalog.settings.process import ProcessSettings
from stratalog.tls import contexts
from stratalog.tls.contexts import TlsRules
from stratalog.tls.identity import TlsIdentity, http_rules, identity_of, internal_rules, tls_rules
from stratalog.tls.material import MOST_FILE_BYTES, TlsFiles
from support.certificates import DAY, Authority, Issued
from support.tls_in_memory import connected

RULES = TlsRules()


def shown(identity: TlsIdentity, authority: Authority) -> x509.Certificate:
    """The certificate that a client sees."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(cadata=authority.certificate.decode())
    ends = [(ssl.MemoryBIO(), ssl.MemoryBIO()) for _ in range(2)]
    theirs = client.wrap_bio(*ends[0], server_hostname="127.0.0.1")
    ours = identity.server.wrap_bio(*ends[1], server_side=True)
    for _ in range(4):
        for one, own, other in ((theirs, ends[0], ends[1]), (ours, ends[1], ends[0])):
            with contextlib.suppress(ssl.SSLWantReadError):
                one.do_handshake()
            other[0].write(own[1].read())
    der = theirs.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der)


def serial(issued: Issued) -> int:
    return x509.load_pem_x509_certificate(issued.certificate).serial_number


def test_a_folder_of_a_secret_is_enough(tmp_path: Path) -> None:
    authority = Authority()
    issued = authority.issue("server")
    identity = TlsIdentity(TlsFiles(str(issued.write_folder(tmp_path))), RULES)
    assert shown(identity, authority).serial_number == serial(issued)
    assert abs(identity.stats.expires_ms / 1_000 - (datetime.now(UTC) + 2 * DAY).timestamp()) < 60


def test_kafkas_pem_files_are_enough(tmp_path: Path) -> None:
    authority = Authority()
    issued = authority.issue("server", is_rsa=True)
    keystore, truststore = tmp_path / "keystore.pem", tmp_path / "truststore.pem"
    keystore.write_bytes(issued.key + issued.certificate + authority.certificate)
    truststore.write_bytes(authority.certificate)
    files = TlsFiles(keystore=str(keystore), truststore=str(truststore))
    identity = TlsIdentity(files, TlsRules(ClientAuth.REQUIRED))
    assert identity.server.verify_mode is ssl.CERT_REQUIRED
    assert shown_serial_with_own(identity, authority) == serial(issued)


def shown_serial_with_own(identity: TlsIdentity, authority: Authority) -> int:
    identity.server.verify_mode = ssl.CERT_NONE
    return shown(identity, authority).serial_number


def test_a_renewed_certificate_is_used_for_the_next_connection(tmp_path: Path) -> None:
    authority = Authority()
    identity = TlsIdentity(TlsFiles(str(authority.issue("server").write_folder(tmp_path))), RULES)
    before = identity.server
    identity.refresh()
    assert identity.server is before
    renewed = authority.issue("server", ends=20 * DAY)
    renewed.write_folder(tmp_path)
    identity.refresh()
    assert shown(identity, authority).serial_number == serial(renewed)
    assert identity.stats.reloads == 1
    assert identity.stats.expires_ms / 1_000 > (datetime.now(UTC) + 10 * DAY).timestamp()


def test_a_secret_that_is_replaced_as_a_whole_is_read_as_a_whole(tmp_path: Path) -> None:
    """Kubernetes makes a new folder, and turns `..data` to it in one step."""
    authority = Authority()
    first, second = authority.issue("server"), authority.issue("server")
    mount = tmp_path / "mount"
    mount.mkdir()
    first.write_folder(mount / "..2026_01")
    os.symlink("..2026_01", mount / "..data")
    for name in ("tls.crt", "tls.key"):
        os.symlink(f"..data/{name}", mount / name)
    identity = TlsIdentity(TlsFiles(str(mount)), RULES)
    second.write_folder(mount / "..2026_02")
    os.symlink("..2026_02", mount / "..data_tmp")
    os.rename(mount / "..data_tmp", mount / "..data")
    shutil.rmtree(mount / "..2026_01")
    identity.refresh()
    assert shown(identity, authority).serial_number == serial(second)
    assert identity.stats.rejected == 0


def broken(kind: str, authority: Authority, folder: Path) -> None:
    issued = authority.issue("server")
    match kind:
        case "key of another":
            Issued(issued.certificate, authority.issue("server").key).write_folder(folder)
        case "cut off":
            Issued(issued.certificate[:300], issued.key).write_folder(folder)
        case "empty key":
            Issued(issued.certificate, b"").write_folder(folder)
        case "not PEM":
            Issued(b"\xff\xfe", issued.key).write_folder(folder)
        case "expired":
            authority.issue("server", begins=-2 * DAY, ends=-DAY).write_folder(folder)
        case "not valid yet":
            authority.issue("server", begins=DAY).write_folder(folder)
        case "too large":
            (folder / "tls.crt").write_bytes(issued.certificate + b"\n" * MOST_FILE_BYTES)
        case "gone":
            (folder / "tls.key").unlink()
        case "a pipe":
            (folder / "tls.crt").unlink()
            os.mkfifo(folder / "tls.crt")
        case "of an unknown version":
            Issued(_of_version_8(issued.certificate), issued.key).write_folder(folder)


def _of_version_8(certificate: bytes) -> bytes:
    der = ssl.PEM_cert_to_DER_cert(certificate.decode())
    changed = der.replace(bytes.fromhex("a003020102"), bytes.fromhex("a003020107"), 1)
    assert changed != der
    return ssl.DER_cert_to_PEM_cert(changed).encode()


BROKEN = (
    "key of another",
    "cut off",
    "empty key",
    "not PEM",
    "expired",
    "not valid yet",
    "too large",
    "gone",
    "a pipe",
    "of an unknown version",
)


@pytest.mark.parametrize("kind", BROKEN)
def test_an_unusable_certificate_is_refused_and_the_earlier_one_stays_in_use(tmp_path: Path, kind: str) -> None:
    authority = Authority()
    first = authority.issue("server")
    identity = TlsIdentity(TlsFiles(str(first.write_folder(tmp_path))), RULES)
    broken(kind, authority, tmp_path)
    identity.refresh()
    identity.refresh()
    assert shown(identity, authority).serial_number == serial(first)
    assert (identity.stats.rejected, identity.stats.is_rejected, identity.stats.reloads) == (1, 1, 0)
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).unlink(missing_ok=True)
    good = authority.issue("server")
    good.write_folder(tmp_path)
    identity.refresh()
    assert shown(identity, authority).serial_number == serial(good)
    assert (identity.stats.is_rejected, identity.stats.reloads) == (0, 1)


@pytest.mark.parametrize("kind", BROKEN)
def test_no_process_starts_with_an_unusable_certificate(tmp_path: Path, kind: str) -> None:
    authority = Authority()
    authority.issue("server").write_folder(tmp_path)
    broken(kind, authority, tmp_path)
    with pytest.raises(InvalidRequest) as refused:
        TlsIdentity(TlsFiles(str(tmp_path)), RULES)
    assert "PRIVATE" not in str(refused.value)


def test_a_certificate_is_taken_once_its_time_has_come(tmp_path: Path) -> None:
    authority = Authority()
    now = datetime.now(UTC)
    first = authority.issue("server").write_folder(tmp_path)
    identity = TlsIdentity(TlsFiles(str(first)), RULES, now=lambda: now)
    later = authority.issue("server", begins=DAY, ends=9 * DAY)
    later.write_folder(tmp_path)
    identity.refresh()
    assert identity.stats.is_rejected == 1
    now += timedelta(days=1, minutes=5)
    identity.refresh()
    assert (identity.stats.is_rejected, identity.stats.reloads) == (0, 1)


def test_clients_cannot_be_asked_for_certificates_of_no_authority(tmp_path: Path) -> None:
    folder = Authority().issue("server").write_folder(tmp_path)
    with pytest.raises(InvalidRequest, match="no authority is trusted"):
        TlsIdentity(TlsFiles(str(folder)), TlsRules(ClientAuth.REQUIRED))


@pytest.mark.parametrize("name", ["client", "node/1"])
def test_an_authority_of_clients_is_trusted_at_listeners_of_clients_alone(tmp_path: Path, name: str) -> None:
    """Also where it has issued the name of a member."""
    authority, of_clients = Authority(), Authority("of clients")
    folder = authority.issue_member("node/1").write_folder(tmp_path / "own", authority.certificate)
    settings = ProcessSettings(
        ssl_certificate_folder=str(folder),
        ssl_client_auth=ClientAuth.REQUIRED,
        http_security_protocol=PortProtocol.SSL,
        security_inter_broker_protocol=PortProtocol.SSL,
    )
    identity = identity_of(settings, Part.NODE, 1)
    assert identity is not None
    issued = of_clients.issue("client") if name == "client" else of_clients.issue_member(name)
    shows = issued.write_folder(tmp_path / "client")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(cadata=authority.certificate.decode())
    client.load_cert_chain(shows / "tls.crt", shows / "tls.key")
    listener, of_members = tls_rules(settings), (http_rules(settings), internal_rules(settings))
    with pytest.raises(ssl.SSLCertVerificationError):
        connected(client, identity.serving(listener))
    (folder / "clients-ca.crt").write_bytes(of_clients.certificate)
    identity.refresh()

    _, end = connected(client, identity.serving(listener))
    assert end.tls.getpeercert() and identity.stats.reloads == 1
    for rules in of_members:
        assert rules is not None
        with pytest.raises(ssl.SSLCertVerificationError):
            connected(client, identity.serving(rules))


def test_a_member_that_trusts_no_authority_dials_no_other_member(tmp_path: Path) -> None:
    """It would have taken whoever had such a name from any authority of the system, under any host."""
    folder = Authority().issue_member("node/1").write_folder(tmp_path)
    identity = TlsIdentity(TlsFiles(str(folder)), RULES)
    for dial in (lambda: identity.to(Part.META), lambda: identity.to_node(2)):
        with pytest.raises(InvalidRequest, match=r"no authority is trusted .* add ca\.crt to ssl\.certificate\.folder"):
            dial()


def test_a_member_does_not_lose_its_authorities_while_it_runs(tmp_path: Path) -> None:
    authority = Authority()
    folder = authority.issue_member("node/1").write_folder(tmp_path, authority.certificate)
    identity = TlsIdentity(TlsFiles(str(folder)), RULES)
    before = identity.to(Part.META)
    (folder / "ca.crt").unlink()
    authority.issue_member("node/1").write_folder(tmp_path)
    identity.refresh()
    assert identity.stats.is_rejected == 1 and identity.to(Part.META) is before


def test_many_authorities_are_loaded_once_and_not_when_a_member_is_dialled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,000 of them took 385 ms of the event loop for each node."""
    authority = Authority()
    folder = authority.issue_member("node/1").write_folder(tmp_path, authority.certificate)
    identity = TlsIdentity(TlsFiles(str(folder)), RULES)

    def load(*_: object) -> None:
        raise AssertionError("authorities are loaded where the files are read")

    monkeypatch.setattr(contexts, "_load_authorities", load)
    assert len({identity.to_node(number) for number in range(5)}) == 5
    assert identity.to_node(3) is identity.to_node(3)


def test_who_is_dialled_is_known_by_the_member_that_its_certificate_names(tmp_path: Path) -> None:
    authority = Authority()
    folder = authority.issue_member("node/1").write_folder(tmp_path / "own", authority.certificate)
    identity = TlsIdentity(TlsFiles(str(folder)), RULES)
    theirs = authority.issue_member("node/2").write_folder(tmp_path / "node-2")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(theirs / "tls.crt", theirs / "tls.key")
    connected(identity.to_node(2), server, "some.other.host")
    for other in (identity.to_node(3), identity.to(Part.META)):
        with pytest.raises(ssl.SSLCertVerificationError, match="is expected there"):
            connected(other, server)


@pytest.mark.parametrize(
    "rules", [TlsRules(versions=("TLSv1.1",)), TlsRules(versions=()), TlsRules(cipher_suites="NONE-SUCH")]
)
def test_rules_that_openssl_cannot_keep_are_refused(tmp_path: Path, rules: TlsRules) -> None:
    folder = Authority().issue("server").write_folder(tmp_path)
    with pytest.raises(InvalidRequest, match=r"ssl\."):
        TlsIdentity(TlsFiles(str(folder)), rules)


def test_an_encrypted_key_does_not_ask_the_terminal(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    authority = Authority()
    issued = authority.issue("server")
    key = serialization.load_pem_private_key(issued.key, None)
    hidden = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"sesame"),
    )
    folder = Issued(issued.certificate, hidden).write_folder(tmp_path)
    with pytest.raises(InvalidRequest, match="private key"):
        TlsIdentity(TlsFiles(str(folder)), RULES)
    TlsIdentity(TlsFiles(str(folder)), TlsRules(key_password="sesame"))
