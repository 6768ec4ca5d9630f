"""The meta service over TLS: nodes act as themselves alone, clients know the service, certificates are renewed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stratalog.admin_api.client import AdminClient
from stratalog.meta_api.attempts import RetryPolicy
from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.commands.retirement_commands import RetireNode
from stratalog.model.commands.table_commands import BeginRecovery, CreateTopic, RegisterNode
from stratalog.model.errors import Forbidden, OutcomeUnknown, StratalogError, Unauthorized, Unavailable
from stratalog.model.members import Part
from stratalog.model.metadata import Heartbeat, Life, NodeInfo
from stratalog.model.retirement import RetireMode
from stratalog.settings.choices import ClientAuth
from stratalog.telemetry.http_access import HttpAccess
from stratalog.telemetry.http_tls import PortTls
from stratalog.tls.contexts import TlsRules
from stratalog.tls.identity import TlsIdentity
from stratalog.tls.material import TlsFiles
from stratalog.tls.outgoing import ClientTls
from stratalog.tls.subjects import member_of
from stratalog_meta import MetaService
from stratalog_meta.api.server import MetaServer
from stratalog_meta.stores.memory import MemoryStore
from support.certificates import DAY, Authority, Issued
from support.meta_worlds import HandClock
from support.waiting import eventually

HASTY = RetryPolicy(attempts=2, first_pause_s=0.001, longest_pause_s=0.001)
TOKEN = "the-token-of-the-cluster"
ONE, TWO = NodeInfo(1, "disk-1", "127.0.0.1", 9092), NodeInfo(2, "disk-2", "127.0.0.1", 9093)


class Secure:
    """A service with a port that speaks TLS, and its clients."""

    def __init__(
        self, service: MetaService, folder: Path, part: str, auth: ClientAuth, host: str, access: HttpAccess
    ) -> None:
        self.service = service
        self.authority = Authority()
        self._tmp = folder
        self.folder = self.issue(part, host).write_folder(folder / "meta", self.authority.certificate)
        rules = TlsRules(auth, asked_by="http.ssl.client.auth")
        self.identity = TlsIdentity(TlsFiles(str(self.folder)), rules)
        tls = PortTls(lambda: self.identity.streaming(rules), lambda: self.identity.member, member_of)
        self.server = MetaServer(service, heartbeat_s=0.05, access=access, tls=tls)
        self._clients: list[HttpMetaClient] = []

    def issue(self, part: str, host: str = "127.0.0.1") -> Issued:
        return (
            self.authority.issue_member(part, host=host)
            if "/" in part or part in tuple(Part)
            else (self.authority.issue(part, host=host))
        )

    def identity_of(self, own: Issued | None) -> TlsIdentity:
        folder = self._tmp / f"client-{len(self._clients)}"
        if own is None:
            folder.mkdir()
            (folder / "ca.crt").write_bytes(self.authority.certificate)
        else:
            own.write_folder(folder, self.authority.certificate)
        return TlsIdentity(TlsFiles(str(folder)), TlsRules(), servers=())

    def client(
        self,
        own: Issued | None = None,
        *,
        token: str | None = None,
        tls: ClientTls | None = None,
        url: str = "",
        with_credentials: bool = False,
    ) -> HttpMetaClient:
        identity = self.identity_of(own)
        made = HttpMetaClient(
            url or self.server.address,
            HASTY,
            token=None if token is None else lambda: token,
            tls=tls or (lambda: identity.to(Part.META)),
            with_credentials=with_credentials,
        )
        self._clients.append(made)
        return made

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        await self.server.close()
        await self.service.close()


@asynccontextmanager
async def secure(
    tmp_path: Path,
    *,
    part: str = "meta",
    auth: ClientAuth = ClientAuth.REQUESTED,
    host: str = "127.0.0.1",
    access: HttpAccess | None = None,
) -> AsyncIterator[Secure]:
    service = MetaService(MemoryStore(), HandClock(), lease_ms=600_000)
    await service.start()
    made = Secure(service, tmp_path, part, auth, host, access or HttpAccess(lambda: (TOKEN,)))
    await made.server.start("127.0.0.1", 0)
    yield made
    await made.close()


async def test_a_node_lives_over_tls_with_its_certificate_and_no_token(tmp_path: Path) -> None:
    async with secure(tmp_path) as one:
        assert one.server.address.startswith("https://")
        client = one.client(one.issue("node/1"), with_credentials=True)
        registered = await client.perform(RegisterNode(ONE))
        life = Life(1, registered.node_epoch)
        await client.heartbeat(Heartbeat(life))
        topic = await client.perform(CreateTopic("flights", 1, 1, {}, caller=life))
        assert [known.name for known in (await client.snapshot()).topics] == ["flights"]
        assert (await client.topic(topic.topic_id)).name == "flights"
        watch = aiter(client.watch(0))
        assert (await anext(watch)).version >= 1


@pytest.mark.fault("token-stolen-other-certificate")
@pytest.mark.parametrize("who", ["node/2", "alice", "operator", "meta", "nobody"])
async def test_who_is_not_a_node_never_acts_as_it(tmp_path: Path, who: str) -> None:
    """Another node, a client's certificate of the same authority, other members, and no certificate; each with the
    cluster's token, too."""
    async with secure(tmp_path) as one:
        node = one.client(one.issue("node/1"))
        life = Life(1, (await node.perform(RegisterNode(ONE))).node_epoch)
        topic = await node.perform(CreateTopic("flights", 1, 1, {}, caller=life))
        (shard,) = (await node.snapshot()).shards
        before = await node.read_version()
        thief = one.client(None if who == "nobody" else one.issue(who), token=TOKEN, with_credentials=True)
        for attack in (
            lambda: thief.perform(RegisterNode(ONE)),
            lambda: thief.heartbeat(Heartbeat(life)),
            lambda: thief.perform(CreateTopic("stolen", 1, 1, {}, caller=life)),
            lambda: thief.perform(BeginRecovery(shard.segments[-1].key, caller=life)),
        ):
            with pytest.raises(Forbidden, match=r"only node 1 may do this"):
                await attack()
        if not who.startswith("node/"):
            with pytest.raises(Forbidden, match="only nodes read the keys of users"):
                await thief.snapshot()
        assert await node.read_version() == before
        assert (await node.topic(topic.topic_id)).name == "flights"


async def test_a_node_retires_no_other_node(tmp_path: Path) -> None:
    async with secure(tmp_path) as one:
        for number, info in ((1, ONE), (2, TWO)):
            registered = await one.client(one.issue(f"node/{number}")).perform(RegisterNode(info))
        assert registered.node_epoch
        with pytest.raises(Forbidden, match="Node:1 has the role viewer"):
            await one.client(one.issue("node/1"), token=TOKEN).perform(RetireNode(2, RetireMode.OFFLOAD))
        operator = one.client(one.issue("operator"))
        assert (await operator.perform(RetireNode(2, RetireMode.OFFLOAD))).mode is RetireMode.OFFLOAD


async def test_who_shows_neither_a_member_nor_the_token_reads_nothing(tmp_path: Path) -> None:
    async with secure(tmp_path) as one:
        for own in (None, one.issue("alice")):
            with pytest.raises(Unauthorized, match="certificate of a member"):
                await one.client(own).nodes()
            assert await one.client(own, token=TOKEN).nodes() == ()


# What a client takes for the service ----------------------------------------------------------------------------------
async def test_a_node_asks_no_process_that_is_not_the_meta_service(tmp_path: Path) -> None:
    async with secure(tmp_path, part="node/2") as impostor:
        with pytest.raises(Unavailable, match=r"names stratalog://prod/node/2, and stratalog://prod/meta is expected"):
            await impostor.client(impostor.issue("node/1"), token=TOKEN).nodes()
        assert await impostor.client(token=TOKEN).nodes() == (), "others go by the name of the host"


async def test_members_are_known_by_their_certificates_and_not_by_their_hosts(tmp_path: Path) -> None:
    async with secure(tmp_path, host="elsewhere.example") as one:
        assert await one.client(one.issue("node/1")).nodes() == ()
        with pytest.raises(Unavailable, match="its certificate is not for that host"):
            await one.client(token=TOKEN).nodes()


async def test_an_authority_that_is_not_trusted_is_named(tmp_path: Path) -> None:
    async with secure(tmp_path) as one:
        stranger = TlsIdentity(
            TlsFiles(str(Authority().issue("x").write_folder(tmp_path / "x", Authority().certificate))),
            TlsRules(),
            servers=(),
        )
        with pytest.raises(Unavailable, match=r"trusted here, which is ca\.crt of ssl\.certificate\.folder"):
            await one.client(tls=lambda: stranger.client).nodes()


@pytest.mark.parametrize("name", ["another", "test authority"], ids=["another name", "the same name"])
async def test_a_certificate_of_an_authority_that_the_service_does_not_trust_is_named(
    tmp_path: Path, name: str
) -> None:
    async with secure(tmp_path) as one:
        foreign = Authority(name).issue_member("node/1")
        with pytest.raises(StratalogError, match="does not trust the authority of this process's certificate"):
            await one.client(foreign).nodes()


async def test_an_expired_certificate_of_the_service_is_named(tmp_path: Path) -> None:
    async with secure(tmp_path) as one:
        issued = one.authority.issue("meta", begins=-2 * DAY, ends=-DAY, uris=["stratalog://prod/meta"])
        issued.write_folder(one.folder)
        long_ago = datetime.now(UTC) - 1.5 * DAY
        rules = TlsRules(ClientAuth.REQUESTED, asked_by="http.ssl.client.auth")
        expired = TlsIdentity(TlsFiles(str(one.folder)), rules, now=lambda: long_ago)
        one.identity._servers = expired._servers
        with pytest.raises(Unavailable, match=r"has expired: renew tls\.crt of its ssl\.certificate\.folder"):
            await one.client(one.issue("node/1")).nodes()
        with pytest.raises(Unavailable, match="has expired"):
            await one.client(token=TOKEN).nodes()


async def test_a_service_that_requires_certificates_says_so(tmp_path: Path) -> None:
    async with secure(tmp_path, auth=ClientAuth.REQUIRED) as one:
        with pytest.raises(StratalogError) as refused:
            await one.client(token=TOKEN).nodes()
        assert isinstance(refused.value, Unavailable | OutcomeUnknown)
        assert await one.client(one.issue("node/1")).nodes() == ()


async def test_the_wrong_scheme_is_said_in_words(tmp_path: Path) -> None:
    async with secure(tmp_path) as one:
        with pytest.raises(StratalogError, match="https://"):
            await one.client(token=TOKEN, url=one.server.address.replace("https:", "http:")).nodes()
        plain = MetaServer(one.service)
        url = (await plain.start("127.0.0.1", 0)).replace("http:", "https:")
        with pytest.raises(Unavailable, match="it speaks no TLS there: write http://"):
            await one.client(token=TOKEN, url=url).nodes()
        await plain.close()


async def test_the_blocking_client_says_the_same(tmp_path: Path) -> None:
    async with secure(tmp_path, host="elsewhere.example") as one:
        identity = one.identity_of(None)
        client = AdminClient(one.server.address, token=lambda: TOKEN, tls=lambda: identity.client)
        with pytest.raises(Unavailable, match="its certificate is not for that host"):
            await asyncio.to_thread(client.status)


# Renewal ------------------------------------------------------------------------------------------------------------
@pytest.mark.fault("certificate-replaced-cluster-runs")
async def test_certificates_of_both_sides_are_renewed_under_traffic_and_no_request_fails(tmp_path: Path) -> None:
    """With another authority in the end: each step is what an operator does."""
    async with secure(tmp_path) as one:
        node_folder = one.issue("node/1").write_folder(tmp_path / "node", one.authority.certificate)
        node = TlsIdentity(TlsFiles(str(node_folder)), TlsRules(), servers=())
        client = one.client(tls=lambda: node.to(Part.META))
        life = Life(1, (await client.perform(RegisterNode(ONE))).node_epoch)
        is_over, beats = False, 0

        async def beat() -> None:
            nonlocal beats
            while not is_over:
                await client.heartbeat(Heartbeat(life))
                await client.nodes()
                beats += 1

        traffic = asyncio.create_task(beat())
        try:
            other = Authority("another authority")
            both = one.authority.certificate + other.certificate
            member = {True: ("meta", one.folder, one.identity), False: ("node/1", node_folder, node)}
            for authority, trusted in ((one.authority, both), (other, both), (other, other.certificate)):
                for is_meta in (True, False):
                    part, folder, identity = member[is_meta]
                    authority.issue_member(part).write_folder(folder, trusted)
                    identity.refresh()
                    assert identity.stats.is_rejected == 0
                    goal = beats + 3
                    await eventually(lambda goal=goal: beats >= goal or traffic.done())  # type: ignore[misc]
                    assert not traffic.done()
        finally:
            is_over = True
            await traffic
        assert one.server.stats.accepted >= 4, "each renewed certificate was shown"
        fresh = one.client(tls=lambda: node.to(Part.META))
        assert [info.node_id for info in await fresh.nodes()] == [1]
