"""A certificate for servers on loopback, and the authority that made it; for the cells that speak TLS."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Certificates:
    folder: Path
    """In the layout of a Secret of Kubernetes: `tls.crt`, `tls.key`, `ca.crt`."""
    keystore: Path
    """Key and certificate in one file, as Kafka reads them."""

    @property
    def authority(self) -> Path:
        return self.folder / "ca.crt"


def write(folder: Path) -> Certificates:
    """For 127.0.0.1, valid for a day, with keys on the curve P-256."""
    folder.mkdir(parents=True)
    root = ec.generate_private_key(ec.SECP256R1())
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bench")])
    now = datetime.datetime.now(datetime.UTC)

    def builder(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(name).public_key(public)
        return made.serial_number(x509.random_serial_number()).not_valid_before(now - _DAY).not_valid_after(now + _DAY)

    authority = builder(name, root.public_key())
    authority = authority.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    server = builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")]), key.public_key())
    server = server.add_extension(
        x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
    )
    encoding = serialization.Encoding.PEM
    authority_text = authority.sign(root, hashes.SHA256()).public_bytes(encoding)
    certificate = server.sign(root, hashes.SHA256()).public_bytes(encoding)
    secret = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "ca.crt").write_bytes(authority_text)
    (folder / "tls.crt").write_bytes(certificate)
    (folder / "tls.key").write_bytes(secret)
    keystore = folder / "keystore.pem"
    keystore.write_bytes(secret + certificate)
    return Certificates(folder, keystore)
