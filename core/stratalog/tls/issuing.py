"""What all certificates of a cluster have in common, whichever part issues them: the command line or the operator."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

CLOCKS_DIFFER: Final = timedelta(minutes=5)
"""A certificate is valid so long before it is issued: the clock of its reader may be behind."""


def certificate_builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, end: datetime
) -> x509.CertificateBuilder:
    """Requires: `end` is after `now`."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS_DIFFER)
        .not_valid_after(end)
    )


def key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    """Of an authority, or of a certificate that it issues."""
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def key_text(key: ec.EllipticCurvePrivateKey) -> bytes:
    """As PEM, PKCS#8, not encrypted."""
    pem = serialization.Encoding.PEM
    return key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
