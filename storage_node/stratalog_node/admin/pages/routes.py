"""The pages over HTTP: which there are, and what each asks the node for."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from stratalog.admin_api.models import SegmentInfo
from stratalog.model.errors import InvalidRequest, StratalogError
from stratalog_node.admin.node_admin import NodeAdmin
from stratalog_node.admin.pages.node_page import TOPICS_SHOWN, render_status_page
from stratalog_node.admin.pages.node_views import NodeViews, look_at_records
from stratalog_node.admin.pages.people_pages import GROUPS_SHOWN, clients_page, groups_page
from stratalog_node.admin.pages.topic_pages import SEGMENTS_SHOWN, records_page, shard_page, topic_page, topics_page

if TYPE_CHECKING:
    from aiohttp import web

    Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
    Guard: TypeAlias = Callable[[Handler], Handler]


def add_page_routes(application: web.Application, admin: NodeAdmin, views: NodeViews, guarded: Guard) -> None:
    """`guarded` gives errors their answers."""
    pages = _Pages(admin, views)
    router = application.router
    router.add_get("/", guarded(pages.node))
    router.add_get("/topics", guarded(pages.topics))
    router.add_get("/topics/{topic}", guarded(pages.topic))
    router.add_get("/topics/{topic}/{shard}", guarded(pages.shard))
    router.add_get("/topics/{topic}/{shard}/records", guarded(pages.records))
    router.add_get("/groups", guarded(pages.groups))
    router.add_get("/clients", guarded(pages.clients))


class _Pages:
    def __init__(self, admin: NodeAdmin, views: NodeViews) -> None:
        self._admin = admin
        self._views = views

    async def node(self, _request: web.Request) -> web.StreamResponse:
        topics = [topic async for topic in self._admin.topics(TOPICS_SHOWN)]
        return _html(render_status_page(await self._admin.status(), topics, list(self._views.samples())))

    async def topics(self, _request: web.Request) -> web.StreamResponse:
        topics = [topic async for topic in self._admin.topics(TOPICS_SHOWN)]
        return _html(topics_page(topics, self._admin.topic_count))

    async def topic(self, request: web.Request) -> web.StreamResponse:
        return _html(topic_page(await self._admin.topic(request.match_info["topic"])))

    async def shard(self, request: web.Request) -> web.StreamResponse:
        topic, shard = request.match_info["topic"], _number(request.match_info["shard"], "shard")
        newest: deque[SegmentInfo] = deque(maxlen=SEGMENTS_SHOWN)
        count = 0
        async for segment in self._admin.segments(topic, shard):
            newest.append(segment)
            count += 1
        return _html(shard_page(topic, shard, list(newest), count))

    async def records(self, request: web.Request) -> web.StreamResponse:
        topic, shard = request.match_info["topic"], _number(request.match_info["shard"], "shard")
        offset = _number(request.query.get("offset", "0"), "offset")
        view = self._admin.shard(topic, shard)
        try:
            records, why_not = await look_at_records(view, offset), None
        except StratalogError as error:
            records, why_not = [], str(error)
        return _html(records_page(topic, shard, offset, records, why_not))

    async def groups(self, _request: web.Request) -> web.StreamResponse:
        hosted = sorted(self._views.groups(), key=lambda one: one.group_id)
        shown = [one.machine.status() for one in islice(hosted, GROUPS_SHOWN)]
        return _html(groups_page(shown, self._views.lags(), len(hosted)))

    async def clients(self, _request: web.Request) -> web.StreamResponse:
        return _html(clients_page(self._views.clients()))


def _number(text: str, name: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise InvalidRequest(f"{name}={text[:40]!r}: expected a number from 0 on")
    return int(text)


def _html(page: str) -> web.StreamResponse:
    from aiohttp import web

    return web.Response(text=page, content_type="text/html", headers={"Cache-Control": "no-store"})
