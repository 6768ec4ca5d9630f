"""One connection to a Kafka listener, as far as the login and what came of it: connect, TLS, SASL, then requests.

Blocking, with a time limit for each answer. What goes wrong is raised as what it means: which setting of the client, of
the certificate or of the listener does not fit, and what to do. Nothing that proves a user is in an error.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from stratalog.connect.client_settings import (
    BEARER,
    PASSWORD_VARIABLE,
    PLAIN_TEXT,
    ClientSettings,
)
from stratalog.kafka.error_codes import ErrorCode
from stratalog.kafka.errors import MalformedFrame
from stratalog.kafka.frames import is_flexible
from stratalog.kafka.messages import build, encode_entity, request_type, response_type
from stratalog.kafka.reader import read_entity
from stratalog.machines.sasl.scram_client import ScramClient
from stratalog.model.errors import InvalidRequest, OutcomeUnknown, StratalogError, Unavailable, WrongServer
from stratalog.model.rights import Operation
from stratalog.model.scram import ScramMechanism
from stratalog.telemetry.printable import printable

TIMEOUT_S: Final = 30.0
_QUICK_S: Final = 5.0
_SHORT_S: Final = 1.5
_MOST_BYTES: Final = 64 << 20
_CLIENT_ID: Final = b"stratalog"
_HANDSHAKE, _AUTHENTICATE, _API_VERSIONS = 17, 36, 18
_METADATA: Final = 3
_METADATA_VERSION: Final = 8
"""The first in which a broker says what the client may do with a topic."""
_NOT_SAID: Final = -(1 << 31)
_HTTP_PORT: Final = "an admin or meta port, no Kafka listener: name the address where Kafka clients connect"
_SCRAM: Final = {one.mechanism_name: one for one in ScramMechanism}
_ALERT, _HANDSHAKE_RECORD = b"\x15", b"\x16"
_QUESTION: Final = bytes.fromhex("00000013 0012 0000 00000001 0009") + _CLIENT_ID
"""ApiVersions (18), version 0, with correlation id 1: the one request that every broker answers."""
_ANSWERED: Final = bytes.fromhex("00000001")
_MISMATCH: Final = (62, 64)
"""X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH"""
_EXPIRED, _NOT_YET = 10, 9
_REFUSED: Final = ("UNKNOWN_CA", "BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN", "DECRYPT_ERROR")
"""Alerts of servers that do not take a client's certificate; the last, where another authority with the name of a known
one issued it."""
_UNKNOWN_AUTHORITY: Final = (2, 7, 18, 19, 20, 21)
"""Issuers that are not known; 7: one that has only the name of a known one."""


class LoginRefused(InvalidRequest):
    """The listener does not take the user, the password, or the mechanism."""


class CertificateRefused(InvalidRequest):
    """One of the two sides does not take the certificate of the other."""


class ListenerConnection:
    """Open and logged in once it is made; `close` ends it."""

    def __init__(
        self, host: str, port: int, settings: ClientSettings = PLAIN_TEXT, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Raises: Unavailable where nothing answers; WrongServer for something else than such a listener;
        CertificateRefused, LoginRefused; InvalidRequest for files of the client that cannot be used."""
        self.where = f"{host}:{port}"
        self.host, self.port = host, port
        self.settings = settings
        self.mechanisms: tuple[str, ...] = ()
        """That the listener offers, where the client logs in."""
        self.versions: dict[int, tuple[int, int]] = {}
        """Of each API, the oldest and the newest that the broker serves."""
        self._timeout_s = timeout_s
        self._number = 0
        context = tls_context(settings) if settings.protocol.is_tls else None
        self._socket: socket.socket = connected(host, port, timeout_s)
        try:
            if context is not None:
                self._socket = self._secured(context)
            self._read_versions()
            if settings.protocol.is_sasl:
                self._log_in()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> ListenerConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def tls(self) -> ssl.SSLSocket | None:
        return self._socket if isinstance(self._socket, ssl.SSLSocket) else None

    def ask(self, api_key: int, version: int, *, is_write: bool = False, **fields: object) -> Any:
        """One request. Raises: Unavailable where nothing was done, OutcomeUnknown for a write whose answer was lost."""
        body = encode_entity(build(request_type(api_key, version), **fields))
        lost: type[StratalogError] = OutcomeUnknown if is_write else Unavailable
        try:
            return read_entity(response_type(api_key, version), self._exchange(api_key, version, body))
        except (OSError, EOFError, MalformedFrame) as error:
            self._refuse_without_login(error)
            raise lost(f"{self.where}: the answer was lost ({_words(error)}): look before you ask again") from None

    def rights_to_topic(self, topic: str) -> frozenset[Operation] | None:
        """What the broker lets this client do with a topic, which asking never creates. Empty where the client may not
        see it; None where the broker does not say. Raises: as `ask`."""
        answer = self.ask(
            _METADATA,
            min(_METADATA_VERSION, self.versions[_METADATA][1]),
            topics=[{"name": topic}],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=True,
        )
        (found,) = answer.topics
        if found.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return frozenset()
        bits: int = getattr(found, "topic_authorized_operations", _NOT_SAID)
        if found.error_code != ErrorCode.NONE or bits == _NOT_SAID:
            return None
        return frozenset(one for one in Operation if bits & 1 << one)

    def require_no_login(self) -> None:
        """That what the client has shown is enough for this listener. Raises: LoginRefused; Unavailable."""
        if self.settings.protocol.is_sasl or _HANDSHAKE not in self.versions:
            return
        answer = self._step(_HANDSHAKE, 1, mechanism="")
        if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            raise LoginRefused(f"{self.where}: {_needs_login(tuple(answer.mechanisms), self.settings)}")

    # Opening --------------------------------------------------------------------------------------------------------
    def _secured(self, context: ssl.SSLContext) -> ssl.SSLSocket:
        try:
            return context.wrap_socket(self._socket, server_hostname=self.host)
        except ssl.SSLCertVerificationError as error:
            raise CertificateRefused(self._about_certificate(error)) from None
        except (ssl.SSLError, OSError) as error:
            self._refuse_other_server()
            if (why := _refusal_of_ours(error, self.settings)) is not None:
                raise CertificateRefused(f"{self.where}: {why}") from None
            raise Unavailable(f"{self.where}: no TLS connection could be made ({_words(error)})") from None

    def _refuse_other_server(self) -> None:
        """Raises: WrongServer where something answers that speaks no TLS."""
        kind = _kind(self.host, self.port)
        if kind == "http":
            raise WrongServer(f"{self.where} speaks HTTP: {_HTTP_PORT}")
        if kind == "kafka":
            wanted = "SASL_PLAINTEXT" if self.settings.protocol.is_sasl else "PLAINTEXT"
            raise WrongServer(
                f"{self.where} speaks no TLS, but security.protocol={self.settings.protocol} does"
                f"{self.settings.named}: name a listener with TLS, or set security.protocol={wanted} for this one"
            )

    def _read_versions(self) -> None:
        """ApiVersions, version 0: what every broker answers, and what shows whether this is one."""
        try:
            answer = self._exchange(_API_VERSIONS, 0, b"")
            found = read_entity(response_type(_API_VERSIONS, 0), answer)
        except (OSError, EOFError, MalformedFrame) as error:
            if self.tls is None:
                self._refuse_other_plain_server(error)
            elif (why := _refusal_of_ours(error, self.settings) or self._late_refusal()) is not None:
                raise CertificateRefused(f"{self.where}: {why}") from None
            elif _kind(self.host, self.port) == "tls":
                raise WrongServer(f"{self.where} speaks TLS, but not the Kafka protocol") from None
            raise Unavailable(f"{self.where} does not answer as a broker does ({_words(error)})") from None
        self.versions = {one.api_key: (one.min_version, one.max_version) for one in found.api_keys}

    def _late_refusal(self) -> str | None:
        """By TLS 1.3 a server refuses the client's certificate after the handshake. A client that has sent something
        by then may find the connection reset, without the alert that says why."""
        try:
            with (
                connected(self.host, self.port, _QUICK_S) as raw,
                tls_context(self.settings).wrap_socket(raw, server_hostname=self.host) as secured,
            ):
                secured.settimeout(_SHORT_S)
                secured.recv(1)
        except (OSError, StratalogError) as error:
            return _refusal_of_ours(error, self.settings)
        return None

    def _refuse_other_plain_server(self, error: Exception) -> None:
        kind = _kind(self.host, self.port)
        if kind == "http":
            raise WrongServer(f"{self.where} speaks HTTP: {_HTTP_PORT}") from None
        if kind == "tls":
            raise WrongServer(needs_tls(self.where, self.settings)) from None
        if isinstance(error, MalformedFrame):
            raise WrongServer(f"{self.where} does not speak the Kafka protocol") from None

    def _log_in(self) -> None:
        settings = self.settings
        answer = self._step(_HANDSHAKE, 1, mechanism=settings.mechanism)
        self.mechanisms = tuple(answer.mechanisms)
        if answer.error_code == ErrorCode.ILLEGAL_SASL_STATE:
            wanted = "SSL" if settings.protocol.is_tls else "PLAINTEXT"
            raise WrongServer(
                f"{self.where} asks for no login, but security.protocol={settings.protocol} does{settings.named}: set "
                f"security.protocol={wanted}, or name a listener with SASL"
            )
        if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            offered = printable(", ".join(self.mechanisms)) or "none"
            unsafe = settings.mechanism == "PLAIN" and not settings.protocol.is_tls
            hint = "; without TLS a node offers PLAIN only by sasl.plain.unencrypted.enable" if unsafe else ""
            raise LoginRefused(
                f"{self.where} does not offer {settings.mechanism}, but {offered}: set sasl.mechanism"
                f"{settings.named}{hint}"
            )
        self._require(answer.error_code, "")
        if settings.mechanism == BEARER:
            if self._token(f"n,,\x01auth=Bearer {settings.bearer_token()}\x01\x01".encode()):
                self._token(b"\x01")  # the answer was a refusal, which this lets the listener say (RFC 7628)
            return
        if settings.mechanism == "PLAIN":
            self._token(f"\0{settings.user}\0{settings.password}".encode())
            return
        scram = ScramClient(
            _SCRAM[settings.mechanism], settings.user, settings.password, secrets.token_urlsafe(24).encode()
        )
        try:
            scram.check(self._token(scram.answer(self._token(scram.first))))
        except LoginRefused:
            raise
        except InvalidRequest as error:
            raise LoginRefused(f"{self.where}: {error}: another process may answer there") from None

    def _token(self, token: bytes) -> bytes:
        answer = self._step(_AUTHENTICATE, 0, auth_bytes=token)
        self._require(answer.error_code, answer.error_message or "")
        return bytes(answer.auth_bytes)

    def _step(self, api_key: int, version: int, **fields: object) -> Any:
        body = encode_entity(build(request_type(api_key, version), **fields))
        try:
            return read_entity(response_type(api_key, version), self._exchange(api_key, version, body))
        except (OSError, EOFError, MalformedFrame) as error:
            raise Unavailable(f"{self.where} ended the connection during the login ({_words(error)})") from None

    def _require(self, code: int, message: str) -> None:
        if code != ErrorCode.NONE:
            said = printable(message) or ErrorCode(code).name
            if self.settings.mechanism == BEARER:
                raise LoginRefused(
                    f"{self.where} refuses the token of {self.settings.token_from} ({said}): check "
                    f"its end, issuer and audience{self.settings.named}; the node's log has the reason, at `a bearer "
                    "token is not taken`"
                )
            raise LoginRefused(
                f"{self.where} refuses the login of {self.settings.user} by {self.settings.mechanism} ({said}): "
                f"check user and password{self.settings.named}{self._password_from}; `stratalog users list` shows who "
                "has a password for which mechanism"
            )

    @property
    def _password_from(self) -> str:
        if not self.settings.has_password_of_environment:
            return ""
        return f", of which {PASSWORD_VARIABLE} of the environment replaces the password"

    # Requests -------------------------------------------------------------------------------------------------------
    def _exchange(self, api_key: int, version: int, body: bytes) -> bytes:
        """The body of the answer. Raises: OSError, EOFError, MalformedFrame."""
        self._number += 1
        head = b"".join(number.to_bytes(2) for number in (api_key, version)) + self._number.to_bytes(4)
        flexible = is_flexible(api_key, version)
        request = head + len(_CLIENT_ID).to_bytes(2) + _CLIENT_ID + (b"\0" if flexible else b"") + body
        self._socket.sendall(len(request).to_bytes(4) + request)
        size = int.from_bytes(self._exactly(4))
        if not 4 <= size <= _MOST_BYTES:
            raise MalformedFrame(f"an answer of {size} bytes")
        answer = self._exactly(size)
        if int.from_bytes(answer[:4]) != self._number:
            raise MalformedFrame("an answer to another request")
        return answer[5 if flexible and api_key != _API_VERSIONS else 4 :]

    def _exactly(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            part = self._socket.recv(count - len(found))
            if not part:
                raise EOFError("the connection was closed")
            found += part
        return bytes(found)

    def _refuse_without_login(self, error: Exception) -> None:
        """A listener with SASL ends the connection at the first request of a client that has not logged in. Raises:
        LoginRefused."""
        if self.settings.protocol.is_sasl or not isinstance(error, (EOFError, ConnectionError)):
            return
        with contextlib.suppress(Unavailable):
            check_login(self.host, self.port, self.settings)

    def _about_certificate(self, error: ssl.SSLCertVerificationError) -> str:
        where = self.where
        if error.verify_code in _MISMATCH:
            try:
                names = ", ".join(hosts_shown(self.host, self.port)) or "none"
            except InvalidRequest as unreadable:
                return f"{where}: {unreadable}"
            return (
                f"{where}: the certificate there is not for {self.host}, but for {printable(names)}: connect by one of "
                "these names, or issue it with this name (`stratalog certs issue --host`)"
            )
        if error.verify_code == _EXPIRED:
            return f"{where}: the certificate there has expired: renew it (`stratalog certs renew`)"
        if error.verify_code == _NOT_YET:
            return f"{where}: the certificate there is not valid yet: check the clocks of both machines"
        if error.verify_code in _UNKNOWN_AUTHORITY:
            trusted = self.settings.authorities or "the authorities of this system"
            return (
                f"{where}: the certificate there was issued by an authority that is not trusted here ({trusted}): set "
                f"ssl.truststore.location to the ca.crt of the cluster{self.settings.named}"
            )
        return f"{where}: the certificate there cannot be trusted ({error.verify_message})"


def connected(host: str, port: int, timeout_s: float) -> socket.socket:
    """Raises: Unavailable."""
    try:
        return socket.create_connection((host, port), timeout=timeout_s)
    except socket.gaierror:
        raise Unavailable(f"{host}:{port}: the name {host} is not known here: check it") from None
    except OSError as error:
        raise Unavailable(f"{host}:{port} does not answer ({_words(error)})") from None


def tls_context(settings: ClientSettings) -> ssl.SSLContext:
    """Raises: InvalidRequest naming the files that cannot be used."""
    from stratalog.tls.contexts import TlsRules, client_context  # with a library that plain text does not need
    from stratalog.tls.material import TlsMaterial

    chain, key = _read(settings.certificate, settings), _read(settings.key, settings)
    authorities = _read(settings.authorities, settings)
    try:
        context = client_context(TlsMaterial(chain, key, authorities), TlsRules(key_password=settings.key_password))
    except InvalidRequest as error:
        files = ", ".join(dict.fromkeys(filter(None, (settings.authorities, settings.certificate, settings.key))))
        raise InvalidRequest(f"{files or 'TLS'}{settings.named}: {error}") from None
    context.check_hostname = settings.checks_host
    return context


def _read(path: str, settings: ClientSettings) -> bytes:
    if not path:
        return b""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidRequest(
            f"{path} cannot be read ({error.strerror}){settings.named}: name a PEM file that this user can read"
        ) from None


def what_answers(host: str, port: int) -> str:
    """`kafka`, `tls` or `http`; `nothing` for silence, `other` for what is none of them. Raises: OSError."""
    found = _first_bytes(host, port, _QUESTION, _SHORT_S)
    if found is None:
        # Some HTTP servers wait for the end of a line. A broker closes the connection of this request.
        found = _first_bytes(host, port, b"GET / HTTP/1.0\r\n\r\n", _SHORT_S)
        if found is None or found[:4] != b"HTTP":
            found = _first_bytes(host, port, _QUESTION, _QUICK_S)
    if found is None:
        return "nothing"
    if found[:4] == b"HTTP":
        return "http"
    if len(found) == 8 and found[4:] == _ANSWERED:
        return "kafka"
    is_record = found[:1] in (_ALERT, _HANDSHAKE_RECORD) and found[1:2] == b"\x03"
    return "tls" if is_record or (not found and peer_certificate(host, port) is not None) else "other"


def _first_bytes(host: str, port: int, question: bytes, timeout_s: float) -> bytes | None:
    """Of the answer, up to 8; fewer where the connection is closed; None for silence. Raises: OSError."""
    answer = b""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as probe:
            probe.sendall(question)
            while len(answer) < 8 and (part := probe.recv(8 - len(answer))):
                answer += part
            return answer
    except TimeoutError:
        return None
    except ConnectionResetError:
        return answer


def _kind(host: str, port: int) -> str:
    """As `what_answers`, while an error is being explained."""
    try:
        return what_answers(host, port)
    except OSError:
        return "nothing"


def peer_certificate(host: str, port: int) -> bytes | None:
    """What a server shows, as DER, without any trust in it; None where it speaks no TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), timeout=_QUICK_S) as raw,
            context.wrap_socket(raw, server_hostname=host) as secured,
        ):
            return secured.getpeercert(binary_form=True)
    except OSError:
        return None


def hosts_shown(host: str, port: int) -> tuple[str, ...]:
    """The names in the certificate of a server. Raises: InvalidRequest for one that cannot be read."""
    from stratalog.tls.shown import shown_certificate

    der = peer_certificate(host, port)
    return () if der is None else shown_certificate(der).hosts


def check_login(host: str, port: int, settings: ClientSettings) -> None:
    """That these settings are what the listener asks for. Raises: as the connection; LoginRefused."""
    with ListenerConnection(host, port, settings, timeout_s=_QUICK_S) as probe:
        probe.require_no_login()


def _needs_login(offered: tuple[str, ...], settings: ClientSettings) -> str:
    wanted = "SASL_SSL" if settings.protocol.is_tls else "SASL_PLAINTEXT"
    return (
        f"it asks for a login, by {printable(', '.join(offered))}: set security.protocol={wanted}, sasl.mechanism and "
        f"sasl.jaas.config in the file of --client-config{settings.named}"
    )


def needs_tls(where: str, settings: ClientSettings) -> str:
    wanted = "SASL_SSL" if settings.protocol.is_sasl else "SSL"
    return (
        f"{where} speaks TLS, but security.protocol={settings.protocol} does not{settings.named}: set "
        f"security.protocol={wanted} and ssl.truststore.location in the file of --client-config"
    )


def _refusal_of_ours(error: Exception, settings: ClientSettings) -> str | None:
    """Why the server does not take the client's certificate, or its version of TLS; it says so in an alert. Java has
    the same one for a certificate that is not shown, has expired, or comes from an authority that it does not know."""
    reason = str(getattr(error, "reason", "") or "").upper()
    is_refused = any(alert in reason for alert in _REFUSED)
    if "CERTIFICATE_REQUIRED" in reason or (not settings.certificate and (is_refused or "HANDSHAKE_FAILURE" in reason)):
        return (
            "it asks clients for a certificate, and none was shown: set ssl.keystore.location in the file of "
            f"--client-config{settings.named}"
        )
    end = _own_end(settings) if is_refused or "CERTIFICATE_EXPIRED" in reason else None
    if "CERTIFICATE_EXPIRED" in reason or (end is not None and end < datetime.now(UTC)):
        when = "" if end is None else f" at {end:%Y-%m-%d %H:%M} UTC"
        return (
            f"the client's certificate {settings.certificate} has expired{when}{settings.named}: renew it "
            "(`stratalog certs renew`)"
        )
    if is_refused:
        return f"it does not trust the certificate {settings.certificate}: its ca.crt must hold who issued that"
    if "PROTOCOL_VERSION" in reason:
        return "it speaks other versions of TLS (ssl.enabled.protocols) than this command, which has 1.2 and 1.3"
    return None


def _own_end(settings: ClientSettings) -> datetime | None:
    """Of the client's certificate; None where the file cannot be read any more."""
    from stratalog.tls.shown import first_of_chain

    try:
        return first_of_chain(_read(settings.certificate, settings)).ends
    except InvalidRequest:
        return None


def _words(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    if isinstance(reason, str):
        return reason.replace("_", " ").lower()
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(getattr(error, "strerror", None) or error)
