"""What an HTTP port refuses for a missing right is in the audit log: counted by kind, without what was sent."""

from __future__ import annotations

import aiohttp

from stratalog.telemetry.http import TelemetryServer
from stratalog.telemetry.http_access import HttpAccess
from stratalog.telemetry.metrics import MetricRegistry
from support.audit_lines import KeptAudit

TOKEN = "the-token-of-this-cluster"


async def test_requests_without_the_token_and_of_foreign_pages_are_counted_by_kind() -> None:
    audit = KeptAudit()
    server = TelemetryServer(MetricRegistry(), access=HttpAccess(lambda: (TOKEN,)), audit=audit)
    url = f"http://{await server.start('127.0.0.1:0')}"
    right = {"Authorization": f"Bearer {TOKEN}"}
    asked = (
        *[("GET", "/metrics", {"Authorization": "Bearer guess-of-a-token"})] * 5,
        ("GET", "/metrics", right),
        ("GET", "/metrics", right | {"Origin": "http://page.example"}),
        ("GET", "/healthz", {}),
        ("GET", "/secret-path-guess", {}),
        ("PROPFIND", "/metrics", {}),
    )
    async with aiohttp.ClientSession(url) as http:
        for method, path, headers in asked:
            async with http.request(method, path, headers=headers) as answer:
                await answer.read()
    await server.stop()
    lines = audit.written()
    assert [(one["action"], one["resource"], one["error"], one.get("count", 1)) for one in lines] == [
        ("GET", "/metrics", "Unauthorized", 1),
        ("GET", "/metrics", "ForeignPage", 1),
        ("GET", "(no route)", "Unauthorized", 1),
        ("(unknown method)", "(no route)", "Unauthorized", 1),
        ("GET", "/metrics", "Unauthorized", 4),
    ]
    assert {(one["principal"], one["address"], one["outcome"], one["resource_type"]) for one in lines} == {
        ("User:ANONYMOUS", "127.0.0.1", "denied", "HTTP")
    }
    assert "guess" not in repr(lines) and TOKEN not in repr(lines)
