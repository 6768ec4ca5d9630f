"""Logging in to the pages: a form that takes a token by POST, and a way out. Only where the port asks for a token.

A browser without a session that asks for a page is led here, and afterwards to the page. `web_login` says what its
cookie is, `request_guard` why no other site can send the forms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from stratalog.model.addresses import is_loopback
from stratalog.model.errors import StratalogError, Unauthorized
from stratalog.model.roles import FOR_ANYONE
from stratalog.ui.page import Page
from stratalog.ui.render import render

if TYPE_CHECKING:
    from aiohttp import web

    from stratalog.telemetry.http_port import HttpPort

_WRONG: Final = "This is not a token of this cluster."
_TOO_MANY: Final = "Too many wrong tokens come from your address now. Try again in a few seconds."


def add_login(application: web.Application, headers: Mapping[str, str]) -> None:
    """`headers` go with each page."""
    from stratalog.telemetry.http_port import declare, port_of
    from stratalog.telemetry.web_login import LOGIN, LOGOUT

    port = port_of(application)
    if port is None or port.access is None:
        return
    forms = _Forms(port, headers)
    application.router.add_get(LOGIN, forms.show)
    application.router.add_post(LOGIN, forms.log_in)
    application.router.add_post(LOGOUT, forms.log_out)
    declare(application, {("GET", LOGIN): FOR_ANYONE, ("POST", LOGIN): FOR_ANYONE, ("POST", LOGOUT): FOR_ANYONE})
    port.begin_logins(forms.error_page)


class _Forms:
    def __init__(self, port: HttpPort, headers: Mapping[str, str]) -> None:
        self._port = port
        self._headers = headers

    async def show(self, request: web.Request) -> web.StreamResponse:
        return await self._page(request, request.query.get("next", "/"))

    async def log_in(self, request: web.Request) -> web.StreamResponse:
        """By the fields `token` and `next`."""
        from aiohttp import web

        from stratalog.telemetry.http_port import body_of
        from stratalog.telemetry.web_login import form_of, own_place

        form = form_of(body_of(request))
        place = own_place(form.get("next", "/"))
        response = web.Response(status=303, headers={**self._headers, "Location": place})
        error = await self._port.log_in(request, response, form.get("token", "").strip().encode())
        if error is None:
            return response
        words, status = (_WRONG, 401) if isinstance(error, Unauthorized) else (_TOO_MANY, 429)
        return await self._page(request, place, words, status)

    async def log_out(self, request: web.Request) -> web.StreamResponse:
        from aiohttp import web

        from stratalog.telemetry.web_login import LOGIN

        response = web.Response(status=303, headers={**self._headers, "Location": LOGIN})
        self._port.log_out(request, response)
        return response

    async def _page(self, request: web.Request, place: str, words: str = "", status: int = 200) -> web.StreamResponse:
        from aiohttp import web

        from stratalog.telemetry.web_login import own_place

        is_readable = not self._port.is_secure and not is_loopback((request.url.host or "").strip("[]"))
        extra = {"words": words, "place": own_place(place), "is_readable": is_readable}
        page = Page("login.html", "Log in", "", {}, extra, is_live=False)
        text = await asyncio.to_thread(render, page, "")
        return web.Response(text=text, status=status, content_type="text/html", headers=self._headers)

    def error_page(self, error: StratalogError, status: int, who: str) -> web.Response:
        """For a person whose role does not suffice."""
        from aiohttp import web

        extra = {"leader": "", "leader_url": "", "status": status}
        page = Page("error.html", "Not allowed", "", {"words": str(error)}, extra, is_live=False)
        text = render(page, "", who)
        return web.Response(text=text, status=status, content_type="text/html", headers=self._headers)
