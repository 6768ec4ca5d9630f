"""Tokens of OAUTHBEARER by client credentials (RFC 6749, section 4.4): fetched from the token endpoint of an identity
provider, kept, and fetched again before they end.

Blocking; threads may share an object. No secret, no token and no text of the endpoint is in an error. Of an answer at
most `_MOST_BYTES` are read, within `_TIMEOUT_S` for all attempts together. Redirects are not followed, because they
would send the secret elsewhere.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import random
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, quote_plus, urlsplit

from stratalog.machines.backoff import pause_after
from stratalog.model.errors import InvalidRequest, Unavailable

ID_SETTING: Final = "sasl.oauthbearer.client.credentials.client.id"
SECRET_SETTING: Final = "sasl.oauthbearer.client.credentials.client.secret"
URL_SETTING: Final = "sasl.oauthbearer.token.endpoint.url"
TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""RFC 6750, section 2.1"""
_MOST_BYTES: Final = 64 << 10
_TIMEOUT_S: Final = 30.0
_ATTEMPT_S: Final = 10.0
_ATTEMPTS: Final = 4
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_RENEWED_AT: Final = 0.8
"""Which share of a token's time passes before another one is fetched, as in Kafka's clients."""
_LEAST_LEFT_S: Final = 5.0
"""A token is not shown any more when it ends that soon."""
_OPAQUE_S: Final = 60.0
"""Of a token that does not say when it ends."""
_LATER: Final = (408, 425, 429)
_ERROR: Final = re.compile(r"[A-Za-z_]{1,40}")
"""Codes of RFC 6749, section 5.2, and alike."""


@dataclass(frozen=True, slots=True)
class TokenEndpoint:
    url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str = ""
    authorities: str = ""
    """PEM file of those that are trusted; empty: those of the system."""


@dataclass(frozen=True, slots=True)
class FetchedToken:
    token: str = field(repr=False)
    lasts_s: float


def checked_url(url: str) -> str:
    """Raises: InvalidRequest for an address to which no secret should go."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise InvalidRequest(f"{URL_SETTING} is not an address: expected https://HOST/PATH") from None
    if parts.username is not None or parts.password is not None:
        raise InvalidRequest(f"{URL_SETTING} must hold no user and no password: {ID_SETTING} names the client")
    if parts.scheme not in ("https", "http") or not host or not url.isascii() or re.search(r"[\s\x00-\x1f]", url):
        raise InvalidRequest(f"{URL_SETTING}: expected https://HOST/PATH, or file:///PATH of a token")
    if parts.scheme == "http" and not _is_loopback(host):
        raise InvalidRequest(
            f"{URL_SETTING} is not encrypted, so the secret of the client would be readable on the way to {host}: use "
            "https://"
        )
    return url


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class FetchedTokens:
    """The tokens of one client."""

    def __init__(self, endpoint: TokenEndpoint, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self.endpoint = endpoint
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._kept = ""
        self._renew_at_s = self._ends_at_s = 0.0

    def current(self) -> str:
        """One that lasts. An earlier one is used on while no other can be had. Raises: InvalidRequest, Unavailable."""
        with self._lock:
            if self._kept and self._monotonic_s() < self._renew_at_s:
                return self._kept
            try:
                fetched = fetch(self.endpoint)
            except Unavailable:
                if self._kept and self._monotonic_s() < self._ends_at_s - _LEAST_LEFT_S:
                    return self._kept
                raise
            now_s = self._monotonic_s()
            self._kept = fetched.token
            self._renew_at_s, self._ends_at_s = now_s + _RENEWED_AT * fetched.lasts_s, now_s + fetched.lasts_s
            return self._kept


def fetch(endpoint: TokenEndpoint) -> FetchedToken:
    """Raises: InvalidRequest where asking again would not help; Unavailable after `_ATTEMPTS`."""
    context = _context(endpoint) if endpoint.url.startswith("https") else None
    ends_at_s = time.monotonic() + _TIMEOUT_S
    for failures in range(1, _ATTEMPTS + 1):
        try:
            return _asked(endpoint, context, ends_at_s)
        except Unavailable:
            pause_s = pause_after(failures, _FIRST_PAUSE_S, _LONGEST_PAUSE_S, random.random())
            if failures == _ATTEMPTS or time.monotonic() + pause_s >= ends_at_s:
                raise
            time.sleep(pause_s)
    raise AssertionError("the last attempt returns or raises")


def _asked(endpoint: TokenEndpoint, context: ssl.SSLContext | None, ends_at_s: float) -> FetchedToken:
    where = _where(endpoint)
    parts = urlsplit(endpoint.url)
    ends_at_s = min(ends_at_s, time.monotonic() + _ATTEMPT_S)
    left_s = max(0.001, ends_at_s - time.monotonic())
    host = parts.hostname or ""
    connection = (
        HTTPConnection(host, parts.port, timeout=left_s)
        if context is None
        else HTTPSConnection(host, parts.port, timeout=left_s, context=context)
    )
    try:
        connection.connect()
        with _ended_after(connection.sock, ends_at_s):
            connection.request("POST", _path(parts), _body(endpoint), _headers(endpoint))
            answer = connection.getresponse()
            text = answer.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise OSError(0, f"an answer above {_MOST_BYTES} bytes")
    except ssl.SSLCertVerificationError as error:
        raise InvalidRequest(
            f"{where}: its certificate cannot be trusted ({error.verify_message}): set https.ca.location to a file of "
            "the authority that issued it"
        ) from None
    except (OSError, HTTPException) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise Unavailable(f"{where} does not answer ({why})") from None
    finally:
        connection.close()
    if answer.status in (200, 201):
        return _token_of(text, where)
    said = _error_of(text)
    what = f"{where} gives no token ({answer.status}{f', {said}' if said else ''})"
    if answer.status >= 500 or answer.status in _LATER:
        raise Unavailable(f"{what}: try again later")
    if 300 <= answer.status < 400:
        raise InvalidRequest(f"{what}, but leads elsewhere: set {URL_SETTING} to the address of the token endpoint")
    raise InvalidRequest(f"{what} to {endpoint.client_id[:80]}: check {ID_SETTING}, its secret and the scope")


def _where(endpoint: TokenEndpoint) -> str:
    parts = urlsplit(endpoint.url)
    return f"the identity provider at {parts.scheme}://{parts.netloc}{parts.path}"


def _path(parts: SplitResult) -> str:
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _body(endpoint: TokenEndpoint) -> str:
    return "grant_type=client_credentials" + (f"&scope={quote_plus(endpoint.scope)}" if endpoint.scope else "")


def _headers(endpoint: TokenEndpoint) -> dict[str, str]:
    pair = f"{endpoint.client_id}:{endpoint.client_secret}".encode()
    return {
        "Authorization": f"Basic {base64.b64encode(pair).decode()}",
        "Content-Type": "application/x-www-form-urlencoded",
        "Accept": "application/json",
        "Connection": "close",
    }


def _context(endpoint: TokenEndpoint) -> ssl.SSLContext:
    from stratalog.tls.contexts import TlsRules, client_context  # with a library that plain text does not need
    from stratalog.tls.material import TlsMaterial

    file = endpoint.authorities
    try:
        authorities = Path(file).read_bytes() if file else b""
        return client_context(TlsMaterial(b"", b"", authorities), TlsRules())
    except OSError as error:
        raise InvalidRequest(f"https.ca.location: {file} cannot be read ({error.strerror})") from None
    except InvalidRequest as error:
        raise InvalidRequest(f"https.ca.location: {file}: {error}") from None


@contextmanager
def _ended_after(sock: socket.socket, ends_at_s: float) -> Iterator[None]:
    """Ends the connection at that time, however slowly bytes still come. Raises: TimeoutError once it has."""

    def end() -> None:
        with suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)  # that of TLS would wait for the other end

    limit = threading.Timer(max(0.0, ends_at_s - time.monotonic()), end)
    limit.daemon = True
    limit.start()
    try:
        yield
    finally:
        limit.cancel()
        if time.monotonic() >= ends_at_s:
            raise TimeoutError(0, "no answer in time")


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _error_of(text: bytes) -> str:
    said = _object(text).get("error")
    return said if isinstance(said, str) and _ERROR.fullmatch(said) else ""


def _token_of(text: bytes, where: str) -> FetchedToken:
    found = _object(text)
    token = found.get("access_token")
    if not isinstance(token, str) or TOKEN.fullmatch(token) is None:
        raise InvalidRequest(f"{where} answers without a token: check that {URL_SETTING} is a token endpoint")
    said = [end for end in (_number(found.get("expires_in")), _lasts_s(token)) if end is not None]
    lasts_s = min(said, default=_OPAQUE_S)
    if lasts_s <= 0:
        raise InvalidRequest(f"{where} gives a token that has ended already: check the clocks of both machines")
    return FetchedToken(token, lasts_s)


def _lasts_s(token: str) -> float | None:
    end_s = end_of(token)
    return None if end_s is None else end_s - time.time()


def end_of(token: str) -> float | None:
    """When a JSON Web Token ends (s since 1970); None where it does not say."""
    try:
        body = token.split(".")[1]
        return _number(json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["exp"])
    except (IndexError, KeyError, TypeError, ValueError, RecursionError):
        return None


def _number(value: Any) -> float | None:
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
