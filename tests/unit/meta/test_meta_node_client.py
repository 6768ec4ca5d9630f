"""Through a node's door every command names the node's life; the rest passes as it is."""

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
        door = NodeMetaClient(world.client)
        registration = await door.perform(RegisterNode(NODE, "start-a"))
        door.life = Life(1, registration.node_epoch)
        await door.perform(AllocateProducerIds(1))
        await world.client.perform(RegisterNode(NODE, "start-b"))
        with pytest.raises(Fenced, match="life 1 of node 1"):
            await door.perform(AllocateProducerIds(1))
        with pytest.raises(Fenced):
            await door.perform(AllocateProducerIds(1), validate_only=True)
        assert (await world.client.perform(AllocateProducerIds(1))).first == 2, "nothing was taken meanwhile"


async def test_reading_needs_no_life(tmp_path: Path) -> None:
    async with running("in-process/memory", tmp_path) as world:
        await world.ready_topic()
        door = NodeMetaClient(world.client)
        snapshot = await door.snapshot()
        assert snapshot.version == await door.read_version()
        assert await door.read_cluster_id() == world.service.cluster_id
        assert await door.topic(snapshot.topics[0].topic_id) == snapshot.topics[0]
        assert (await door.deleted_segments(), await door.purged_topics()) == ([], frozenset())
        assert (await anext(door.watch(0))).version == 1


def test_the_door_has_all_that_others_have() -> None:
    wanted = {name for name, _ in inspect.getmembers(MetaClient, inspect.isfunction) if not name.startswith("_")}
    assert wanted <= set(dir(NodeMetaClient))
