"""Each request names a life of the node that sends it: of another life than the present one nothing is performed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from stratalog.meta_api.client import CommandTaker
from stratalog.model.commands.table_commands import AllocateProducerIds, NodeCommand, RegisterNode
from stratalog.model.errors import Fenced
from stratalog.model.metadata import Heartbeat, Life, NodeInfo
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from support.meta_worlds import HandClock, MetaWorld, running
from unit.meta.test_meta_http_numbers import commands_with_numbers

ONE = NodeInfo(1, "storage-1", "127.0.0.1", 9093)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[MetaWorld]:
    async with running("http/memory", tmp_path) as started:
        yield started


async def lives(service: CommandTaker) -> dict[str, Life]:
    """By what is wrong with them. Node 1 is in its third life at least, the others in their first."""
    for _ in range(3):
        present = (await service.perform(RegisterNode(ONE))).node_epoch
    assert present >= 3
    return {
        "the former one": Life(1, present - 1),
        "the first one": Life(1, 1),
        "one ahead": Life(1, present + 1),
        "the number of node 1 under the name of another": Life(7, present),
        "of a node that never was": Life(99, 1),
        "no number that is given": Life(1, 0),
    }


@pytest.mark.fault("process-node-keeps-running", "fenced-leader-earlier-life")
async def test_nothing_is_performed_in_another_life(world: MetaWorld) -> None:
    commands = [one for one in await commands_with_numbers(world) if isinstance(one, NodeCommand)]
    wrong = await lives(world.client)
    before = await world.client.read_version()
    for command in commands:
        for what, life in wrong.items():
            with pytest.raises(Fenced):
                await world.client.perform(replace(command, caller=life))
                pytest.fail(f"{type(command).__name__} in a life that is {what}")
    assert await world.client.read_version() == before


async def test_no_node_is_kept_alive_by_heartbeats_of_another_life() -> None:
    """Registered again at once, because the lease of an earlier life is over before it is asked for."""
    service = MetaService(MemoryStore(), HandClock(), lease_ms=0)
    await service.start()
    try:
        await service.perform(RegisterNode(NodeInfo(7, "s7", "h", 1)))
        for what, life in (await lives(service)).items():
            with pytest.raises(Fenced):
                await service.heartbeat(Heartbeat(life))
                pytest.fail(f"a heartbeat in a life that is {what}")
    finally:
        await service.close()


async def test_what_is_sent_again_in_the_present_life_is_performed_as_of_that_life(world: MetaWorld) -> None:
    """A late repetition comes after the node began again."""
    life = Life(1, (await world.client.perform(RegisterNode(ONE))).node_epoch)
    sent = AllocateProducerIds(5, caller=life)
    first = await world.client.perform(sent)
    assert (await world.client.perform(sent)).first == first.end, "no id is given twice"
    await world.client.perform(RegisterNode(ONE))
    with pytest.raises(Fenced):
        await world.client.perform(sent)
