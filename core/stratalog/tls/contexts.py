"""TLS contexts from PEM texts, which are checked before they are used.

OpenSSL takes keys from files alone: the texts are shown to it as a file in memory, so that no key is written to a disk,
and a read-only file system is enough.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Self

from cryptography import x509

from stratalog.event_loop.bounded_tls import BoundedTls
from stratalog.event_loop.tls_sessions import ServerContext
from stratalog.model.errors import InvalidRequest
from stratalog.settings.choices import ClientAuth
from stratalog.tls.material import TlsMaterial
from stratalog.tls.subjects import reading_certificate

_VERIFY: Final = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}
VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
STRONG_CIPHERS: Final = "ECDH+AESGCM:ECDH+CHACHA20:ECDH+AES:DHE+AES:!aNULL:!eNULL:!aDSS:!SHA1:!AESCCM"
"""With forward secrecy and without SHA-1. What Python chooses depends on its build: that of Debian takes more."""


@dataclass(frozen=True, slots=True)
class TlsRules:
    """What a process asks of a connection, whatever its certificate is."""

    client_auth: ClientAuth = ClientAuth.NONE
    asked_by: str = "ssl.client.auth"
    """The setting that asks for certificates, for errors."""
    takes_clients: bool = False
    """Whether certificates of `TlsMaterial.client_authorities` are trusted, too."""
    versions: tuple[str, ...] = tuple(VERSIONS)
    cipher_suites: str = ""
    """OpenSSL's list for TLS 1.2; empty: `STRONG_CIPHERS`. Those of TLS 1.3 are all strong."""
    key_password: str = ""


def server_context(material: TlsMaterial, rules: TlsRules) -> ServerContext:
    """Raises: InvalidRequest with what is wrong with the key, the certificates or the rules."""
    context = ServerContext()
    # A resumed session would skip the check of a client's certificate, which may have been replaced or have expired.
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.num_tickets = 0
    _apply(context, rules)
    _load_own(context, material, rules.key_password)
    if rules.client_auth is not ClientAuth.NONE:
        authorities = [material.authorities, material.client_authorities if rules.takes_clients else b""]
        if not any(authorities):
            raise InvalidRequest(
                f"{rules.asked_by} asks clients for certificates, and no authority is trusted: "
                "add ca.crt to ssl.certificate.folder, or set ssl.truststore.location"
            )
        _load_authorities(context, b"\n".join(filter(None, authorities)))
        context.verify_mode = _VERIFY[rules.client_auth]
    return context


def client_context(material: TlsMaterial, rules: TlsRules) -> ssl.SSLContext:
    """For connections of this process to others; it shows its own certificate if it has one.

    Raises: InvalidRequest, as `server_context`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.sslobject_class = BoundedTls
    _apply(context, rules)
    if material.chain:
        _load_own(context, material, rules.key_password)
    if material.authorities:
        _load_authorities(context, material.authorities)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return context


class MembersContext:
    """For connections to members of the cluster: the other end proves who it is by the member that its certificate
    names, and not by the name of its host. The authorities are loaded once for all members.

    Raises: InvalidRequest, as `server_context`, and where no authority is trusted: any authority of the system could
    issue a certificate with such a name.
    """

    def __init__(self, material: TlsMaterial, rules: TlsRules) -> None:
        if not material.authorities:
            raise InvalidRequest(
                "the certificate of this process names a member of a cluster, and no authority is trusted to name the "
                "others: add ca.crt to ssl.certificate.folder, or set ssl.truststore.location"
            )
        self._shared = client_context(material, rules)
        self._shared.check_hostname = False
        self._shared.sslobject_class = _ToMember

    def to(self, why_not: Callable[[bytes], str | None]) -> ssl.SSLContext:
        """`why_not` gets the certificate of the other end (DER) once OpenSSL has verified it. Cheap: 0.1 ms."""
        return _MemberContext(self._shared, why_not)


class _MemberContext(ssl.SSLContext):
    """Adds to `shared` which member is expected at the other end. It trusts no authority of its own."""

    def __new__(cls, shared: ssl.SSLContext, why_not: Callable[[bytes], str | None]) -> Self:
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, shared: ssl.SSLContext, why_not: Callable[[bytes], str | None]) -> None:
        self._shared = shared
        self._why_not = why_not

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        made = self._shared.wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        assert isinstance(made, _ToMember), "the class of `shared`"
        made.why_not = self._why_not
        return made


class _ToMember(BoundedTls):
    why_not: Callable[[bytes], str | None]

    def do_handshake(self) -> None:
        super().do_handshake()
        why = self.why_not(self.getpeercert(binary_form=True) or b"")
        if why is not None:
            raise ssl.SSLCertVerificationError(ssl.SSL_ERROR_SSL, why)


def expires(material: TlsMaterial) -> datetime | None:
    """When the own certificate, or one that it needs, is valid no longer; None: there is none."""
    own = _certificates(material.chain) if material.chain else []
    return min((one.not_valid_after_utc for one in own), default=None)


def check_times(material: TlsMaterial, now: datetime) -> None:
    """That the own certificates are valid now. Raises: InvalidRequest."""
    for one in _certificates(material.chain):
        with reading_certificate():
            name = one.subject.rfc4514_string()
        if one.not_valid_after_utc <= now:
            raise InvalidRequest(f"the certificate of {name} expired at {one.not_valid_after_utc:%Y-%m-%d %H:%M} UTC")
        if one.not_valid_before_utc > now:
            raise InvalidRequest(
                f"the certificate of {name} is valid from {one.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on: "
                "check the clock of this machine"
            )


def now_utc() -> datetime:
    return datetime.now(UTC)


def _apply(context: ssl.SSLContext, rules: TlsRules) -> None:
    wrong = [one for one in rules.versions if one not in VERSIONS]
    if wrong or not rules.versions:
        raise InvalidRequest(f"ssl.enabled.protocols: expected some of {', '.join(VERSIONS)}, not {rules.versions}")
    chosen = sorted(VERSIONS[one] for one in rules.versions)
    context.minimum_version, context.maximum_version = chosen[0], chosen[-1]
    try:
        context.set_ciphers(rules.cipher_suites or STRONG_CIPHERS)
    except ssl.SSLError:
        raise InvalidRequest(f"ssl.cipher.suites: OpenSSL knows no cipher of {rules.cipher_suites[:200]!r}") from None


def _load_own(context: ssl.SSLContext, material: TlsMaterial, password: str) -> None:
    if not material.chain:
        raise InvalidRequest("a port with TLS needs a certificate: set ssl.certificate.folder")
    _certificates(material.chain)
    try:
        with _as_file(material.chain) as chain, _as_file(material.key) as key:
            # An empty password, so that OpenSSL does not ask at the terminal.
            context.load_cert_chain(chain, key, password=lambda: password)
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"the private key cannot be used with the certificate: {_why(error)}") from None


def _load_authorities(context: ssl.SSLContext, authorities: bytes) -> None:
    _certificates(authorities)
    try:
        with _as_file(authorities) as file:
            context.load_verify_locations(file)  # without the interpreter's lock, which a text would be read with
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"the trusted authorities cannot be used: {_why(error)}") from None


def _certificates(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except (ValueError, x509.InvalidVersion) as error:
        raise InvalidRequest(f"no certificate can be read: {error}") from None


def _why(error: Exception) -> str:
    """OpenSSL's reason without its place in C; it never quotes the key."""
    reason = getattr(error, "reason", None)
    return str(reason).replace("_", " ").lower() if reason else str(error).partition(" (_ssl")[0]


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
