"""The meta service behind a token: its client shows it with whatever it asks, and hears what is wrong without it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from stratalog.meta_api.attempts import UNAUTHORIZED_ATTEMPTS, RetryPolicy
from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.commands.table_commands import CreateTopic, RegisterNode
from stratalog.model.errors import Unauthorized
from stratalog.model.metadata import Heartbeat, Life, NodeInfo
from stratalog.model.tokens import Token
from stratalog.telemetry.http_access import HttpAccess
from stratalog_meta import MetaService
from stratalog_meta.api.server import MetaServer
from stratalog_meta.stores.memory import MemoryStore
from support.meta_worlds import HandClock

OLD, NEW = "the-old-token-of-all", "the-new-token-of-all"
HASTY = RetryPolicy(attempts=18, first_pause_s=0.001, longest_pause_s=0.001)


class Locked:
    """A service and its port; what opens it may be changed."""

    def __init__(self, service: MetaService) -> None:
        self.tokens: tuple[str, ...] = (OLD,)
        self.server = MetaServer(service, heartbeat_s=0.05, access=HttpAccess(lambda: self.tokens))

    def client(self, token: Token | None, url: str = "") -> HttpMetaClient:
        return HttpMetaClient(url or self.server.address, HASTY, token=token)


@asynccontextmanager
async def locked() -> AsyncIterator[Locked]:
    service = MetaService(MemoryStore(), HandClock(), lease_ms=600_000)
    await service.start()
    made = Locked(service)
    await made.server.start("127.0.0.1", 0)
    yield made
    await made.server.close()
    await service.close()


@pytest.mark.parametrize("token", [None, lambda: NEW])
async def test_whatever_is_asked_without_the_token_is_refused_in_words_and_not_for_long(token: Token | None) -> None:
    async with locked() as one:
        client = one.client(token)
        node = NodeInfo(1, "disk", "host", 9092)
        asked = (
            client.read_cluster_id,
            client.snapshot,
            client.nodes,
            lambda: client.perform(RegisterNode(node)),
            lambda: client.perform(CreateTopic("flights", 1, 1, {})),
            lambda: client.heartbeat(Heartbeat(Life(1, 1))),
        )
        for ask in asked:
            before = one.server.stats.unauthorized
            with pytest.raises(Unauthorized, match="Authorization: Bearer TOKEN"):
                await ask()
            assert 1 <= one.server.stats.unauthorized - before <= UNAUTHORIZED_ATTEMPTS
        await client.close()


async def test_with_the_token_all_of_it_is_served() -> None:
    async with locked() as one:
        client = one.client(lambda: OLD)
        registered = await client.perform(RegisterNode(NodeInfo(1, "disk", "host", 9092)))
        assert (await client.heartbeat(Heartbeat(Life(1, registered.node_epoch)))).version > 0
        topic = await client.perform(CreateTopic("flights", 1, 1, {}))
        assert [known.name for known in (await client.snapshot()).topics] == ["flights"]
        assert (await client.topic(topic.topic_id)).name == "flights"
        watch = aiter(client.watch(0))
        assert (await anext(watch)).version >= 1
        await client.close()
        assert one.server.stats.unauthorized == 0


@pytest.mark.fault("token-replaced-cluster-runs")
async def test_a_client_continues_to_the_instance_that_knows_its_token_already() -> None:
    """While a Secret is replaced, machines get the new file at different times."""
    async with locked() as behind, locked() as ahead:
        ahead.tokens = (OLD, NEW)
        client = behind.client(lambda: NEW, f"{behind.server.address},{ahead.server.address}")
        await client.nodes()
        await client.close()


async def test_the_token_is_asked_for_with_each_request() -> None:
    shown = [OLD]
    async with locked() as one:
        client = one.client(lambda: shown[0])
        await client.nodes()
        one.tokens = (OLD, NEW)
        shown[0] = NEW
        await client.nodes()
        one.tokens = (NEW,)
        await client.nodes()
        await client.close()
        assert one.server.stats.unauthorized == 0
