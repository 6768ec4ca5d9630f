"""Tokens with roles on an HTTP port: what each opens, what a wrong one costs, and what every route declares."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from stratalog.machines.sasl.token_guesses import MOST_WAITING, TokenGuesses
from stratalog.model.errors import Forbidden
from stratalog.model.rights import Principal
from stratalog.model.roles import (
    ANYONE,
    CLUSTER,
    FOR_ADMINS,
    FOR_ADMINS_AND_PARTS,
    FOR_OPERATORS,
    FOR_PARTS,
    FOR_VIEWERS,
    Caller,
    Role,
    caller_of_part,
)
from stratalog.model.tokens import NamedToken, digest_of, parse_named_tokens
from stratalog.telemetry import http_port
from stratalog.telemetry.http import TelemetryServer
from stratalog.telemetry.http_access import HttpAccess, http_access
from stratalog.telemetry.http_port import asker_of, declare, require
from stratalog.telemetry.metrics import MetricRegistry
from stratalog.telemetry.token_file import RoleFile
from support.audit_lines import KeptAudit

CLUSTER_TOKEN = "the-token-of-this-cluster"
TOKENS = {role: f"the-token-of-the-{role.name.lower()}" for role in Role}
NAMED = parse_named_tokens("".join(f"{role.name.lower()} n-{role.name} {TOKENS[role]}\n" for role in Role), "file")
NEEDS = {"view": FOR_VIEWERS, "operate": FOR_OPERATORS, "admin": FOR_ADMINS, "node": FOR_PARTS}


def access(guesses: TokenGuesses | None = None) -> HttpAccess:
    return HttpAccess(lambda: (CLUSTER_TOKEN,), named=lambda: NAMED, guesses=guesses)


class Port:
    def __init__(self, server: TelemetryServer, http: aiohttp.ClientSession, audit: KeptAudit) -> None:
        self.server = server
        self.http = http
        self.audit = audit

    async def status(self, path: str, token: str | None = None, method: str = "GET") -> int:
        return (await self.ask(path, token, method))[0]

    async def ask(self, path: str, token: str | None = None, method: str = "GET") -> tuple[int, str]:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with self.http.request(method, path, headers=headers) as answer:
            return answer.status, await answer.text()


@asynccontextmanager
async def port(asked: HttpAccess | None) -> AsyncIterator[Port]:
    async def handle(request: web.Request) -> web.Response:
        try:
            require(request, FOR_ADMINS_AND_PARTS if "force" in request.query else FOR_VIEWERS)
        except Forbidden as error:
            return web.Response(status=403, text=str(error))
        return web.Response(text=asker_of(request).principal)

    def add(application: web.Application) -> None:
        for name, needs in NEEDS.items():
            application.router.add_get(f"/{name}", handle)
            declare(application, {("GET", f"/{name}"): needs})

    audit = KeptAudit()
    server = TelemetryServer(MetricRegistry(), add_routes=add, access=asked, audit=audit)
    address = await server.start("127.0.0.1:0")
    async with aiohttp.ClientSession(f"http://{address}") as http:
        yield Port(server, http, audit)
    await server.stop()
    audit.close()


@pytest.mark.parametrize(
    "token, opened, principal",
    [
        (TOKENS[Role.VIEWER], {"view"}, "Token:n-VIEWER"),
        (TOKENS[Role.OPERATOR], {"view", "operate"}, "Token:n-OPERATOR"),
        (TOKENS[Role.ADMIN], {"view", "operate", "admin"}, "Token:n-ADMIN"),
        (CLUSTER_TOKEN, {"view", "operate", "admin", "node"}, "Token:cluster"),
    ],
)
async def test_a_token_opens_what_its_role_includes(token: str, opened: set[str], principal: str) -> None:
    async with port(access()) as one:
        for name in NEEDS:
            status, text = await one.ask(f"/{name}", token)
            assert (status == 200) is (name in opened) and status in (200, 403), name
            assert text == principal if status == 200 else "has the role" in text
            assert await one.status(f"/{name}", token, "HEAD") == status, "HEAD asks for what GET asks for"
        assert await one.status("/metrics", token) == 200
        assert await one.status("/nowhere", token) == 404
        assert one.server.stats.forbidden == 2 * (len(NEEDS) - len(opened))
        lines = one.audit.written()
        denied = {(line["resource"], line["principal"], line["error"]) for line in lines}
        assert denied == {(f"/{name}", principal, "Forbidden") for name in NEEDS.keys() - opened}


async def test_a_handler_may_ask_for_more_than_its_route() -> None:
    async with port(access()) as one:
        assert await one.status("/view?force", TOKENS[Role.OPERATOR]) == 403
        assert await one.status("/view?force", TOKENS[Role.ADMIN]) == 200
        assert await one.status("/view?force", CLUSTER_TOKEN) == 200


async def test_without_a_token_nothing_is_open_and_a_port_that_asks_for_none_is_open_to_all() -> None:
    async with port(access()) as one:
        for name in (*NEEDS, "metrics", "nowhere"):
            assert await one.status(f"/{name}") == 401
        assert await one.status("/healthz") == 200
    async with port(None) as one:
        for name in NEEDS:
            assert await one.ask(f"/{name}?force") == (200, ANYONE.principal)


async def test_answers_to_wrong_tokens_wait_longer_and_longer_and_others_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[float] = []

    async def sleep(seconds: float, *_: Any) -> None:
        if seconds:
            waited.append(seconds)

    async with port(access(TokenGuesses(100))) as one:
        monkeypatch.setattr(http_port.asyncio, "sleep", sleep)
        for number in range(9):
            assert await one.status("/view", f"a-guess-of-a-token-{number}") == 401
            assert await one.status("/view") == 401
            assert await one.status("/view", TOKENS[Role.VIEWER]) == 200
        monkeypatch.undo()
    assert waited == [0.1, 0.1, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]


async def test_a_waiting_answer_delays_nobody_else() -> None:
    async with port(access(TokenGuesses(3_600_000))) as one:
        guess = asyncio.create_task(one.status("/view", "a-guess-of-a-token"))
        async with asyncio.timeout(60):
            while not one.server.stats.unauthorized:
                await asyncio.sleep(0)
            assert await one.status("/view", TOKENS[Role.VIEWER]) == 200
        assert not guess.done()
        guess.cancel()


async def test_few_guesses_of_an_address_wait_at_a_time_and_further_ones_are_not_looked_at() -> None:
    async with port(access(TokenGuesses(3_600_000))) as one:
        assert await one.status("/view", TOKENS[Role.VIEWER]) == 200, "a connection that has shown a token"
        guesses = [asyncio.create_task(one.status("/view", f"a-guess-of-a-token-{n}")) for n in range(MOST_WAITING)]
        async with asyncio.timeout(60):
            while one.server.stats.unauthorized < MOST_WAITING:
                await asyncio.sleep(0)
        async with aiohttp.ClientSession(one.http._base_url) as other:
            for token in ("another-guess-of-a-token", TOKENS[Role.ADMIN]):
                async with other.get("/view", headers={"Authorization": f"Bearer {token}"}) as answer:
                    assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
            async with other.get("/healthz") as answer:
                assert answer.status == 200
        assert not any(guess.done() for guess in guesses)
        for guess in guesses:
            guess.cancel()


async def test_a_connection_that_has_shown_a_token_is_served_while_its_address_guesses() -> None:
    guesses = TokenGuesses(3_600_000, most_waiting=0)
    async with port(access(guesses)) as one:
        assert await one.status("/view", TOKENS[Role.VIEWER]) == 429
    allowed = [True, False]
    guesses.may_guess = lambda _: allowed.pop(0)  # type: ignore[method-assign]  # a flood that begins in between
    async with port(access(guesses)) as one:
        assert [await one.status("/view", TOKENS[Role.VIEWER]) for _ in range(2)] == [200, 200]
        assert allowed == [False]


def test_guesses_are_counted_while_they_wait_alone() -> None:
    guesses = TokenGuesses(100, most_waiting=2)
    assert [guesses.begin("10.0.0.7", 0), guesses.begin("10.0.0.7", 0)] == [100, 100]
    assert not guesses.may_guess("10.0.0.7") and guesses.may_guess("10.0.0.8")
    guesses.end("10.0.0.7")
    assert guesses.may_guess("10.0.0.7")
    guesses.end("10.0.0.7")
    assert not guesses._waiting, "an address without a guess is not remembered"


@pytest.mark.parametrize("hidden", [b"", b"short"])
def test_a_hash_of_something_short_opens_nothing(hidden: bytes) -> None:
    named = (NamedToken("alice", Role.ADMIN, digest_of(hidden)),)
    asked = HttpAccess(tuple, named=lambda: named)
    assert asked.caller([f"Bearer {hidden.decode()}"]) is None and asked.caller(["Basic Og=="]) is None


def test_a_port_with_named_tokens_alone_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "roles"
    path.write_text(f"viewer grafana {TOKENS[Role.VIEWER]}\n")
    closed = http_access(None, RoleFile(path))
    assert closed is not None and closed.caller([]) is None
    known = closed.caller([f"Bearer {TOKENS[Role.VIEWER]}"])
    assert known == Caller("Token:grafana", Role.VIEWER)


async def test_a_port_with_a_route_that_declares_nothing_does_not_open() -> None:
    server = TelemetryServer(
        MetricRegistry(), add_routes=lambda app: app.router.add_get("/undeclared", lambda _: web.Response())
    )
    await server.start("127.0.0.1:0")
    assert server._serving is not None
    with pytest.raises(AssertionError, match="do not declare the role that they need: GET /undeclared"):
        await server._serving
    await server.stop()


@pytest.mark.parametrize(
    "principal, caller",
    [
        (Principal("Node", "3"), Caller("Node:3", Role.VIEWER, is_part=True)),
        (Principal("Meta", ""), Caller("Meta:", Role.VIEWER, is_part=True)),
        (Principal("Operator", ""), Caller("Operator:", Role.ADMIN, is_part=True)),
        (Principal("User", "CN=alice"), None),
        (Principal("User", "Node:3"), None),
        (Principal("node", "3"), None),
    ],
)
def test_certificates_of_parts_have_their_own_roles_and_those_of_users_none(
    principal: Principal, caller: Caller | None
) -> None:
    assert caller_of_part(principal) == caller


def test_only_parts_do_what_is_for_parts() -> None:
    node, operator = caller_of_part(Principal("Node", "3")), caller_of_part(Principal("Operator", ""))
    assert node is not None and operator is not None
    assert node.may(FOR_PARTS) and CLUSTER.may(FOR_PARTS) and operator.may(FOR_PARTS)
    assert not Caller("Token:x", Role.ADMIN).may(FOR_PARTS)
    assert not node.may(FOR_OPERATORS) and not node.may(FOR_ADMINS) and node.may(FOR_VIEWERS)
    assert not Caller("Token:x", None).may(FOR_VIEWERS)
