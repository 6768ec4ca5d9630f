"""Which HTTP requests come from a foreign web page, and which from our own pages or a program."""

from __future__ import annotations

import pytest

from stratalog.telemetry.request_guard import Asked, ServedNames, check_request

NAMES = ServedNames("node.internal", "stratalog-0.stratalog.default.svc, .svc.cluster.local,")
JSON = "application/json"


def status_of(method: str = "GET", host: str = "localhost:9644", **headers: str) -> int | None:
    refused = check_request(Asked(method, (host,), **headers), NAMES)
    return None if refused is None else refused.status


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:9644",
        "127.0.0.1",
        "10.244.3.17:9644",
        "[::1]:9644",
        "[fd00::17]",
        "localhost:9644",
        "LOCALHOST",
        "localhost.:9644",
        "node.internal:9644",
        "stratalog-0.stratalog.default.svc:9644",
        "stratalog-1.stratalog.default.svc.cluster.local",
    ],
)
def test_addresses_and_the_names_it_is_served_under_are_taken(host: str) -> None:
    """Probes and scrapes come by the pod's address, users by a name that is listed."""
    assert status_of(host=host) is None


@pytest.mark.fault("web-page-browser-sends")
@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:9644",
        "localhost.evil.example",
        "evilsvc.cluster.local",
        "127.0.0.1.evil.example:9644",
        "127.1:9644",
        "0x7f000001",
        "[evil]",
        "localhost:9644:9644",
        "localhost@evil.example",
        "evil.example/localhost",
        "",
        ":9644",
        " localhost",
    ],
)
def test_a_name_that_rebinding_could_have_brought_is_refused(host: str) -> None:
    assert status_of(host=host) == 403


def test_a_request_names_its_host_once() -> None:
    for host in ((), ("localhost", "localhost"), ("localhost", "evil.example")):
        refused = check_request(Asked("GET", host), NAMES)
        assert refused is not None and refused.status == 400


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:9644", "http://localhost:9644"),
        ("127.0.0.1:9644", "http://127.0.0.1:9644"),
        ("[::1]:9644", "http://[::1]:9644"),
        ("node.internal", "http://node.internal"),
        ("node.internal", "https://node.internal"),
        ("node.internal:443", "https://node.internal"),
    ],
)
def test_its_own_pages_may_ask(host: str, origin: str) -> None:
    assert status_of("POST", host, origin=origin, fetch_site="same-origin", content_type=JSON) is None


@pytest.mark.fault("web-page-browser-sends")
@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "https://evil.example:9644",
        "http://localhost:3000",
        "http://localhost",
        "http://127.0.0.1:9644",
        "http://user@localhost:9644",
        "http://localhost:99999",
        "http://[localhost",
        "chrome-extension://localhost:9644",
        "null",
        "",
    ],
)
def test_a_page_of_another_origin_may_not(origin: str) -> None:
    assert status_of("GET", origin=origin) == 403
    assert status_of("POST", origin=origin, content_type=JSON) == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
def test_what_a_browser_says_of_another_site_is_believed(site: str) -> None:
    """A page on another port of the same machine is `same-site`."""
    assert status_of("POST", fetch_site=site, content_type=JSON) == 403
    assert status_of("GET", fetch_site=site, fetch_mode="no-cors", fetch_dest="image") == 403
    assert status_of("GET", fetch_site=site, fetch_mode="navigate", fetch_dest="iframe") == 403
    assert status_of("POST", fetch_site=site, fetch_mode="navigate", fetch_dest="document", content_type=JSON) == 403


def test_a_link_to_the_status_page_may_be_followed_from_anywhere() -> None:
    assert status_of("GET", fetch_site="cross-site", fetch_mode="navigate", fetch_dest="document") is None


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_a_change_says_that_it_is_json(method: str) -> None:
    assert status_of(method, content_type=JSON) is None
    assert status_of(method, content_type="Application/JSON; charset=utf-8") is None
    assert status_of(method) == 415
    for form in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=application/json"):
        assert status_of(method, content_type=form) == 415
    assert status_of(method, content_type="application/jsonp") == 415


def test_a_question_needs_no_content_type() -> None:
    assert status_of("GET") is None
    assert status_of("HEAD") is None
