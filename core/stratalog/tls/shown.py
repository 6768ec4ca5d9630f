"""What a certificate says of its holder, for people: of the other side of a connection, or of a client's own file.

Whoever shows a certificate chose its bytes: what cannot be read is refused with a typed error. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from cryptography import x509

from stratalog.tls.authority import hosts_of
from stratalog.tls.subjects import name_text, reading_certificate


@dataclass(frozen=True, slots=True)
class ShownCertificate:
    subject: str
    issuer: str
    hosts: tuple[str, ...]
    """Names and addresses under which its holder is a server."""
    ends: datetime
    """In UTC."""


def shown_certificate(certificate: bytes) -> ShownCertificate:
    """`certificate` is DER, as OpenSSL returns the one of the other side. Raises: InvalidRequest."""
    with reading_certificate():
        return _shown(x509.load_der_x509_certificate(certificate))


def first_of_chain(chain: bytes) -> ShownCertificate:
    """Of a PEM text. Raises: InvalidRequest."""
    with reading_certificate():
        return _shown(x509.load_pem_x509_certificate(chain))


def _shown(found: x509.Certificate) -> ShownCertificate:
    names = name_text(found.subject), name_text(found.issuer)
    return ShownCertificate(*names, tuple(hosts_of(found)), found.not_valid_after_utc)
