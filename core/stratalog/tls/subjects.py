"""The names in a certificate: its subject as text, as Java's `X500Principal.getName` (RFC 2253) gives it, which Kafka's
rules for names are written for; and the member of a cluster, which its URIs name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
_LONGEST_REASON: Final = 200
_ESCAPED: Final = ',=+<>#;"\\'


def subject_of(certificate: bytes) -> str:
    """`certificate` is DER, as OpenSSL returns the one of the other side. Raises: InvalidRequest for one whose subject
    cannot be read."""
    with reading_certificate():
        return name_text(x509.load_der_x509_certificate(certificate).subject)


def name_text(name: x509.Name) -> str:
    return ",".join("+".join(_attribute(one) for one in part) for part in reversed(list(name.rdns)))


def member_of(certificate: bytes) -> Member | None:
    """`certificate` is DER, as above. None: it names no member. Raises: InvalidRequest for a wrong name, for several,
    and for one whose names cannot be read."""
    with reading_certificate():
        return _member(x509.load_der_x509_certificate(certificate))


def member_of_chain(chain: bytes) -> Member | None:
    """Of the first certificate in a PEM text. Raises: InvalidRequest, as above."""
    with reading_certificate():
        return _member(x509.load_pem_x509_certificate(chain))


@contextmanager
def reading_certificate() -> Iterator[None]:
    """What OpenSSL verifies, `cryptography` may still refuse to read: kinds of names that it does not know, an
    extension that is there twice, letters of another encoding. Not all of its errors are `ValueError`s."""
    try:
        yield
    except InvalidRequest:
        raise
    except Exception as error:  # whatever it is, another process chose the bytes
        raise InvalidRequest(
            f"the certificate cannot be read ({str(error)[:_LONGEST_REASON]}): issue one with plain names"
        ) from None


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
