"""A retirement outlives the process that noted it: its record comes back from the store as it was, also from before."""

from __future__ import annotations

import json
from dataclasses import replace
from uuid import UUID

import pytest

from stratalog.machines.table.records import NodeEntry, PutNode
from stratalog.model.commands.retirement_commands import CancelRetirement, RetireNode
from stratalog.model.commands.table_commands import CreateTopic, RegisterNode
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import NodeInfo
from stratalog.model.retirement import (
    LostRange,
    Retirement,
    RetireMode,
    RetireStep,
    Sighting,
    Wait,
    WaitReason,
)
from stratalog.stored.encoding import decode, decode_retirement, encode, encode_retirement
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from support.meta_worlds import HandClock

KEY = SegmentKey(UUID(int=7), 3, 2, 40)
FULL = Retirement(
    "disk-1",
    RetireMode.VOLUME,
    RetireStep.VERIFY,
    5,
    6,
    Wait(WaitReason.UNKNOWN_SEGMENTS, "node 2 could not confirm 1 of 3 segments", 7),
    (Sighting(2, 8, 3), Sighting(3, 9, 3, (KEY,), 1, True, "another digest")),
    "cluster/retired/1/5.2.1.inventory",
    True,
    (LostRange(KEY, 40, 50),),
    1,
    True,
)


@pytest.mark.parametrize("record", [None, FULL, Retirement("disk-1", RetireMode.OFFLOAD, RetireStep.PREFLIGHT, 1, 1)])
def test_a_record_comes_back_as_it_was(record: Retirement | None) -> None:
    entry = NodeEntry(NodeInfo(1, "disk-1", "host", 9092), 4, True, "start", 11, "boot", True, record, 2, absences=3)
    ((key, value),) = encode([PutNode(entry)])
    assert value is not None
    assert list(decode([(key, value)], "test")) == [entry]


def test_the_record_of_before_has_a_directory_that_was_not_given_up() -> None:
    fields = encode_retirement(FULL)
    assert fields is not None
    assert decode_retirement(fields[:11]) == replace(FULL, is_volume_lost=False)


@pytest.mark.parametrize("fields", [10, 11, 12, 13, 14])
def test_a_node_of_before_has_no_retirement_no_class_of_room_and_one_listener_and_was_never_lost(fields: int) -> None:
    entry = NodeEntry(NodeInfo(1, "disk-1", "host", 9092), 4, True, "start", 11, "boot")
    ((key, value),) = encode([PutNode(entry)])
    assert value is not None
    older = json.dumps(json.loads(value)[:fields]).encode()
    assert list(decode([(key, older)], "test")) == [entry]


async def test_another_leader_finds_the_wish_and_its_taking_back() -> None:
    store = MemoryStore()
    first = MetaService(store, HandClock())
    await first.start()
    for node_id in (1, 2):
        await first.perform(RegisterNode(NodeInfo(node_id, f"disk-{node_id}", "host", 9092)))
        wished = await first.perform(RetireNode(node_id, RetireMode.VOLUME))
    await first.perform(CancelRetirement(1))
    await first.close()
    second = MetaService(store, HandClock())
    await second.start()
    nodes = {node.node_id: node.retirement for node in (await second.snapshot()).nodes}
    assert nodes == {1: None, 2: wished}
    await second.close()


async def test_what_remains_of_a_node_is_reported_with_the_request_and_not_a_pass_later() -> None:
    """Otherwise an immediate request would read that nothing of it is needed any more."""
    service = MetaService(MemoryStore(), HandClock(), lease_ms=600_000)
    await service.start()
    for node_id in (1, 2):
        await service.perform(RegisterNode(NodeInfo(node_id, f"disk-{node_id}", "host", 9092)))
    await service.perform(CreateTopic("flights", 4, 1, {}))
    assert await service.retirements() == []
    for node_id in (1, 2):
        await service.perform(RetireNode(node_id, RetireMode.OFFLOAD))
        told = await service.retirements()
        assert [one.node_id for one in told] == list(range(1, node_id + 1))
        assert [one.remaining_segments for one in told] == [2] * node_id
    await service.perform(CancelRetirement(1))
    assert [one.node_id for one in await service.retirements()] == [2]
    await service.perform(RetireNode(1, RetireMode.VOLUME))
    first, _ = await service.retirements()
    assert (first.node_id, first.retirement.mode) == (1, RetireMode.VOLUME)
    await service.close()
