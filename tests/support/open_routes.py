"""Routes that tests add to an HTTP port of their own."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from stratalog.model.roles import FOR_VIEWERS
from stratalog.telemetry.http_port import declare, routes_without_needs


def for_viewers(add: Callable[[web.Application], object]) -> Callable[[web.Application], None]:
    """Adds the routes, and declares that all of them are for viewers."""

    def added(application: web.Application) -> None:
        add(application)
        missing = (tuple(one.split(" ", 1)) for one in routes_without_needs(application))
        declare(application, dict.fromkeys(missing, FOR_VIEWERS))

    return added
