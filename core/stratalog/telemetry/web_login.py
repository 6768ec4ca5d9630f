"""Logging in to the pages of an HTTP port: what a cookie says, what a form brings, where a browser goes next.

The cookie holds a random secret, and no token. It is `HttpOnly` (no script reads it), `SameSite=Strict` (no other site
makes a browser send it), and `Secure` where the port speaks TLS; then its name begins with `__Host-`, so that no
other name or plain port of the host can set it. The name has the port as the browser knows it, because cookies of a
host are sent to all its ports. No token is ever in an address.
Lives on the event loop.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qs, quote

from aiohttp import web

from stratalog.machines.web_sessions import LONGEST_MS, WebSessions

LOGIN: Final = "/login"
LOGOUT: Final = "/logout"
FORMS: Final = frozenset({LOGIN, LOGOUT})
"""The only routes that take a form."""
MOST_FORM_BYTES: Final = 16_384
"""Of a form, which anyone may send."""
_SECRET_BYTES: Final = 32
_LONGEST_PLACE: Final = 2_000
_MOST_FIELDS: Final = 4


class WebLogins:
    """The sessions of one port."""

    def __init__(self, now_ms: Callable[[], int], *, is_secure: bool) -> None:
        """`is_secure`: the port speaks TLS."""
        self._is_secure = is_secure
        self._now_ms = now_ms
        self._sessions = WebSessions()

    def begin(self, request: web.Request, response: web.StreamResponse, token_digest: bytes) -> None:
        """Let the browser that gets this response be known by the token that it has just shown. Its earlier session, if
        any, ends."""
        self._end_of(request)
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        self._sessions.begin(secret, token_digest, self._now_ms())
        response.set_cookie(
            self._name(request),
            secret,
            max_age=LONGEST_MS // 1_000,
            path="/",
            httponly=True,
            samesite="Strict",
            secure=self._is_secure,
        )

    def token_digest(self, request: web.Request) -> bytes | None:
        """Of the token that the sender's session began with."""
        secret = request.cookies.get(self._name(request))
        return None if not secret else self._sessions.token_of(secret, self._now_ms())

    def end(self, request: web.Request, response: web.StreamResponse) -> None:
        self._end_of(request)
        response.del_cookie(self._name(request), path="/", httponly=True, samesite="Strict", secure=self._is_secure)

    def _end_of(self, request: web.Request) -> None:
        secret = request.cookies.get(self._name(request))
        if secret:
            self._sessions.end(secret)

    def _name(self, request: web.Request) -> str:
        port = request.host.rpartition(":")[2]  # checked: `request_guard`
        return f"{'__Host-' if self._is_secure else ''}stratalog-{port if port.isdigit() else 0}"


def is_page_asked(request: web.Request) -> bool:
    """Whether a person's browser asks for a page, rather than a program for an answer."""
    return request.method == "GET" and "text/html" in request.headers.get("Accept", "")


def login_address(place: str) -> str:
    """Of the login page that leads to `place` afterwards."""
    place = own_place(place)
    return LOGIN if place == "/" else f"{LOGIN}?next={quote(place, safe='')}"


def own_place(place: str) -> str:
    """An address that leads to a page of this port, and nowhere else: the given one, or that of the first page."""
    is_path = place.startswith("/") and not place.startswith("//")
    is_plain = len(place) <= _LONGEST_PLACE and place.isascii() and place.isprintable() and "\\" not in place
    return place if is_path and is_plain else "/"


def form_of(body: bytes) -> dict[str, str]:
    """The fields of a form, the first of each name. One that cannot be read has none."""
    try:
        fields = parse_qs(body.decode("utf-8"), max_num_fields=_MOST_FIELDS)
    except ValueError:
        return {}
    return {name: values[0] for name, values in fields.items()}
