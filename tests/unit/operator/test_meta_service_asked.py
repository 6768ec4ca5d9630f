"""The operator's two doors to a real meta service: what it sees there, and what it wishes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from stratalog.machines.shard_troubles import Trouble, TroubleKind
from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.commands import CreateTopic, RegisterNode
from stratalog.model.errors import InvalidRequest, Unavailable
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import NodeInfo
from stratalog.model.retirement import RetireMode
from stratalog.model.topic import Topic
from stratalog_meta.api.server import MetaServer
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from stratalog_operator.apply.meta_service import HttpMetaDesk
from stratalog_operator.observe.meta_service import HttpMetaSight, behind, unwell
from support.meta_worlds import HandClock


@asynccontextmanager
async def _service(nodes: int) -> AsyncIterator[tuple[MetaService, HttpMetaClient]]:
    service = MetaService(MemoryStore(), HandClock())
    await service.start()
    server = MetaServer(service)
    client = HttpMetaClient(await server.start("127.0.0.1", 0))
    try:
        for node_id in range(1, nodes + 1):
            await service.perform(RegisterNode(NodeInfo(node_id, f"disk-{node_id}", "host", 9092)))
        yield service, client
    finally:
        await client.close()
        await server.close()
        await service.close()


async def test_members_and_wishes_are_seen_at_once() -> None:
    """Also before the leader of the service has looked at them."""
    async with _service(3) as (service, client):
        sight, desk = HttpMetaSight(client), HttpMetaDesk(client)
        for _ in range(2):
            await desk.retire(3, RetireMode.VOLUME, None)
        seen = await sight.look()
        await desk.cancel(3)
        after = await sight.look()

    assert seen.cluster_id == service.cluster_id
    assert [node.storage_id for node in seen.nodes] == ["disk-1", "disk-2", "disk-3"]
    assert [(one.node_id, one.retirement.mode) for one in seen.retirements] == [(3, RetireMode.VOLUME)]
    assert after.retirements == ()


async def test_what_is_there_no_more_is_no_fault_and_a_wrong_disk_is() -> None:
    async with _service(2) as (_, client):
        desk = HttpMetaDesk(client)
        await desk.cancel(7)
        await desk.end_mount("tier/7")
        with pytest.raises(InvalidRequest):
            await desk.retire(2, RetireMode.OFFLOAD, "another-disk")


def test_what_is_unwell_forbids_to_stop_a_node_and_what_never_has_enough_does_not() -> None:
    """Of all troubles, those by which one node less would cost somebody something."""
    segment = SegmentKey(UUID(int=7), 3, 2, 40)
    found = [
        Trouble(topic, segment, kind, (2,), None, "words")
        for topic, kind in (
            ("flights", TroubleKind.NO_LEADER),
            ("hopeless", TroubleKind.BELOW_MIN_IN_SYNC),
            ("orders", TroubleKind.BELOW_MIN_IN_SYNC),
            ("orders", TroubleKind.NOT_IN_SYNC),
            ("orders", TroubleKind.GIVEN_UP),
        )
    ]
    topics = [
        Topic("hopeless", UUID(int=8), 1, 2, {"min.insync.replicas": "3"}, 0),
        Topic("orders", UUID(int=9), 1, 3, {"min.insync.replicas": "3"}, 0),
    ]

    assert unwell(found, topics) == ("shard 3 of flights: words", "shard 3 of orders: words")
    assert behind(found) == frozenset({2})
    assert behind(found[:3]) == frozenset()


async def test_a_topic_that_never_has_enough_in_sync_holds_up_nobody() -> None:
    async with _service(2) as (service, client):
        await service.perform(CreateTopic("hopeless", 1, 2, {"min.insync.replicas": "3"}))
        seen = await HttpMetaSight(client).look()

    assert seen.unwell == ()


async def test_a_service_that_is_away_is_an_error_and_not_an_empty_cluster() -> None:
    gone = HttpMetaClient("http://127.0.0.1:9")
    try:
        with pytest.raises(Unavailable):
            await HttpMetaSight(gone).look()
    finally:
        await gone.close()
