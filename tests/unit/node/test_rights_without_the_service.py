"""Rules of a node that cannot ask the meta service: it decides by those that it saw last, and by none at a start."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from stratalog.kafka.error_codes import ErrorCode
from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.commands.rights_commands import CreateRules, DeleteRules
from stratalog.model.commands.table_commands import CreateTopic
from stratalog.model.errors import StratalogError, Unavailable
from stratalog.model.rights import ANONYMOUS, Operation, Permission, Resource, ResourceType, Rule, RuleFilter
from stratalog.settings.process import ProcessSettings
from stratalog_meta.api.server import MetaServer
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from stratalog_node.node import Listen, StorageNode
from support.raw_client import batch_of
from support.stream_client import StreamClient
from support.waiting import eventually
from unit.node.test_other_metadata import POLICY, started

DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
OLD_MS = 1_000


class Reached:
    """Implements `Serving`: a service that can be cut off from all who ask over the network."""

    def __init__(self, service: MetaService) -> None:
        self.service = service
        self.why_no_changes: str | None = None
        self.is_away = False

    def leading(self) -> MetaService:
        if self.is_away:
            raise Unavailable("nobody answers")
        return self.service

    def cut(self) -> None:
        self.is_away = True
        self.service.end_watches()


class Guarded:
    def __init__(self, url: str, root: Path, meta: Reached) -> None:
        self._url = url
        self._root = root
        self.meta = meta
        self.node: StorageNode

    @asynccontextmanager
    async def running(self) -> AsyncIterator[StorageNode]:
        async with AsyncExitStack() as running:
            client = HttpMetaClient(self._url, POLICY)
            running.push_async_callback(client.close)
            settings = ProcessSettings(node_id=1, offsets_topic_num_partitions=1, authorizer_class_name="stratalog")
            node = self.node = StorageNode(settings, self._root, Listen("127.0.0.1", 0), client, None)
            await node.start()
            running.push_async_callback(node.close)
            yield node

    async def allow(self) -> None:
        await self.meta.service.perform(CreateTopic("flights", shard_count=1, replication_factor=1, settings={}))
        resource = Resource(ResourceType.TOPIC, "flights")
        rule = Rule(resource, str(ANONYMOUS), "*", Operation.WRITE, Permission.ALLOW)
        await self.meta.service.perform(CreateRules((rule,)))

    async def revoke(self) -> None:
        await self.meta.service.perform(DeleteRules((RuleFilter(),)))

    async def produced(self) -> int:
        client = await StreamClient.connect(self.node.address)
        try:
            await client.write(client.produce_frame("flights", batch_of(b"one")))
            return (await client.produced()).error_code
        finally:
            client.close()

    async def hears(self, code: int) -> None:
        async def is_told() -> bool:
            return await self.produced() == code

        await eventually(is_told)


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    async with AsyncExitStack() as running:
        meta = Reached(await started(MemoryStore()))
        running.push_async_callback(meta.service.close)
        server = MetaServer(meta, heartbeat_s=0.2)
        url = await server.start("127.0.0.1", 0)
        running.push_async_callback(server.close)
        yield Guarded(url, tmp_path / "node", meta)


@pytest.mark.fault("rights-cannot-be-refreshed")
async def test_a_node_that_is_cut_off_decides_by_the_rules_that_it_saw_last_and_knows_how_old_they_are(
    guarded: Guarded,
) -> None:
    async with guarded.running() as node:
        await guarded.allow()
        await guarded.hears(0)
        guarded.meta.cut()
        await guarded.revoke()
        await eventually(lambda: node._metadata_age_ms() > OLD_MS)
        assert await guarded.produced() == 0
        guarded.meta.is_away = False
        await eventually(lambda: node._metadata_age_ms() < OLD_MS // 2)
        assert await guarded.produced() == DENIED, "what counts as new has the end of the right"


@pytest.mark.fault("rights-cannot-be-refreshed")
async def test_a_node_turns_clients_away_until_it_has_the_newest_rules(guarded: Guarded) -> None:
    async with guarded.running() as node:
        await guarded.allow()
        await guarded.hears(0)
        client = await StreamClient.connect(node.address)
        await client.write(client.produce_frame("flights", batch_of(b"two")))
        assert (await client.produced()).error_code == 0
        guarded.meta.cut()
        await guarded.revoke()
        await eventually(lambda: node._metadata_age_ms() > OLD_MS)
        node.server._most_age_ms = OLD_MS
        assert await client.is_closed()
        guarded.meta.is_away = False

        async def is_served() -> bool:
            try:
                assert await guarded.produced() == DENIED
            except OSError:
                return False
            return True

        await eventually(is_served)


@pytest.mark.fault("rights-cannot-be-refreshed")
async def test_a_node_that_starts_without_the_service_serves_nobody_by_rules_of_an_earlier_life(
    guarded: Guarded,
) -> None:
    async with guarded.running():
        await guarded.allow()
        await guarded.hears(0)
    await guarded.revoke()
    guarded.meta.cut()
    with pytest.raises(StratalogError):
        async with guarded.running():
            pass
    with pytest.raises((OSError, AttributeError)):
        await guarded.produced()
    guarded.meta.is_away = False
    async with guarded.running():
        assert await guarded.produced() == DENIED
