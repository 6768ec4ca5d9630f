"""A cluster's own authority, and the certificates that it issues: for nodes, the meta service, the operator, clients.

All keys are ECDSA P-256. A part of the cluster is named by the URI `stratalog://CLUSTER-ID/…` in its certificate, which
only the authority of the cluster can give it (docs/security-spec.md, section 2). Times are arguments. Cost: some 100 us
for a certificate.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from stratalog.model.addresses import is_host
from stratalog.model.errors import Conflict, InvalidRequest
from stratalog.tls.issuing import certificate_builder, key_text, key_usage
from stratalog.tls.subjects import reading_certificate

SCHEME: Final = "stratalog"
_CLUSTER_ID: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_LONGEST_NAME: Final = 64
"""Of a common name (RFC 5280)."""
_AUTHORITY_NAME: Final = "Stratalog authority"
_PEM: Final = serialization.Encoding.PEM


@dataclass(frozen=True, slots=True)
class Issued:
    """PEM texts. The key is in PKCS #8 without a password, which Java's clients can read, too."""

    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Holder:
    """The subject of a certificate. A holder with hosts is a server under these names and addresses."""

    name: str
    hosts: tuple[str, ...] = ()
    part: str = ""
    """The path of its URI, such as `node/1`; empty: a client, which has none."""

    def __post_init__(self) -> None:
        if not 0 < len(self.name) <= _LONGEST_NAME or not self.name.isprintable():
            raise InvalidRequest(
                f"name {self.name[:80]!r} of a certificate: expected 1 to {_LONGEST_NAME} printable characters"
            )
        for host in self.hosts:
            if not _is_server(host):
                raise InvalidRequest(
                    f"--host {host[:80]!r}: expected a name or an address as clients use it, without a port"
                )


def node_holder(node_id: int, hosts: Sequence[str]) -> Holder:
    return Holder(f"node-{node_id}", tuple(hosts), f"node/{node_id}")


def meta_holder(hosts: Sequence[str]) -> Holder:
    return Holder("meta", tuple(hosts), "meta")


def operator_holder(hosts: Sequence[str]) -> Holder:
    return Holder("operator", tuple(hosts), "operator")


def client_holder(name: str) -> Holder:
    return Holder(name)


class Authority:
    """A certificate that signs others, with its key. Invariant: they fit, and the certificate names the cluster."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, cluster_id: str) -> None:
        self._certificate = certificate
        self._key = key
        self.cluster_id = cluster_id

    @classmethod
    def create(cls, cluster_id: str, valid_for: timedelta, now: datetime) -> Authority:
        """Raises: InvalidRequest."""
        if _CLUSTER_ID.fullmatch(cluster_id) is None:
            raise InvalidRequest(
                f"cluster id {cluster_id[:80]!r}: expected up to 63 letters, digits, or . _ - as a cluster's id has"
            )
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, cluster_id),
                x509.NameAttribute(NameOID.COMMON_NAME, _AUTHORITY_NAME),
            ]
        )
        uri = x509.UniformResourceIdentifier(f"{SCHEME}://{cluster_id}")
        builder = certificate_builder(name, name, key.public_key(), now, _end_of(now, now + valid_for))
        certificate = (
            builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectAlternativeName([uri]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key, cluster_id)

    @classmethod
    def load(cls, certificate: bytes, key: bytes) -> Authority:
        """From PEM texts. Raises: InvalidRequest with what is wrong; no key is quoted."""
        try:
            found = x509.load_pem_x509_certificate(certificate)
        except (ValueError, x509.InvalidVersion) as error:
            raise InvalidRequest(f"no certificate can be read: {error}") from None
        try:
            private = serialization.load_pem_private_key(key, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise InvalidRequest("no private key can be read, or it has a password") from None
        if not isinstance(private, ec.EllipticCurvePrivateKey) or private.public_key() != found.public_key():
            raise InvalidRequest("the private key is not that of the certificate")
        cluster_ids = [uri.removeprefix(f"{SCHEME}://") for uri in uris_of(found) if uri.startswith(f"{SCHEME}://")]
        if not _is_authority(found) or len(cluster_ids) != 1 or _CLUSTER_ID.fullmatch(cluster_ids[0]) is None:
            raise InvalidRequest("it is not the certificate of an authority of a cluster")
        return cls(found, private, cluster_ids[0])

    @property
    def certificate(self) -> bytes:
        """PEM: whoever trusts the authority has it."""
        return self._certificate.public_bytes(_PEM)

    @property
    def key(self) -> bytes:
        """PEM. Its owner can issue a certificate for any part of the cluster."""
        return key_text(self._key)

    @property
    def expires(self) -> datetime:
        return self._certificate.not_valid_after_utc

    def issue(self, holder: Holder, valid_for: timedelta, now: datetime) -> Issued:
        """A new key with its certificate. It is valid for no longer than the authority.

        Raises: InvalidRequest for an authority that has expired.
        """
        uri = [x509.UniformResourceIdentifier(f"{SCHEME}://{self.cluster_id}/{holder.part}")] if holder.part else []
        names = [*map(_general_name, holder.hosts), *uri]
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if holder.hosts:
            usages.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, holder.name)])
        return self._issue(subject, names, usages, valid_for, now)

    def renew(self, certificate: bytes, valid_for: timedelta, now: datetime) -> Issued:
        """A new key and certificate for the holder of one that this authority has issued.

        Raises: InvalidRequest, Conflict for a certificate of another authority.
        """
        known = load_certificate(certificate)
        try:
            known.verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
            raise Conflict("another authority has issued the certificate: issue a new one in its place") from None
        names = _names_of(known)
        usages = list(known.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
        return self._issue(known.subject, names, usages, valid_for, now)

    def _issue(
        self,
        subject: x509.Name,
        names: Sequence[x509.GeneralName],
        usages: Sequence[x509.ObjectIdentifier],
        valid_for: timedelta,
        now: datetime,
    ) -> Issued:
        if self.expires <= now:
            raise InvalidRequest(f"the authority expired at {self.expires:%Y-%m-%d %H:%M} UTC: create another one")
        key = ec.generate_private_key(ec.SECP256R1())
        public = key.public_key()
        end = _end_of(now, min(now + valid_for, self.expires))
        builder = certificate_builder(subject, self._certificate.subject, public, now, end)
        issuer_key = self._key.public_key()
        builder = (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return Issued(certificate.public_bytes(_PEM), key_text(key))


def load_certificate(pem: bytes) -> x509.Certificate:
    """The first of a chain. Raises: InvalidRequest."""
    try:
        return x509.load_pem_x509_certificates(pem)[0]
    except (ValueError, IndexError, x509.InvalidVersion) as error:
        raise InvalidRequest(f"no certificate can be read: {error}") from None


def uris_of(certificate: x509.Certificate) -> list[str]:
    return [one.value for one in _names_of(certificate) if isinstance(one, x509.UniformResourceIdentifier)]


def hosts_of(certificate: x509.Certificate) -> list[str]:
    """Names and addresses under which its holder is a server."""
    return [str(one.value) for one in _names_of(certificate) if isinstance(one, (x509.DNSName, x509.IPAddress))]


def is_key_of(certificate: x509.Certificate, key: bytes, password: str = "") -> bool:
    """Whether the PEM text holds the private key of the certificate."""
    encoded = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    try:
        private = serialization.load_pem_private_key(key, password.encode() or None)
        return private.public_key().public_bytes(*encoded) == certificate.public_key().public_bytes(*encoded)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False


def is_issued_by(certificate: x509.Certificate, authorities: bytes) -> bool:
    """Whether one of these authorities (PEM) has signed it."""
    for authority in x509.load_pem_x509_certificates(authorities):
        try:
            certificate.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
            continue
        return True
    return False


def _is_server(host: str) -> bool:
    if ":" in host:
        try:
            return ipaddress.ip_address(host).version == 6
        except ValueError:
            return False
    return is_host(host.removeprefix("*."))


def _is_authority(certificate: x509.Certificate) -> bool:
    with reading_certificate():
        try:
            return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        except x509.ExtensionNotFound:
            return False


def _names_of(certificate: x509.Certificate) -> list[x509.GeneralName]:
    """Empty where it has none, or where they cannot be read."""
    try:
        with reading_certificate():
            return list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except InvalidRequest:
        return []


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _end_of(now: datetime, end: datetime) -> datetime:
    if end <= now:
        raise InvalidRequest("a certificate is valid for some time: give --valid a time such as 365d")
    return end
