"""Subjects of certificates as Java 17 writes them (`X500Principal.getName`), which Kafka's rules for names see."""

from __future__ import annotations

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID as Of

from stratalog.model.errors import InvalidRequest
from stratalog.tls.subjects import member_of, member_of_chain, subject_of
from support.certificates import Authority, named

AUTHORITY = Authority()


def subject(*attributes: tuple[x509.ObjectIdentifier, str]) -> str:
    return subject_of_name(x509.Name([x509.NameAttribute(of, value) for of, value in attributes]))


def subject_of_name(name: x509.Name) -> str:
    pem = AUTHORITY.issue(name).certificate
    return subject_of(x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER))


@pytest.mark.parametrize(
    ("common_name", "as_java_writes_it"),
    [
        ("alice", "alice"),
        (" alice ", r"\ alice\ "),
        ("  two  words  ", r"\ \ two  words\ \ "),
        ("   ", r"\ \ \ "),
        ("#sharp", r"\#sharp"),
        ("a#b=c", r"a\#b\=c"),
        ('a "b" + c;<d>\\e,f', r"a \"b\" \+ c\;\<d\>\\e\,f"),
        ("\u65e5\u672c", "\u65e5\u672c"),
        ("a\nb", "a\nb"),
    ],
)
def test_letters_are_escaped(common_name: str, as_java_writes_it: str) -> None:
    assert subject((Of.COMMON_NAME, common_name)) == f"CN={as_java_writes_it}"


def test_the_most_special_part_comes_first() -> None:
    parts = ((Of.COUNTRY_NAME, "DE"), (Of.ORGANIZATION_NAME, "o"), (Of.ORGANIZATIONAL_UNIT_NAME, "ou"))
    assert subject(*parts, (Of.COMMON_NAME, "x")) == "CN=x,OU=ou,O=o,C=DE"
    parts = ((Of.DOMAIN_COMPONENT, "com"), (Of.DOMAIN_COMPONENT, "example"), (Of.USER_ID, "u1"))
    assert subject(*parts, (Of.COMMON_NAME, "x")) == "CN=x,UID=u1,DC=example,DC=com"
    parts = ((Of.STREET_ADDRESS, "Main 1"), (Of.LOCALITY_NAME, "K\u00f6ln"), (Of.STATE_OR_PROVINCE_NAME, "NRW"))
    assert subject(*parts) == "ST=NRW,L=K\u00f6ln,STREET=Main 1"


def test_attributes_without_a_keyword_are_numbers_and_bytes() -> None:
    assert subject((Of.COMMON_NAME, "bob"), (Of.EMAIL_ADDRESS, "bob@example.com")) == (
        "1.2.840.113549.1.9.1=#160f626f62406578616d706c652e636f6d,CN=bob"
    )
    assert subject((Of.SERIAL_NUMBER, "42"), (Of.TITLE, "Dr"), (Of.COMMON_NAME, "x")) == (
        "CN=x,2.5.4.12=#0c024472,2.5.4.5=#13023432"
    )
    long = subject((x509.ObjectIdentifier("1.2.3.4.5"), "x" * 200))
    assert long == "1.2.3.4.5=#0c81c8" + "78" * 200


def test_a_part_of_several_attributes_is_one_part() -> None:
    several = x509.RelativeDistinguishedName(
        [x509.NameAttribute(Of.COMMON_NAME, "erin"), x509.NameAttribute(Of.ORGANIZATIONAL_UNIT_NAME, "x")]
    )
    one = x509.RelativeDistinguishedName([x509.NameAttribute(Of.ORGANIZATION_NAME, "o")])
    assert subject_of_name(x509.Name([several, one])) == "O=o,OU=x+CN=erin"


# Certificates that OpenSSL verifies, and `cryptography` does not read -----------------------------------------------
_MEMBER = b"\x86\x17stratalog://prod/node/2"
_OF_IP = b"\x87\x04\x7f\0\0\1"
UNREADABLE_NAMES = {
    "an X.400 address": b"\xa3\x02\x30\0",
    "an EDI party": b"\xa5\x05\xa1\x03\x0c\x01x",
    "letters of another encoding": b"\x86\x0ahttps://\xf6/",
}


def _with_names(*names: bytes, times: int = 1) -> x509.Certificate:
    content = b"".join(names)
    return AUTHORITY.issue_with(b"\x30" + bytes([len(content)]) + content, times=times)


@pytest.mark.parametrize("kind", UNREADABLE_NAMES)
@pytest.mark.parametrize("more", [_MEMBER, _OF_IP], ids=["a member", "no member"])
def test_a_certificate_whose_names_cannot_be_read_is_refused_with_a_typed_error(kind: str, more: bytes) -> None:
    """Some of these errors are no `ValueError`s, and left the connection without an end."""
    odd = _with_names(UNREADABLE_NAMES[kind], more)
    with pytest.raises(InvalidRequest, match="cannot be read"):
        member_of(odd.public_bytes(Encoding.DER))
    with pytest.raises(InvalidRequest, match="cannot be read"):
        member_of_chain(odd.public_bytes(Encoding.PEM))


def test_a_certificate_with_its_names_twice_is_refused_with_a_typed_error() -> None:
    with pytest.raises(InvalidRequest, match="cannot be read"):
        member_of(_with_names(_MEMBER, times=2).public_bytes(Encoding.DER))


@pytest.mark.parametrize("data", [b"", b"\x30\x03\x02\x01\x01"], ids=["nothing", "another structure"])
def test_what_is_no_certificate_is_refused_with_a_typed_error(data: bytes) -> None:
    for read in (member_of, subject_of):
        with pytest.raises(InvalidRequest, match="cannot be read"):
            read(data)


def test_a_subject_of_another_encoding_is_refused_with_a_typed_error() -> None:
    good = AUTHORITY.issue(named("Muenchen")).certificate
    der = x509.load_pem_x509_certificate(good).public_bytes(Encoding.DER)
    with pytest.raises(InvalidRequest, match="cannot be read"):
        subject_of(der.replace(b"Muenchen", b"M\xfcenchen"))
