"""People log in to the pages with a token, once, and no other site can make their browser act for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st

from stratalog.machines.sasl.token_guesses import TokenGuesses
from stratalog.model.tokens import NamedToken, parse_named_tokens
from stratalog.telemetry.http_access import HttpAccess
from stratalog.telemetry.web_login import MOST_FORM_BYTES, WebLogins, form_of, login_address, own_place
from stratalog_meta import MetaService
from stratalog_meta.api.server import MetaServer
from stratalog_meta.stores.memory import MemoryStore
from support.audit_lines import KeptAudit
from support.meta_worlds import HandClock

CLUSTER_TOKEN, VIEWER_TOKEN = "the-token-of-this-cluster", "the-token-of-a-viewer"
BROWSER = {"Accept": "text/html,*/*"}


@dataclass
class Answer:
    status: int
    headers: Any
    text: str

    @property
    def place(self) -> str | None:
        return None if self.status != 303 else self.headers["Location"]

    @property
    def cookie(self) -> str | None:
        """What is set, with its attributes."""
        return self.headers.get("Set-Cookie")


@dataclass
class Browser:
    """Keeps one cookie, and sends what a browser sends with a form of the page itself."""

    http: aiohttp.ClientSession
    origin: str
    audit: KeptAudit
    named: list[NamedToken]
    server: MetaServer
    cookies: dict[str, str] = field(default_factory=dict)

    async def ask(self, method: str, path: str, headers: dict[str, str] | None = None, data: Any = None) -> Answer:
        sent = BROWSER | (headers or {})
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        async with self.http.request(method, path, headers=sent, data=data, allow_redirects=False) as answer:
            for name, cookie in answer.cookies.items():
                self.cookies[name] = cookie.value
            return Answer(answer.status, answer.headers.copy(), await answer.text())

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.ask("GET", path, headers)

    async def log_in(self, token: str, place: str = "/", headers: dict[str, str] | None = None) -> Answer:
        sent = {"Origin": self.origin, "Sec-Fetch-Site": "same-origin"} if headers is None else headers
        return await self.ask("POST", "/login", sent, {"token": token, "next": place})


@asynccontextmanager
async def browser(*, has_token: bool = True, guesses: TokenGuesses | None = None) -> AsyncIterator[Browser]:
    service = MetaService(MemoryStore(), HandClock())
    await service.start()
    named = list(parse_named_tokens(f"viewer grafana {VIEWER_TOKEN}", "file"))
    access = HttpAccess(lambda: (CLUSTER_TOKEN,), named=lambda: named, guesses=guesses) if has_token else None
    audit = KeptAudit()
    server = MetaServer(service, access=access, audit=audit)
    await server.start("127.0.0.1", 0)
    async with aiohttp.ClientSession(server.address, cookie_jar=aiohttp.DummyCookieJar()) as http:
        yield Browser(http, server.address, audit, named, server)
    await server.close()
    await service.close()
    audit.close()


async def test_a_browser_is_led_to_the_login_and_back_to_the_page_that_it_asked_for() -> None:
    async with browser() as one:
        asked = await one.get("/topics?search=a%26b")
        assert asked.place == "/login?next=%2Ftopics%3Fsearch%3Da%2526b"
        form = await one.get(asked.place)
        assert form.status == 200 and 'value="/topics?search=a%26b"' in form.text
        assert 'type="password" name="token"' in form.text and 'method="post" action="/login"' in form.text
        done = await one.log_in(CLUSTER_TOKEN, "/topics?search=a%26b")
        assert done.place == "/topics?search=a%26b"
        page = await one.get("/topics")
        assert page.status == 200 and "cluster (admin)" in page.text and 'action="/logout"' in page.text
        assert (await one.get("/?format=json")).status == 200
        assert [(line["principal"], line["action"], line["outcome"]) for line in one.audit.written()] == [
            ("Token:cluster", "Login", "done")
        ]


async def test_the_cookie_is_kept_from_scripts_and_other_sites_and_holds_no_token() -> None:
    async with browser() as one:
        done = await one.log_in(VIEWER_TOKEN)
        assert done.cookie is not None
        name, _, rest = done.cookie.partition("=")
        attributes = {part.strip().lower() for part in rest.split(";")[1:]}
        assert {"httponly", "samesite=strict", "path=/", "max-age=43200"} <= attributes
        assert "secure" not in attributes and not any(part.startswith("domain") for part in attributes)
        assert name == f"stratalog-{one.origin.rpartition(':')[2]}", "another port of this host has another cookie"
        shown = done.text + repr(done.headers) + (await one.get("/")).text
        assert VIEWER_TOKEN not in shown
        assert "no-store" in done.headers["Cache-Control"]


async def test_a_wrong_token_begins_no_session_and_is_repeated_nowhere() -> None:
    async with browser() as one:
        for wrong in ("a-token-that-is-wrong", "", "<script>alert(1)</script>", CLUSTER_TOKEN + "x"):
            refused = await one.log_in(wrong)
            assert (refused.status, refused.cookie) == (401, None)
            assert "not a token of this cluster" in refused.text
            assert not wrong or wrong not in refused.text
        assert (await one.get("/")).place == "/login"
        lines = one.audit.written()
        assert [(line["resource"], line["outcome"], line["error"]) for line in lines[:1]] == [
            ("/login", "denied", "Unauthorized")
        ]


async def test_no_other_site_can_log_a_browser_in_or_out() -> None:
    async with browser() as one:
        await one.log_in(VIEWER_TOKEN)
        kept = dict(one.cookies)
        for headers in (
            {"Origin": "http://page.example"},
            {"Origin": "null"},
            {"Origin": one.origin, "Sec-Fetch-Site": "cross-site"},
            {"Origin": one.origin.rpartition(":")[0] + ":1"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "none"},
            {},
        ):
            refused = await one.log_in(CLUSTER_TOKEN, headers=headers)
            assert (refused.status, refused.cookie) == (403, None), headers
            assert (await one.ask("POST", "/logout", headers, {})).status == 403, headers
        assert one.cookies == kept and "grafana (viewer)" in (await one.get("/")).text


async def test_a_form_is_taken_by_the_login_alone() -> None:
    async with browser() as one:
        await one.log_in(CLUSTER_TOKEN)
        own = {"Origin": one.origin, "Sec-Fetch-Site": "same-origin"}
        for path in ("/v1/commands/create-topic", "/v1/heartbeat", "/nowhere"):
            assert (await one.ask("POST", path, own, {"name": "orders"})).status == 415
        assert (await one.ask("POST", "/login", own | {"Content-Type": "text/plain"}, b"token=x")).status == 415


async def test_a_cookie_opens_nothing_to_a_page_of_another_site() -> None:
    async with browser() as one:
        await one.log_in(CLUSTER_TOKEN)
        assert (await one.get("/", Origin="http://page.example")).status == 403
        assert (await one.get("/v1/topics", **{"Sec-Fetch-Site": "cross-site"})).status == 403


async def test_a_logout_ends_the_session_also_for_whoever_kept_the_cookie() -> None:
    async with browser() as one:
        await one.log_in(VIEWER_TOKEN)
        kept = dict(one.cookies)
        own = {"Origin": one.origin, "Sec-Fetch-Site": "same-origin"}
        out = await one.ask("POST", "/logout", own, {})
        assert out.place == "/login" and out.cookie is not None and "Max-Age=0" in out.cookie
        one.cookies = kept
        assert (await one.get("/")).place == "/login"
        assert (await one.ask("POST", "/logout", own, {})).place == "/login", "twice does no harm"


async def test_a_new_login_ends_the_session_before_it() -> None:
    async with browser() as one:
        await one.log_in(VIEWER_TOKEN)
        kept = dict(one.cookies)
        await one.log_in(CLUSTER_TOKEN)
        assert "cluster (admin)" in (await one.get("/")).text
        one.cookies = kept
        assert (await one.get("/")).place == "/login"


async def test_a_token_that_is_removed_ends_its_sessions() -> None:
    async with browser() as one:
        await one.log_in(VIEWER_TOKEN)
        assert (await one.get("/")).status == 200
        one.named.clear()
        assert (await one.get("/")).place == "/login"


async def test_a_person_whose_role_does_not_suffice_gets_a_page_that_says_so() -> None:
    async with browser() as one:
        await one.log_in(VIEWER_TOKEN)
        page = await one.get("/topics/orders/records")
        assert page.status == 403 and "Not allowed" in page.text and "needs the role operator" in page.text
        assert "grafana (viewer)" in page.text


async def test_programs_get_401_and_a_token_in_an_address_opens_nothing() -> None:
    async with browser() as one:
        answer = await one.get("/", Accept="application/json")
        assert answer.status == 401 and "Basic" not in repr(answer.headers), "no browser asks beside the form"
        for query in ("token", "access_token", "auth"):
            assert (await one.get(f"/?{query}={CLUSTER_TOKEN}")).status == 303
        assert (await one.get("/", Authorization=f"Bearer {CLUSTER_TOKEN}")).status == 200
        for name in ("ui.css", "icon.svg", "refresh.js"):
            assert (await one.get(f"/ui/{name}")).status == 200, "the login page needs it"


async def test_a_cookie_that_is_made_up_opens_nothing() -> None:
    async with browser() as one:
        name = f"stratalog-{one.origin.rpartition(':')[2]}"
        for value in ("", "x", "a" * 8_000, CLUSTER_TOKEN, '"', "%00"):
            one.cookies = {name: value}
            assert (await one.get("/")).place == "/login"


async def test_a_cookie_reads_and_changes_nothing_whatever_its_token_may() -> None:
    async with browser() as one:
        await one.log_in(CLUSTER_TOKEN)
        own = {"Origin": one.origin, "Sec-Fetch-Site": "same-origin", "Content-Type": "application/json"}
        assert (await one.ask("POST", "/v1/commands/create-topic", own, b"{}")).status == 401
        assert (await one.get("/v1/snapshot")).status == 200
        assert (await one.get("/v1/snapshot?credentials=true")).status == 403, "keys of users are for parts"


async def test_guesses_beyond_a_few_at_a_time_are_not_looked_at() -> None:
    async with browser(guesses=TokenGuesses(100, most_waiting=0)) as one:
        refused = await one.log_in(CLUSTER_TOKEN)
        assert (refused.status, refused.cookie) == (429, None) and "Try again in a few seconds" in refused.text


async def test_an_answer_to_a_wrong_token_waits_and_others_do_not() -> None:
    async with browser(guesses=TokenGuesses(3_600_000)) as one:
        guess = asyncio.create_task(one.log_in("a-token-that-is-wrong"))
        async with asyncio.timeout(60):
            while not one.server.stats.unauthorized:
                await asyncio.sleep(0)
        assert (await one.log_in(VIEWER_TOKEN)).place == "/" and not guess.done()
        guess.cancel()


async def test_a_form_is_small() -> None:
    async with browser() as one:
        own = {"Origin": one.origin}
        answer = await one.ask("POST", "/login", own, {"token": "x" * MOST_FORM_BYTES})
        assert answer.status == 413


async def test_the_form_warns_where_the_token_could_be_read_on_the_way() -> None:
    async with browser() as one:
        assert "not encrypted" not in (await one.get("/login")).text
        assert "not encrypted" in (await one.get("/login", Host="10.0.0.7:8080")).text


def test_over_tls_the_cookie_is_secure_and_no_plain_port_can_set_it() -> None:
    logins, response = WebLogins(lambda: 0, is_secure=True), web.Response()
    logins.begin(make_mocked_request("POST", "/login", {"Host": "node-1:9404"}), response, b"digest")
    cookie = response.cookies["__Host-stratalog-9404"]
    assert cookie["secure"] and cookie["path"] == "/" and not cookie["domain"]
    shown = make_mocked_request("GET", "/", {"Host": "node-1:9404", "Cookie": f"__Host-stratalog-9404={cookie.value}"})
    assert logins.token_digest(shown) == b"digest"
    planted = make_mocked_request("GET", "/", {"Host": "node-1:9404", "Cookie": f"stratalog-9404={cookie.value}"})
    assert logins.token_digest(planted) is None


async def test_what_says_where_a_request_comes_from_is_said_once() -> None:
    async with browser() as one:
        own = ("Content-Type", "application/x-www-form-urlencoded"), ("Origin", one.origin)
        form = f"token={VIEWER_TOKEN}".encode()
        for doubled, status in (
            (own, 303),
            ((*own, ("Origin", "http://page.example")), 400),
            ((*own, ("Content-Type", "application/json")), 400),
            ((("Content-Type", "application/json"), own[1]), 415),
        ):
            async with one.http.post("/login", headers=doubled, data=form, allow_redirects=False) as answer:
                assert answer.status == status, doubled


async def test_an_address_in_the_request_line_names_the_host_of_its_header() -> None:
    async with browser() as one:
        port = int(one.origin.rpartition(":")[2])
        for address, status in (("http://localhost/healthz", b"200"), ("http://page.example/healthz", b"400")):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET {address} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            assert (await reader.readline()).split()[1] == status
            writer.close()


@pytest.mark.parametrize("port", ["99999", "0", ""])
async def test_a_host_with_a_strange_port_is_led_to_the_login(port: str) -> None:
    async with browser() as one:
        assert (await one.get("/", Host=f"localhost:{port}" if port else "localhost")).place == "/login"


async def test_a_port_without_a_token_has_no_login() -> None:
    async with browser(has_token=False) as one:
        assert (await one.get("/")).status == 200
        assert (await one.get("/login")).status == 404
        assert (await one.log_in(CLUSTER_TOKEN)).status == 415


@pytest.mark.parametrize(
    "place",
    [
        "//evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "http://evil.example/",
        "javascript:alert(1)",
        "evil.example",
        "",
        "/\t/evil.example",
        "/\r\nSet-Cookie: a=b",
        "/" + "x" * 3_000,
        "/ü",
    ],
)
async def test_a_login_leads_to_no_other_site(place: str) -> None:
    assert own_place(place) == "/" and login_address(place) == "/login"
    async with browser() as one:
        assert (await one.log_in(VIEWER_TOKEN, place)).place == "/"


@given(st.binary(max_size=200))
def test_whatever_a_form_brings_is_read_without_a_fault(body: bytes) -> None:
    assert all(isinstance(value, str) for value in form_of(body).values())
