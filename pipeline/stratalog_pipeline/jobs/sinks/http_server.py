"""Requests to a target that speaks HTTP: TLS that is verified, a login, timeouts, and bounded answers.

One connection for one thread, kept open between requests. If an answer is lost, the request may have been done:
callers send only what may be sent twice. A password is sent over TLS, or to this machine.
"""

from __future__ import annotations

import base64
import http.client
import ipaddress
import ssl
from typing import Final
from urllib.parse import SplitResult, urlsplit

from stratalog.model.errors import InvalidRequest, Unavailable
from stratalog_pipeline.jobs.sinks.target import CONNECT_S, PASSWORD_VARIABLE, REQUEST_S, TargetAddress

_MOST_ANSWER_BYTES: Final = 64 << 20
_SCHEMES: Final = ("http", "https")


class HttpServer:
    def __init__(self, address: TargetAddress, *, secret_scheme: str = "") -> None:
        """`secret_scheme`: of the Authorization header where a password is given and no user; empty: none.

        Raises: InvalidRequest for an address that cannot be used, or that holds a password."""
        url = _split(address.url)
        self._host, self._port = url.hostname or "", url.port
        self._base = url.path.rstrip("/")
        self.where = f"{url.scheme}://{url.netloc}{self._base}"
        self._headers = {"User-Agent": "stratalog-sink"}
        password = address.password()
        if password and (address.user or secret_scheme):
            if url.scheme == "http" and not _is_here(self._host):
                raise InvalidRequest(f"--url {self.where}: a password is sent over https:// alone, or to this machine")
            pair = base64.b64encode(f"{address.user}:{password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {pair}" if address.user else f"{secret_scheme} {password}"
        self._tls = None if url.scheme == "http" else _trusting(address.ca_file)
        self._connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def request(self, method: str, path: str, body: bytes = b"", kind: str = "application/json") -> tuple[int, bytes]:
        """The status and the body of the answer. Raises: Unavailable where none came; it may have been done."""
        try:
            connection = self._connected()
            headers = {**self._headers, **({"Content-Type": kind} if body else {})}
            connection.request(method, self._base + path, body or None, headers)
            with connection.getresponse() as answer:
                found = answer.read(_MOST_ANSWER_BYTES + 1)
                status = answer.status
        except (OSError, http.client.HTTPException) as error:
            self.close()
            why = " ".join(str(error).split()) or type(error).__name__
            raise Unavailable(f"{self.where} does not answer: {why}") from error
        if len(found) > _MOST_ANSWER_BYTES:
            self.close()
            raise Unavailable(f"{self.where}: an answer has more than {_MOST_ANSWER_BYTES} bytes")
        return status, found

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            if self._tls is None:
                made = http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_S)
            else:
                made = http.client.HTTPSConnection(self._host, self._port, timeout=CONNECT_S, context=self._tls)
            made.connect()
            made.sock.settimeout(REQUEST_S)
            self._connection = made
        return self._connection


def _split(text: str) -> SplitResult:
    """Raises: InvalidRequest."""
    wrong = InvalidRequest("--url of this target is https://HOST[:PORT], or http://HOST[:PORT]")
    try:
        url = urlsplit(text)
        _ = url.port
    except ValueError:
        raise wrong from None
    if url.username or url.password:
        raise InvalidRequest(
            "--url holds a user or a password, and every user of this machine sees a command line: give --user NAME "
            f"and --password-file FILE, or set {PASSWORD_VARIABLE}"
        )
    if url.scheme not in _SCHEMES or not url.hostname or url.query or url.fragment:
        raise wrong
    return url


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _trusting(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise InvalidRequest(f"--ca-file {ca_file} cannot be used: {error.strerror or error}") from None
