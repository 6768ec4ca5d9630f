"""A retirement outlives the process that noted it: its record comes back from the store as it was, also from before."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from stratalog.machines.table_records import NodeEntry, PutNode
from stratalog.model.commands import RegisterNode
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
from stratalog.model.retirement_commands import CancelRetirement, RetireNode
from stratalog_meta.service import MetaService
from stratalog_meta.stores.encoding import decode, encode
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
)


@pytest.mark.parametrize("record", [None, FULL, Retirement("disk-1", RetireMode.OFFLOAD, RetireStep.PREFLIGHT, 1, 1)])
def test_a_record_comes_back_as_it_was(record: Retirement | None) -> None:
    entry = NodeEntry(NodeInfo(1, "disk-1", "host", 9092), 4, True, "start", 11, "boot", True, record, 2)
    ((key, value),) = encode([PutNode(entry)])
    assert value is not None
    assert list(decode([(key, value)], "test")) == [entry]


def test_a_node_of_before_has_no_retirement() -> None:
    entry = NodeEntry(NodeInfo(1, "disk-1", "host", 9092), 4, True, "start", 11, "boot")
    ((key, value),) = encode([PutNode(entry)])
    assert value is not None
    older = json.dumps(json.loads(value)[:10]).encode()
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
