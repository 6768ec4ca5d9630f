"""The HTTP port: metrics, liveness, readiness."""

from __future__ import annotations

import aiohttp
import pytest
from aiohttp import web

from stratalog.model.errors import InvalidRequest, Unavailable
from stratalog.telemetry.http import TelemetryServer, split_address
from stratalog.telemetry.metrics import MetricRegistry
from support.open_routes import for_viewers


async def fetch(address: str, path: str) -> tuple[int, str, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}{path}") as answer:
        return answer.status, answer.content_type, await answer.text()


async def test_a_server_shows_metrics_life_and_readiness() -> None:
    registry = MetricRegistry()
    registry.register("stratalog_x", "gauge", "x", lambda: 42)
    waiting_for: dict[str, str] = {"disk": "full"}
    server = TelemetryServer(registry, readiness=lambda: waiting_for)
    address = await server.start("127.0.0.1:0")
    try:
        status, kind, text = await fetch(address, "/metrics")
        assert (status, kind) == (200, "text/plain")
        assert "stratalog_x 42\n" in text
        assert (await fetch(address, "/healthz"))[0] == 200
        status, _, text = await fetch(address, "/readyz")
        assert status == 503 and '"disk": "full"' in text
        waiting_for.clear()
        assert (await fetch(address, "/readyz"))[0] == 200
    finally:
        await server.stop()


async def test_routes_can_be_added() -> None:
    async def hello(_request: web.Request) -> web.Response:
        return web.Response(text="hello")

    server = TelemetryServer(MetricRegistry(), add_routes=for_viewers(lambda app: app.router.add_get("/hello", hello)))
    address = await server.start("127.0.0.1:0")
    try:
        assert (await fetch(address, "/hello"))[2] == "hello"
    finally:
        await server.stop()


async def test_an_address_in_use_is_refused_with_the_setting() -> None:
    first, second = TelemetryServer(MetricRegistry()), TelemetryServer(MetricRegistry())
    address = await first.start("127.0.0.1:0")
    try:
        with pytest.raises(Unavailable, match=r"metrics\.listen"):
            await second.start(address)
        await second.stop()
    finally:
        await first.stop()


async def test_who_connects_before_the_server_is_up_is_answered() -> None:
    server = TelemetryServer(MetricRegistry())
    address = await server.start("127.0.0.1:0")
    # `start` returned before aiohttp was set up: the request waits in the backlog.
    try:
        assert (await fetch(address, "/healthz"))[0] == 200
    finally:
        await server.stop()


async def test_stopping_at_once_leaves_nothing_behind() -> None:
    server = TelemetryServer(MetricRegistry())
    address = await server.start("127.0.0.1:0")
    await server.stop()

    with pytest.raises(aiohttp.ClientConnectionError):
        await fetch(address, "/healthz")


@pytest.mark.parametrize(
    ("text", "parts"), [("localhost:1", ("localhost", 1)), ("[::1]:9644", ("::1", 9644)), ("0.0.0.0:0", ("0.0.0.0", 0))]
)
def test_an_address_is_host_and_port(text: str, parts: tuple[str, int]) -> None:
    assert split_address(text) == parts


@pytest.mark.parametrize("text", ["", "9644", ":9644", "host", "host:", "host:x"])
def test_what_is_not_an_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        split_address(text)
