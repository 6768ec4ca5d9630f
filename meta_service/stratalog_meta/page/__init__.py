"""The status page of a cluster: a few files as they are, for whoever serves `GET /v1/overview` and `/v1/courses`.

No build step and nothing from elsewhere: the policy that goes with each file lets the browser load and ask nothing but
this port, and run no script but these. All that the page shows is written as text, never as markup (`elements.js`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stratalog.telemetry.page_style import PAGE_STYLE

if TYPE_CHECKING:
    from aiohttp import web

_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS: Final = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-cache", "Referrer-Policy": "no-referrer"}
_KINDS: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_START: Final = "index.html"


@dataclass(frozen=True, slots=True)
class PageSource:
    """Where the page is served: known at once, whoever else does not answer."""

    leader: str | None
    """Where to ask instead; None: here, or nobody knows."""
    words: str
    """Why it is to be asked there."""
    parts: Sequence[dict[str, object]] = ()
    """The processes of a cluster on one machine, where these are known: `name`, `state`, `words`, `leads`,
    `addresses`."""


def add_page(application: web.Application, source: Callable[[], PageSource]) -> None:
    """Serve it at `/`."""
    from aiohttp import web

    def file_route(kind: str, body: bytes) -> Callable[[web.Request], web.Response]:
        return lambda _: web.Response(body=body, content_type=kind, charset="utf-8", headers=_HEADERS)

    def route(path: str, answer: Callable[[web.Request], web.Response]) -> None:
        async def handle(request: web.Request) -> web.Response:
            return answer(request)

        application.router.add_get(path, handle)

    def tell_source(_: web.Request) -> web.Response:
        return web.Response(text=json.dumps(asdict(source())), content_type="application/json", headers=_HEADERS)

    for name, (kind, body) in _files().items():
        route("/" if name == _START else f"/page/{name}", file_route(kind, body))
    route("/page/place", tell_source)


def _files() -> dict[str, tuple[str, bytes]]:
    here = Path(__file__).parent
    found = {
        path.name: (_KINDS[path.suffix], path.read_bytes()) for path in sorted(here.iterdir()) if path.suffix in _KINDS
    }
    return found | {"base.css": ("text/css", PAGE_STYLE.encode())}
