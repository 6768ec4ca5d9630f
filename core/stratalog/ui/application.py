"""The pages over HTTP: which there are, how a request becomes one, and what goes with each answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pydantic_core import to_json

from stratalog.admin_api.errors import http_status_of
from stratalog.model.errors import InvalidRequest, NotFound, NotLeader, StratalogError
from stratalog.model.roles import FOR_ANYONE, FOR_OPERATORS, FOR_VIEWERS, Needs
from stratalog.telemetry.logs import logger
from stratalog.telemetry.plots import line_plot
from stratalog.ui.gather import Gatherer
from stratalog.ui.host import UiHost
from stratalog.ui.lists import number
from stratalog.ui.login import add_login
from stratalog.ui.node_addresses import is_plain_url
from stratalog.ui.page import Page, Query
from stratalog.ui.pages.cluster import FIGURES, cluster_figure, cluster_page, troubles_page
from stratalog.ui.pages.groups import clients_page, group_page, groups_page
from stratalog.ui.pages.nodes import NODE_FIGURES, node_figure, node_page, nodes_page
from stratalog.ui.pages.records import records_page
from stratalog.ui.pages.topics import shard_page, topic_page, topics_page
from stratalog.ui.render import STATIC, render, static_file

if TYPE_CHECKING:
    from aiohttp import web
    from aiohttp.typedefs import Middleware

    Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
_PLOT_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
"""A drawing carries its style with it, and is shown as an image, in which nothing runs."""
# Without a referrer a browser does not say where a form comes from, and the guard would refuse it.
_HEADERS: Final = {"Content-Security-Policy": POLICY, "Cache-Control": "no-store", "Referrer-Policy": "same-origin"}
_log = logger(__name__)


UI_NEEDS: Final[Mapping[tuple[str, str], Needs]] = {
    ("GET", "/"): FOR_VIEWERS,
    ("GET", "/troubles"): FOR_VIEWERS,
    ("GET", "/topics"): FOR_VIEWERS,
    ("GET", "/topics/{topic}"): FOR_VIEWERS,
    ("GET", "/topics/{topic}/shards/{shard}"): FOR_VIEWERS,
    ("GET", "/topics/{topic}/records"): FOR_OPERATORS,
    ("GET", "/groups"): FOR_VIEWERS,
    ("GET", "/group"): FOR_VIEWERS,
    ("GET", "/clients"): FOR_VIEWERS,
    ("GET", "/nodes"): FOR_VIEWERS,
    ("GET", "/nodes/{node}"): FOR_VIEWERS,
    ("GET", "/plots/{figure}.svg"): FOR_VIEWERS,
    **{("GET", f"/ui/{name}"): FOR_ANYONE for name in STATIC},
}
"""The role that each page needs."""


def add_ui(application: web.Application, host: UiHost) -> None:
    """Add the pages to a port, which checks the token."""
    from stratalog.telemetry.http_port import declare

    pages = _Pages(host)
    router = application.router
    declare(application, UI_NEEDS)
    for path, make in pages.routes().items():
        router.add_get(path, pages.shown(make))
    router.add_get("/plots/{figure}.svg", pages.plot)
    for name, kind in STATIC.items():
        router.add_get(f"/ui/{name}", _static(name, kind))

    add_login(application, _HEADERS)
    application.middlewares.append(_missing_pages())

    async def close(_: web.Application) -> None:
        await pages.gatherer.close()

    application.on_cleanup.append(close)


def _missing_pages() -> Middleware:
    """A path that no route has is answered to a browser by a page with a way back."""
    from aiohttp import web

    @web.middleware
    async def shown(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPNotFound:
            if "text/html" not in request.headers.get("Accept", ""):
                raise
            return await _answer_error(NotFound(f"there is no page {request.path[:200]!r}"), "html")

    return shown


def _static(name: str, kind: str) -> Handler:
    async def handle(_: web.Request) -> web.StreamResponse:
        from aiohttp import web

        body = static_file(name)
        headers = {**_HEADERS, "Cache-Control": "no-cache"}
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)

    return handle


Make: TypeAlias = Callable[[Mapping[str, str], Query], Awaitable[Page]]


class _Pages:
    def __init__(self, host: UiHost) -> None:
        self.gatherer = Gatherer(host)

    def routes(self) -> dict[str, Make]:
        ask = self.gatherer
        return {
            "/": lambda _, query: cluster_page(ask, query),
            "/troubles": lambda _, query: troubles_page(ask, query),
            "/topics": lambda _, query: topics_page(ask, query),
            "/topics/{topic}": lambda path, query: topic_page(ask, path["topic"], query),
            "/topics/{topic}/shards/{shard}": lambda path, query: shard_page(
                ask, path["topic"], number(path["shard"], "shard", 2**31 - 1), query
            ),
            "/topics/{topic}/records": lambda path, query: records_page(ask, path["topic"], query),
            "/groups": lambda _, query: groups_page(ask, query),
            "/group": lambda _, query: group_page(ask, query),
            "/clients": lambda _, query: clients_page(ask, query),
            "/nodes": lambda _, query: nodes_page(ask, query),
            "/nodes/{node}": lambda path, _: node_page(ask, number(path["node"], "node", 2**31 - 1)),
        }

    def shown(self, make: Make) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            from stratalog.telemetry.http_port import person_of

            kind = request.query.get("format", "html")
            if kind not in ("html", "json"):
                return await _answer_error(InvalidRequest(f"format={kind[:40]!r}: expected html or json"), "html")
            try:
                page = await make(request.match_info, request.query)
                if kind == "json":
                    return _json(page.data)
                twin = str(request.rel_url.update_query(format="json"))
                return _html(await asyncio.to_thread(render, page, twin, person_of(request)))
            except StratalogError as error:
                return await _answer_error(error, kind)

        return handle

    async def plot(self, request: web.Request) -> web.StreamResponse:
        from aiohttp import web

        name, node = request.match_info["figure"], request.query.get("node", "")
        is_dark = request.query.get("dark", "") == "true"
        what = f"plot {name[:40]} {node[:40]} {is_dark}"
        try:
            body = await self.gatherer.recent(what, lambda: self._drawn(name, node, is_dark))
        except StratalogError as error:
            return await _answer_error(error, "json")
        headers = {**_HEADERS, "Content-Security-Policy": _PLOT_POLICY}
        return web.Response(body=body, content_type="image/svg+xml", headers=headers)

    async def _drawn(self, name: str, node: str, is_dark: bool) -> bytes:
        if name.startswith("node-") and (figure := NODE_FIGURES.get(name[5:])) is not None:
            node_id = number(node, "node", 2**31 - 1)
            series = await node_figure(self.gatherer, node_id, name[5:])
            return await asyncio.to_thread(line_plot, figure.title, series, figure.words, is_dark)
        if name not in FIGURES:
            raise NotFound(f"there is no plot {name[:40]!r}")
        title, series, words = await cluster_figure(self.gatherer, name)
        return await asyncio.to_thread(line_plot, title, series, words, is_dark)


def _html(text: str, status: int = 200) -> web.StreamResponse:
    from aiohttp import web

    return web.Response(text=text, status=status, content_type="text/html", headers=_HEADERS)


def _json(data: Any, status: int = 200) -> web.StreamResponse:
    from aiohttp import web

    body = to_json(data, inf_nan_mode="null") + b"\n"
    return web.Response(body=body, status=status, content_type="application/json", headers=_HEADERS)


async def _answer_error(error: StratalogError, kind: str) -> web.StreamResponse:
    """An instance that does not lead names the leader. Only a plain address becomes a link."""
    status = 503 if isinstance(error, NotLeader) else http_status_of(error)
    name, words = type(error).__name__, str(error)
    if kind == "json":
        return _json({"error": name, "message": words}, status)
    leader = error.leader if isinstance(error, NotLeader) and error.leader else ""
    extra = {"leader": leader, "leader_url": leader if is_plain_url(leader) else "", "status": status}
    page = Page("error.html", "Not found" if status == 404 else "Cannot be shown", "", {"words": words}, extra)
    return _html(await asyncio.to_thread(render, page, ""), status)
