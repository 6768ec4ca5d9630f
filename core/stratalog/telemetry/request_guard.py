"""Whether an HTTP request may be answered: those that a foreign web page makes are refused. No I/O.

The ports may have no token, and a browser shows the one that its user typed to whatever page asks; so a browser on the
same machine, or inside the private network, must not become the way in:

* DNS rebinding: a page's own name is pointed at our address, so the page is "same origin" to its browser. `Host` then
  says the page's name. It must be an IP address (a page opened by address can only be ours), `localhost`, the name
  under which the port listens, or one of `http.allowed.hosts`.
* Requests across sites: a browser says where they come from, in `Origin` and in `Sec-Fetch-Site`. Only our own pages
  may ask; a link to the cluster UI may be followed from anywhere, for the page that has the link sees nothing of it.
* Forms, and scripts without CORS, can send a POST, but not as JSON: whatever changes something must say that it is.
  Only the forms of login and logout are no JSON; a browser must say that they come from our own page.

Programs send neither `Origin` nor `Sec-Fetch-Site`.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlsplit

from stratalog.model.counting import counted

_HOST: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]{1,255})(?::([0-9]{1,5}))?")
_CHANGES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_OWN_SITE: Final = frozenset({"same-origin", "none"})
_JSON: Final = "application/json"
GUARDED: Final = ("Origin", "Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest", "Content-Type")
"""Headers that decide; a request has each once."""
_FORM: Final = "application/x-www-form-urlencoded"
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Asked:
    """What the guard looks at; None for a header that was not sent. `host` holds every `Host` header."""

    method: str
    host: tuple[str, ...]
    origin: str | None = None
    fetch_site: str | None = None
    fetch_mode: str | None = None
    fetch_dest: str | None = None
    content_type: str | None = None
    repeated: str = ""
    """A header that was sent twice, of those above."""
    target_host: str = ""
    """Of a request line with a whole address; empty for one with a path."""
    takes_form: bool = False
    """The route is one of the few that a form of our own pages is sent to."""


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    """Why a request is refused, and with which HTTP status."""

    status: int
    message: str


class ServedNames:
    """The names under which a port is served. An entry that begins with a dot stands for every name that ends so."""

    def __init__(self, listen_host: str, allowed: str = "") -> None:
        """`allowed` is a list with commas, as `http.allowed.hosts`."""
        entries = [entry.strip().lower().rstrip(".") for entry in allowed.split(",")]
        self._names = {"localhost", listen_host.lower()} | {entry for entry in entries if entry[:1] not in ("", ".")}
        self._suffixes = tuple(entry for entry in entries if entry[:1] == ".")

    def include(self, host: str) -> bool:
        """Whether `host`, a name or an address without its port, is ours."""
        name = host.lower().rstrip(".")
        return _is_address(name) or name in self._names or name.endswith(self._suffixes)


def check_request(asked: Asked, names: ServedNames) -> RefusedRequest | None:
    """Why this request must not be answered; None when it may be."""
    if len(asked.host) != 1:
        return RefusedRequest(400, f"a request names its Host once, this one {counted(len(asked.host), 'time')}")
    if asked.repeated:
        return RefusedRequest(400, f"the header {asked.repeated} was sent twice")
    if asked.target_host not in ("", asked.host[0]):
        return RefusedRequest(400, "the address in the request line has another host than the header Host")
    host = _HOST.fullmatch(asked.host[0])
    if host is None or not names.include(host[1]):
        return RefusedRequest(
            403,
            f"this port is not served under the name {asked.host[0][:80]!r}: ask by IP address, or add the name to "
            "http.allowed.hosts",
        )
    if asked.origin is not None and not _is_own(asked.origin, host[1], host[2]):
        return RefusedRequest(403, f"a page of {asked.origin[:80]!r} asks: only this port's own pages may")
    if asked.fetch_site is not None and asked.fetch_site not in _OWN_SITE and not _is_followed_link(asked):
        return RefusedRequest(
            403, f"a page of another site asks ({asked.fetch_site[:20]!r}): only this port's own pages may"
        )
    if asked.takes_form:
        if not _is_of_type(asked.content_type, _FORM):
            return RefusedRequest(415, f"{asked.method} needs Content-Type: {_FORM} here")
        if asked.origin is None and asked.fetch_site != "same-origin":  # what is not ours was refused above
            return RefusedRequest(403, "a form that does not say where it comes from: only this port's own pages may")
    elif asked.method in _CHANGES and not _is_of_type(asked.content_type, _JSON):
        return RefusedRequest(415, f"{asked.method} needs Content-Type: {_JSON}, with or without a body")
    return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _is_own(origin: str, host: str, port: str | None) -> bool:
    try:
        parts = urlsplit(origin)
        address = parts.hostname, parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return False
    asked = host.lower().removeprefix("[").removesuffix("]"), int(port) if port else _DEFAULT_PORTS.get(parts.scheme)
    return _is_plain(parts) and address == asked


def _is_plain(parts: SplitResult) -> bool:
    return parts.scheme in _DEFAULT_PORTS and parts.username is None


def _is_followed_link(asked: Asked) -> bool:
    return asked.method == "GET" and asked.fetch_mode == "navigate" and asked.fetch_dest == "document"


def _is_of_type(content_type: str | None, wanted: str) -> bool:
    return content_type is not None and content_type.partition(";")[0].strip().lower() == wanted
