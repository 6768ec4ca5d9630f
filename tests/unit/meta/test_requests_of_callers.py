"""Each request to each HTTP port, as each kind of caller, over TLS: the answers are those that the page promises."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from stratalog.machines.rights.members import Senders
from stratalog.machines.tiering.chunk_merging import COMPACTION_LOCK
from stratalog.meta_api.wire import wire_of
from stratalog.model.commands import table_commands as commands
from stratalog.model.metadata import Life, Lock, life_name
from stratalog.model.roles import (
    FOR_ADMINS,
    FOR_ADMINS_AND_PARTS,
    FOR_ANYONE,
    FOR_OPERATORS,
    FOR_OPERATORS_AND_PARTS,
    FOR_PARTS,
    FOR_VIEWERS,
    Needs,
    Role,
)
from stratalog.settings.choices import ClientAuth
from stratalog.telemetry.http import TelemetryServer
from stratalog.telemetry.http_access import HttpAccess
from stratalog.telemetry.http_port import _NEEDS, HttpPort
from stratalog.telemetry.http_tls import PortTls
from stratalog.telemetry.metrics import MetricRegistry
from stratalog.tls.contexts import TlsRules
from stratalog.tls.identity import TlsIdentity
from stratalog.tls.material import TlsFiles
from stratalog.tls.subjects import member_of
from stratalog.ui.application import UI_NEEDS
from stratalog_cli.cluster.page import PAGE_NEEDS
from support.certificates import Authority
from support.meta_worlds import running
from support.stream_client import client_side
from unit.admin.test_admin_slices import new_meta, pages_of
from unit.meta.test_meta_http_numbers import commands_with_numbers
from unit.meta.test_meta_tls import TOKEN, secure
from unit.telemetry.test_http_roles import NAMED, TOKENS

PAGE = Path("docs/security-spec.md").read_text()
WORDS = {
    "nothing": FOR_ANYONE,
    "viewer": FOR_VIEWERS,
    "operator": FOR_OPERATORS,
    "operator, or a part": FOR_OPERATORS_AND_PARTS,
    "admin": FOR_ADMINS,
    "admin, or a part": FOR_ADMINS_AND_PARTS,
    "a part": FOR_PARTS,
}
ACCESS = HttpAccess(lambda: (TOKEN,), named=lambda: NAMED)
COMMANDS = "POST /v1/commands/"
ONE = Life(1, 5)


@dataclass(frozen=True)
class Who:
    """A caller: what its certificate names, the token that it shows, and its column in the page's table."""

    name: str
    column: str
    certificate: str | None = None
    token: str | None = None

    def __str__(self) -> str:
        return self.name


_NOBODY, _PARTS, _ALL = (
    "nobody known",
    "a node, the meta service",
    "the operator of Kubernetes, the token of the cluster",
)
CALLERS = (
    Who("nobody", _NOBODY),
    Who("a client's certificate", _NOBODY, "alice"),
    Who("a wrong token", _NOBODY, token="a-token-of-no-cluster-at-all"),
    *(Who(f"{role.name.lower()}", f"`{role.name.lower()}`", token=TOKENS[role]) for role in Role),
    Who("a client's certificate with a viewer's token", "`viewer`", "alice", TOKENS[Role.VIEWER]),
    # A token adds nothing to what the certificate of a member allows.
    Who("node 1", _PARTS, "node/1", TOKEN),
    Who("node 2", _PARTS, "node/2", TOKENS[Role.ADMIN]),
    Who("the meta service", _PARTS, "meta", TOKEN),
    Who("the operator of Kubernetes", _ALL, "operator"),
    Who("the token of the cluster", _ALL, token=TOKEN),
)


def rows(head: str) -> Iterator[list[str]]:
    """Of the table with this head."""
    for row in PAGE.split(head)[1].split("\n\n")[0].splitlines():
        cells = [cell.strip() for cell in row.strip("| ").split("|")]
        if not set(cells[0]) <= {"-"}:
            yield cells


def may_by_role() -> dict[str, dict[str, bool]]:
    """By what is needed, and by column."""
    head = next(line for line in PAGE.splitlines() if line.startswith("| what it needs | nobody known |"))
    _, *columns = [cell.strip() for cell in head.strip("| ").split("|")]
    return {needs: dict(zip(columns, (one == "yes" for one in told), strict=True)) for needs, *told in rows(head)}


def requests_by_port() -> dict[str, dict[tuple[str, str], str]]:
    """What each request needs, by the page's name of the port."""
    found: dict[str, dict[tuple[str, str], str]] = {}
    for port, needs, names in rows("| port | what it needs | requests |"):
        place, _, prefix = port.partition(", `")
        for name in re.findall(r"`([^`]+)`", names):
            method, path = f"{prefix.rstrip('`')}{name}".split(" ", 1)
            assert (method, path) not in found.setdefault(place, {}), f"{method} {path} is there twice"
            found[place][method, path] = needs
    return found


def senders() -> dict[str, str]:
    head = "| commands of the meta service | are asked for by |"
    return {name: who for names, who in rows(head) for name in re.findall(r"`([a-z-]+)`", names)}


MAY, REQUESTS, SENDERS = may_by_role(), requests_by_port(), senders()
OF_PAGES = REQUESTS["every port"] | REQUESTS["every port with pages"]
OF_META = OF_PAGES | REQUESTS["the meta service"]
OF_NODE = OF_PAGES | REQUESTS["every admin port"] | REQUESTS["the admin port of a node"]


def may_send(who: Who, name: str, caller: Life | None) -> bool:
    """By the table of the page's section about members. `caller`: a life of node 1."""
    is_node_1 = who.certificate == "node/1"
    is_person = who.certificate not in ("node/1", "node/2", "meta")
    match Senders(SENDERS[name]):
        case Senders.ITSELF:
            return is_node_1
        case Senders.NODES:
            return is_node_1 and caller is not None
        case Senders.PEOPLE:
            return is_person and caller is None
        case Senders.NODES_AND_PEOPLE | Senders.HOLDERS:
            return is_node_1 if caller is not None else is_person


def expected(who: Who, needs: str, *, may: bool = True) -> int | None:
    """The status of the refusal; None: it is not refused."""
    if MAY[needs][who.column] and may:
        return None
    return 401 if who.column == _NOBODY else 403


async def refusal(
    http: aiohttp.ClientSession, method: str, path: str, headers: dict[str, str], body: bytes
) -> int | None:
    async with http.request(method, path, headers=headers, data=None if method == "GET" else body) as answer:
        return answer.status if answer.status in (401, 403) else None


@asynccontextmanager
async def session(authority: Authority, url: str, who: Who, folder: Path) -> AsyncIterator[aiohttp.ClientSession]:
    own = None
    if who.certificate is not None:
        is_member = who.certificate != "alice"
        own = (authority.issue_member if is_member else authority.issue)(who.certificate)
    headers = {} if who.token is None else {"Authorization": f"Bearer {who.token}"}
    tls = aiohttp.TCPConnector(ssl=client_side(authority, own, folder))
    async with aiohttp.ClientSession(url, headers=headers, connector=tls) as http:
        yield http


async def check_requests(
    http: aiohttp.ClientSession, url: str, who: Who, requests: Mapping[tuple[str, str], str]
) -> None:
    for (method, path), needs in requests.items():
        names = dict.fromkeys(re.findall(r"\{(\w+)\}", path), "1") | {"topic_id": "0" * 32}
        place = path.format(**names) + ("?after=0" if path == "/v1/watch" else "")
        kind = "application/x-www-form-urlencoded" if path in ("/login", "/logout") else "application/json"
        headers = {"Content-Type": kind, "Origin": url, "Sec-Fetch-Site": "same-origin"}
        if path == "/login" and method == "POST":
            continue  # a form without a token is a wrong guess of every caller
        body = b"{}" if kind.endswith("json") else b""
        if path == "/v1/heartbeat":
            body, needs_node = b'{"life":{"node_id":1,"epoch":5}}', who.certificate == "node/1"
            told, wanted = await refusal(http, method, place, headers, body), expected(who, needs, may=needs_node)
        else:
            told, wanted = await refusal(http, method, place, headers, body), expected(who, needs)
        assert told == wanted, f"{method} {path} as {who}"


@pytest.fixture(scope="module")
def every_command(tmp_path_factory: pytest.TempPathFactory) -> list[commands.Command[Any]]:
    """One of each kind, about node 1."""
    import asyncio

    async def made() -> list[commands.Command[Any]]:
        async with running("http/memory", tmp_path_factory.mktemp("commands")) as world:
            return await commands_with_numbers(world)

    return asyncio.run(made())


def as_caller(command: commands.Command[Any], caller: Life | None) -> commands.Command[Any]:
    """In the name of this life of node 1, or of none; about node 1, and with the lock that the caller may hold."""
    name = COMPACTION_LOCK if caller is None else f"tier/{caller.node_id}"
    holder = "job-1" if caller is None else life_name(caller.node_id, caller.epoch)
    given = {
        "caller": caller,
        "node_id": 1,
        "lock": Lock(name, holder, 1, 0),
        "name": name,
        "holder": holder,
        "force_storage_id": None,
    }
    if not isinstance(command, commands.AcquireLock):
        del given["name"], given["holder"]
    known = {one.name for one in fields(command)}
    return replace(command, **{key: value for key, value in given.items() if key in known})


async def check_commands(
    http: aiohttp.ClientSession, url: str, who: Who, every_command: list[commands.Command[Any]]
) -> None:
    needed = {path: needs for (_, path), needs in REQUESTS["the meta service"].items()}
    for command in every_command:
        path = wire_of(command).path
        name = path.rpartition("/")[2]
        for caller in (None, ONE):
            asked = as_caller(command, caller)
            if caller is not None and getattr(asked, "caller", None) is None:
                continue  # a registration, which no life asks for
            headers = {"Content-Type": "application/json", "Origin": url}
            told = await refusal(http, "POST", path, headers, wire_of(asked).body.write(asked))
            wanted = expected(who, needed[path], may=may_send(who, name, caller))
            assert told == wanted, f"{name} in the name of {caller} as {who}"


@pytest.mark.fault("token-stolen-other-certificate")
@pytest.mark.parametrize("who", CALLERS, ids=str)
async def test_the_meta_service_answers_each_caller_as_the_page_says(
    tmp_path: Path, who: Who, every_command: list[commands.Command[Any]]
) -> None:
    async with secure(tmp_path, access=ACCESS) as one:
        url = one.server.address
        async with session(one.authority, url, who, tmp_path / "own") as http:
            await check_commands(http, url, who, every_command)
            others = {key: needs for key, needs in OF_META.items() if not f"{key[0]} {key[1]}".startswith(COMMANDS)}
            await check_requests(http, url, who, others)


@pytest.mark.parametrize("who", CALLERS, ids=str)
async def test_the_admin_port_of_a_node_answers_each_caller_as_the_page_says(tmp_path: Path, who: Who) -> None:
    authority = Authority()
    folder = authority.issue_member("node/1").write_folder(tmp_path / "node", authority.certificate)
    rules = TlsRules(ClientAuth.REQUESTED, asked_by="http.ssl.client.auth")
    identity = TlsIdentity(TlsFiles(str(folder)), rules)
    tls = PortTls(lambda: identity.streaming(rules), lambda: identity.member, member_of)
    async with new_meta() as meta, pages_of(meta, tmp_path, access=ACCESS, tls=tls) as pages:
        url = f"https://{pages.server.address}"
        async with session(authority, url, who, tmp_path / "own") as http:
            await check_requests(http, url, who, OF_NODE)


# The page and the ports ----------------------------------------------------------------------------------------------
def declared(port: HttpPort | None) -> dict[tuple[str, str], Needs]:
    """What the routes of an open port need: one without a declaration would not have opened."""
    assert port is not None and port._runner is not None
    return dict(port._runner.app[_NEEDS])


def told(requests: Mapping[tuple[str, str], str]) -> dict[tuple[str, str], Needs]:
    return {key: WORDS[needs] for key, needs in requests.items()}


async def test_the_page_names_each_request_of_each_port(tmp_path: Path) -> None:
    async with secure(tmp_path, access=ACCESS) as one:
        assert told(OF_META) == declared(one.server._http_port)
        tls = one.server._tls
        async with pages_of(one.service, tmp_path, access=ACCESS, tls=tls) as pages:
            while pages.server._http_port is None:  # it imports what it serves
                async with pages.http.get("/healthz", ssl=False):
                    pass
            assert told(OF_NODE) == declared(pages.server._http_port)
        bare = TelemetryServer(MetricRegistry(), access=ACCESS)
        await bare.start("127.0.0.1:0")
        assert bare._serving is not None
        await bare._serving
        assert told(REQUESTS["every port"] | REQUESTS["every admin port"]) == declared(bare._http_port)
        await bare.stop()
    of_page = OF_PAGES | REQUESTS["the UI of `cluster start`"]
    assert told(of_page).items() >= (dict(UI_NEEDS) | dict(PAGE_NEEDS)).items()
    assert REQUESTS["the UI of `cluster start`"].keys() == PAGE_NEEDS.keys()


def test_the_page_says_of_each_role_what_it_may() -> None:
    from stratalog.model.roles import CLUSTER, Caller

    callers: dict[str, Caller | None] = {
        _NOBODY: None,
        **{f"`{role.name.lower()}`": Caller("", role) for role in Role},
        _PARTS: Caller("", Role.VIEWER, is_part=True),
        _ALL: CLUSTER,
    }
    assert {words: WORDS[words] for words in MAY} == WORDS
    for words, needs in WORDS.items():
        for column, caller in callers.items():
            may = needs.is_for_anyone if caller is None else caller.may(needs)
            assert MAY[words][column] is may, (words, column)
