"""The members of the etcd that the operator runs for a cluster: listed and changed through etcd's own API.

By HTTP and JSON, which every member answers beside gRPC (`/v3/cluster/…`). Each member is asked itself whether it
serves: a list names members that have been away for days as well.
Lives in the operator's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import aiohttp

from stratalog.model.errors import Conflict, InvalidRequest, NotFound, StratalogError, Unavailable
from stratalog.tls.contexts import TlsRules, client_context
from stratalog.tls.material import TlsMaterial
from stratalog_operator.plan.observed import SeenEtcd, SeenEtcdMember

Urls = Callable[[], Mapping[int, tuple[str, ...]]]
"""By the number of a member: under which URL clients reach it, then those under which the other members may."""

_ANSWER_SECONDS: Final = 3.0
_NOT_FOUND: Final = 5
_FAILED_PRECONDITION: Final = 9
_UNCHANGED: Final = ("can only promote a learner member", "Peer URLs already exists", "member ID already exist")
"""What etcd says to a change that was made before."""


class EtcdMembers:
    def __init__(self, urls: Urls) -> None:
        self._urls = urls
        self._own: TlsMaterial | None = None

    def show(self, own: TlsMaterial | None) -> None:
        """What the operator shows to members that speak TLS, and trusts there; None: it has no certificate yet."""
        self._own = own

    async def observe(self) -> SeenEtcd:
        """Raises: Unavailable where no member answers a list that most members confirm."""
        async with self._session() as session:
            urls = self._urls()
            listed = (await self._confirmed(session, "/v3/cluster/member/list", {"linearizable": True}))["members"]
            numbers = {peer: number for number, (_, *peers) in urls.items() for peer in peers}
            healthy = await asyncio.gather(*(self._health(session, client) for client, *_ in urls.values()))
        serving = {member_id: version for member_id, version in healthy if member_id}
        return SeenEtcd(tuple(_member(one, numbers, serving) for one in listed))

    async def remove(self, member_id: str) -> None:
        async with self._session() as session:
            await self._confirmed(session, "/v3/cluster/member/remove", {"ID": str(int(member_id, 16))})

    async def add(self, peer_url: str) -> None:
        async with self._session() as session:
            await self._confirmed(session, "/v3/cluster/member/add", {"peerURLs": [peer_url], "isLearner": True})

    async def update(self, member_id: str, peer_url: str) -> None:
        async with self._session() as session:
            body = {"ID": str(int(member_id, 16)), "peerURLs": [peer_url]}
            await self._confirmed(session, "/v3/cluster/member/update", body)

    async def promote(self, member_id: str) -> None:
        async with self._session() as session:
            await self._confirmed(session, "/v3/cluster/member/promote", {"ID": str(int(member_id, 16))})

    def _session(self) -> aiohttp.ClientSession:
        """Raises: Unavailable without a certificate that can be used, where members ask for one."""
        timeout = aiohttp.ClientTimeout(total=_ANSWER_SECONDS)
        if not any(client.startswith("https:") for client, *_ in self._urls().values()):
            return aiohttp.ClientSession(timeout=timeout)
        if self._own is None:
            raise Unavailable("the operator has no certificate for etcd yet: look again")
        try:
            context = client_context(self._own, TlsRules())
        except InvalidRequest as error:
            raise Unavailable(f"the certificate for etcd cannot be used ({error}): another one is issued") from error
        return aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(ssl=context))

    async def _confirmed(self, session: aiohttp.ClientSession, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of the first member that knows that it is one of most. What was done before counts as done.

        Raises: Unavailable."""
        error: StratalogError = Unavailable("etcd has no member that could be asked")
        for client, *_ in self._urls().values():
            try:
                return await _ask(session, f"{client}{path}", body)
            except (Conflict, NotFound):
                return {}
            except StratalogError as failed:
                error = failed
        raise error

    async def _health(self, session: aiohttp.ClientSession, client: str) -> tuple[str, str]:
        """The id under which it serves, and its version; empty when it does not."""
        try:
            async with session.get(f"{client}/health") as answer:
                if (await answer.json(content_type=None)).get("health") != "true":
                    return "", ""
            status = await _ask(session, f"{client}/v3/maintenance/status", {})
        except (StratalogError, aiohttp.ClientError, TimeoutError, ValueError):
            return "", ""
        return _hex(status["header"]["member_id"]), str(status.get("version", ""))[:64]


async def _ask(session: aiohttp.ClientSession, url: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Raises: NotFound, Conflict for a change that was made before, Unavailable."""
    try:
        async with session.post(url, json=dict(body)) as answer:
            found: dict[str, Any] = await answer.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise Unavailable(f"etcd does not answer at {url} ({error})") from error
    if answer.status < 300:
        return found
    words = str(found.get("message") or found.get("error") or answer.status)
    if found.get("code") == _NOT_FOUND:
        raise NotFound(f"{url}: {words}")
    if found.get("code") == _FAILED_PRECONDITION and any(known in words for known in _UNCHANGED):
        raise Conflict(f"{url}: {words}")
    raise Unavailable(f"{url}: {words}: look again")


def _member(listed: Mapping[str, Any], numbers: Mapping[str, int], serving: Mapping[str, str]) -> SeenEtcdMember:
    member_id = _hex(listed["ID"])
    url = next((url for url in listed.get("peerURLs", ()) if url in numbers), "")
    return SeenEtcdMember(
        numbers.get(url),
        member_id,
        is_started=bool(listed.get("name")),
        is_learner=bool(listed.get("isLearner")),
        is_healthy=member_id in serving,
        version=serving.get(member_id, ""),
        peer_url=url,
    )


def _hex(member_id: str) -> str:
    """As etcdctl shows it."""
    return f"{int(member_id):x}"
