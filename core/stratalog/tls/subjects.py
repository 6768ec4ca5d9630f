"""The names in a certificate: its subject as text, as Java's `X500Principal.getName` (RFC 2253) gives it, which Kafka's
rules for names are written for; and the member of a cluster, which its URIs name."""

from __future__ import annotations

from typing import Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from stratalog.model.errors import InvalidRequest
from stratalog.model.members import Member, member_among

_KEYWORDS: Final = {
    NameOID.COMMON_NAME: "CN",
    NameOID.LOCALITY_NAME: "L",
    NameOID.STATE_OR_PROVINCE_NAME: "ST",
    NameOID.ORGANIZATION_NAME: "O",
    NameOID.ORGANIZATIONAL_UNIT_NAME: "OU",
    NameOID.COUNTRY_NAME: "C",
    NameOID.STREET_ADDRESS: "STREET",
    NameOID.DOMAIN_COMPONENT: "DC",
    NameOID.USER_ID: "UID",
}
_ESCAPED: Final = ',=+<>#;"\\'


def subject_of(certificate: bytes) -> str:
    """`certificate` is DER, as OpenSSL returns the one of the other side.

    Raises: ValueError for what is not a certificate.
    """
    return name_text(x509.load_der_x509_certificate(certificate).subject)


def name_text(name: x509.Name) -> str:
    return ",".join("+".join(_attribute(one) for one in part) for part in reversed(list(name.rdns)))


def member_of(certificate: bytes) -> Member | None:
    """`certificate` is DER, as above. None: it names no member. Raises: InvalidRequest for a wrong name, or several."""
    try:
        return _member(x509.load_der_x509_certificate(certificate))
    except ValueError as error:
        raise InvalidRequest(f"the certificate cannot be read: {error}") from None


def member_of_chain(chain: bytes) -> Member | None:
    """Of the first certificate in a PEM text. Raises: InvalidRequest, as above."""
    try:
        return _member(x509.load_pem_x509_certificate(chain))
    except ValueError as error:
        raise InvalidRequest(f"the certificate cannot be read: {error}") from None


def _member(certificate: x509.Certificate) -> Member | None:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
    return member_among(names.get_values_for_type(x509.UniformResourceIdentifier))


def _attribute(attribute: x509.NameAttribute[str | bytes]) -> str:
    keyword = _KEYWORDS.get(attribute.oid)
    if keyword is None or not isinstance(attribute.value, str):
        name = x509.Name([attribute]).public_bytes()
        return f"{attribute.oid.dotted_string}=#{_value_of(name).hex()}"
    return f"{keyword}={_escaped(attribute.value)}"


def _value_of(name: bytes) -> bytes:
    """The value within an encoded name of one attribute: SEQUENCE { SET { SEQUENCE { OID, value } } }."""
    for _ in range(3):
        name = _content(name)
    return name[_end_of(name) :]


def _content(data: bytes) -> bytes:
    return data[_head_bytes(data) :]


def _head_bytes(data: bytes) -> int:
    return 2 if data[1] < 0x80 else 2 + (data[1] & 0x7F)


def _end_of(data: bytes) -> int:
    head = _head_bytes(data)
    return head + (data[1] if head == 2 else int.from_bytes(data[2:head], "big"))


def _escaped(value: str) -> str:
    inner = value.strip(" ")
    before = len(value) - len(value.lstrip(" "))
    after = len(value) - before - len(inner)
    text = "".join(f"\\{letter}" if letter in _ESCAPED else letter for letter in inner)
    return "\\ " * before + text + "\\ " * after
