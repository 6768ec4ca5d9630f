"""Through a node's client every command names the node's life; the rest passes as it is."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from stratalog.meta_api.client import MetaClient
from stratalog.meta_api.node_client import NodeMetaClient
from stratalog.model.commands.table_commands import AllocateProducerIds, RegisterNode
from stratalog.model.errors import Fenced
from stratalog.model.metadata import Life, NodeInfo
from support.meta_worlds import running

NODE = NodeInfo(1, "storage-1", "host", 9092)


async def test_what_a_node_asks_is_fenced_once_it_lives_again_elsewhere(tmp_path: Path) -> None:
    async with running("http/memory", tmp_path) as world:
        client = NodeMetaClient(world.client)
        registration = await client.perform(RegisterNode(NODE, "start-a"))
        client.life = Life(1, registration.node_epoch)
        await client.perform(AllocateProducerIds(1))
        await world.client.perform(RegisterNode(NODE, "start-b"))
        with pytest.raises(Fenced, match="life 1 of node 1"):
            await client.perform(AllocateProducerIds(1))
        with pytest.raises(Fenced):
            await client.perform(AllocateProducerIds(1), validate_only=True)
        assert (await world.client.perform(AllocateProducerIds(1))).first == 2, "nothing was taken meanwhile"


async def test_reading_needs_no_life(tmp_path: Path) -> None:
    async with running("in-process/memory", tmp_path) as world:
        await world.ready_topic()
        client = NodeMetaClient(world.client)
        snapshot = await client.snapshot()
        assert snapshot.version == await client.read_version()
        assert await client.read_cluster_id() == world.service.cluster_id
        assert await client.topic(snapshot.topics[0].topic_id) == snapshot.topics[0]
        assert (await client.deleted_segments(), await client.purged_topics()) == ([], frozenset())
        assert (await anext(client.watch(0))).version == 1


def test_a_nodes_client_has_all_methods_of_the_interface() -> None:
    wanted = {name for name, _ in inspect.getmembers(MetaClient, inspect.isfunction) if not name.startswith("_")}
    assert wanted <= set(dir(NodeMetaClient))
