"""X.509 for the operator's own authority: makes keys and certificates, and reads what was made.

Keys are ECDSA over P-256. Serial numbers are random. Times are given by the caller, so that a test has its own.
No key is in an error or a text. Cost: a millisecond or two for each certificate.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from stratalog.model.errors import InvalidRequest
from stratalog.tls.issuing import certificate_builder, key_text, key_usage
from stratalog.tls.subjects import reading_certificate
from stratalog_operator.kube.secret_texts import text_of
from stratalog_operator.specs.certificate_secrets import AUTHORITY, FORMER, NEXT

_PEM: Final = serialization.Encoding.PEM
_CERTIFICATE: Final = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Pair:
    """PEM texts."""

    certificate: str
    key: str = field(repr=False)


def make_authority(name: str, now: datetime, days: int) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    made = (
        certificate_builder(subject, subject, key.public_key(), now, now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(key_usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pair(made, key)


def issue(authority: Pair, name: str, names: Collection[str], now: datetime, days: int) -> Pair:
    """For a server and a client. `names`: `DNS:`, `IP:` and `URI:`; without any it is for a client alone. It ends with
    its authority at the latest."""
    issuer = x509.load_pem_x509_certificate(authority.certificate.encode())
    signer = serialization.load_pem_private_key(authority.key.encode(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey), "made here"
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    ends = min(now + timedelta(days=days), issuer.not_valid_after_utc)
    usages = [*([ExtendedKeyUsageOID.SERVER_AUTH] if names else []), ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = (
        certificate_builder(subject, issuer.subject, key.public_key(), now, ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if names:
        found = x509.SubjectAlternativeName([_name(one) for one in sorted(names)])
        builder = builder.add_extension(found, critical=False)
    return _pair(builder.sign(signer, hashes.SHA256()), key)


def _pair(made: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(made.public_bytes(_PEM).decode(), key_text(key).decode())


def _name(text: str) -> x509.GeneralName:
    kind, _, value = text.partition(":")
    match kind:
        case "DNS":
            return x509.DNSName(value)
        case "IP":
            return x509.IPAddress(ipaddress.ip_address(value))
        case _:
            return x509.UniformResourceIdentifier(value)


# Reading --------------------------------------------------------------------------------------------------------------
def read_certificate(text: str) -> x509.Certificate:
    """Raises: ValueError."""
    try:
        with reading_certificate():
            found = x509.load_pem_x509_certificate(text.encode())
            found.public_key()  # of a kind that is known
            return found
    except InvalidRequest as error:
        raise ValueError(str(error)) from None


def certificate_text(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(_PEM).decode()


def subject_of(certificate: x509.Certificate) -> str:
    """As rules name it; empty where it cannot be read."""
    try:
        with reading_certificate():
            return certificate.subject.rfc4514_string()
    except InvalidRequest:
        return ""


def fingerprint(certificate: x509.Certificate) -> str:
    return certificate.fingerprint(hashes.SHA256()).hex()


def is_issued_by(leaf: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        with reading_certificate():
            leaf.verify_directly_issued_by(issuer)
    except InvalidRequest:
        return False
    return True


def is_key_of(key: str, certificate: x509.Certificate) -> bool:
    try:
        with reading_certificate():
            found = serialization.load_pem_private_key(key.encode(), None)
            return found.public_key() == certificate.public_key()
    except InvalidRequest:
        return False


def can_issue(certificate: x509.Certificate) -> bool:
    """Whether it is of an authority with a key of the kind that `issue` signs with."""
    try:
        with reading_certificate():
            constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
            return constraints.ca and isinstance(certificate.public_key(), ec.EllipticCurvePublicKey)
    except InvalidRequest:
        return False


def names_of(certificate: x509.Certificate) -> frozenset[str]:
    try:
        with reading_certificate():
            found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except InvalidRequest:  # it has none, or they cannot be read
        return frozenset()
    names = {f"DNS:{one}" for one in found.get_values_for_type(x509.DNSName)}
    names |= {f"IP:{one}" for one in found.get_values_for_type(x509.IPAddress)}
    return frozenset(names | {f"URI:{one}" for one in found.get_values_for_type(x509.UniformResourceIdentifier)})


def trusted_texts(authority: Mapping[str, Any], now: datetime) -> str:
    """All authorities that are to be trusted, as `ca.crt`: former ones until they expire. A next one that cannot be
    read is left out, because with it OpenSSL might take none of the others."""
    present, following = text_of(authority, AUTHORITY), text_of(authority, NEXT)
    found = [] if present is None else [present]
    found += [] if following is None or not _is_readable(following) else [following]
    return "".join(text if text.endswith("\n") else f"{text}\n" for text in (*found, *former_texts(authority, now)))


def former_texts(authority: Mapping[str, Any], now: datetime) -> list[str]:
    """Each former authority that has not expired, the last one first."""
    found = _CERTIFICATE.findall(text_of(authority, FORMER) or "")
    return [f"{text}\n" for text in found if _ends(text) > now]


def _is_readable(text: str) -> bool:
    try:
        read_certificate(text)
    except ValueError:
        return False
    return True


def _ends(text: str) -> datetime:
    try:
        return read_certificate(text).not_valid_after_utc
    except ValueError:
        return datetime(1970, 1, 1, tzinfo=UTC)
