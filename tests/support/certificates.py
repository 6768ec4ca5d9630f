"""An authority of its own for a test, and certificates of it for servers on 127.0.0.1 and for clients, as PEM files."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)
_PEM = serialization.Encoding.PEM
_ECDSA_WITH_SHA256 = bytes.fromhex("300a06082a8648ce3d040302")


@dataclass(frozen=True, slots=True)
class Certificates:
    """Paths."""

    ca: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path


@dataclass(frozen=True, slots=True)
class Issued:
    """PEM texts."""

    certificate: bytes
    key: bytes

    def write_folder(self, folder: Path, authority: bytes | None = None) -> Path:
        """As a mounted Secret has them."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tls.crt").write_bytes(self.certificate)
        (folder / "tls.key").write_bytes(self.key)
        if authority is not None:
            (folder / "ca.crt").write_bytes(authority)
        return folder


class Authority:
    def __init__(self, name: str = "test authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = named(name)
        self._certificate = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def certificate(self) -> bytes:
        return self._certificate.public_bytes(_PEM)

    def issue(
        self,
        subject: str | x509.Name,
        *,
        host: str = "127.0.0.1",
        begins: datetime.timedelta = -DAY,
        ends: datetime.timedelta = 2 * DAY,
        is_rsa: bool = False,
        uris: Sequence[str] = (),
    ) -> Issued:
        """`host`: a name or an address; `begins` and `ends` count from now; `uris`: further names."""
        key = rsa.generate_private_key(65_537, 2_048) if is_rsa else ec.generate_private_key(ec.SECP256R1())
        name = named(subject) if isinstance(subject, str) else subject
        certificate = (
            _builder(name, self._name, key.public_key(), begins, ends)
            .add_extension(
                x509.SubjectAlternativeName([_host(host), *map(x509.UniformResourceIdentifier, uris)]), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        private = key.private_bytes(_PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption())
        return Issued(certificate.public_bytes(_PEM), private)

    def issue_unreadable(self, host: str) -> Issued:
        """OpenSSL takes it, and `cryptography` cannot read its subject: an old kind of text that is no UTF-8."""
        issued = self.issue("Muenchen", host=host)
        signed = x509.load_pem_x509_certificate(issued.certificate).tbs_certificate_bytes
        signed = signed.replace(b"\x0c\x08Muenchen", b"\x14\x08M\xfcenchen")
        signature = b"\0" + self._key.sign(signed, ec.ECDSA(hashes.SHA256()))
        der = _of_tag(0x30, signed + _ECDSA_WITH_SHA256 + _of_tag(0x03, signature))
        return Issued(ssl.DER_cert_to_PEM_cert(der).encode(), issued.key)

    def issue_with(self, names: bytes, *, times: int = 1) -> x509.Certificate:
        """`names`: the encoded alternative names, which may be odd; `times`: how often the certificate has them."""
        made = _builder(named("odd"), self._name, ec.generate_private_key(ec.SECP256R1()).public_key())
        for number in range(times):
            # The builder takes each extension once: the others get an identifier of the same length, for now.
            identifier = x509.ObjectIdentifier("2.5.29.17" if not number else f"2.5.29.{110 + number}")
            made = made.add_extension(x509.UnrecognizedExtension(identifier, names), critical=False)
        der = made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)
        for number in range(1, times):
            der = der.replace(b"\x06\x03\x55\x1d" + bytes([110 + number]), b"\x06\x03\x55\x1d\x11")
        return x509.load_der_x509_certificate(der)

    def issue_member(self, part: str, cluster: str = "prod", *, host: str = "127.0.0.1") -> Issued:
        """`part`: `node/1`, `meta`, `operator`."""
        return self.issue(part.replace("/", "-"), host=host, uris=[f"stratalog://{cluster}/{part}"])


def _of_tag(tag: int, content: bytes) -> bytes:
    size = len(content).to_bytes((len(content).bit_length() + 7) // 8)
    return bytes([tag, *(size if len(content) < 0x80 else bytes([0x80 | len(size)]) + size)]) + content


def make_certificates(folder: Path) -> Certificates:
    folder.mkdir(parents=True, exist_ok=True)
    authority = Authority()
    made = Certificates(*(folder / f"{part}.pem" for part in ("ca", "server", "server-key", "client", "client-key")))
    made.ca.write_bytes(authority.certificate)
    for common_name, path, key_path in (
        ("server", made.server, made.server_key),
        ("meta-client", made.client, made.client_key),
    ):
        issued = authority.issue(common_name)
        path.write_bytes(issued.certificate)
        key_path.write_bytes(issued.key)
    return made


def named(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey,
    begins: datetime.timedelta = -DAY,
    ends: datetime.timedelta = 2 * DAY,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
    )
