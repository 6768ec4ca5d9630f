"""Where a node reads what it has no good copy of."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from stratalog.machines.reading.read_sources import ReadSource, provers, sources
from stratalog.model.ids import SegmentKey
from stratalog.model.producers import NO_PRODUCERS
from stratalog.model.segment import SealRecord, Segment, SegmentState

NEAR, STORE, FAR = ReadSource.NEAR_NODE, ReadSource.STORE, ReadSource.FAR_NODE
SEAL = SealRecord(0, 0, 10, 0, 0, 100, b"d" * 16, NO_PRODUCERS, (1, 2, 3, 4), 0)
SEGMENT = Segment(
    SegmentKey(UUID(int=1), 0, 0, 0), SegmentState.SEALED, None, (1, 2, 3), (1, 2, 3), 1, 0, 10, SEAL, (1, 2, 3, 4)
)


@pytest.mark.fault("leader-copy-sealed-segment")
@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("NotInDisk", (NEAR, STORE, FAR)),
        ("NotInMemory", (STORE, NEAR, FAR)),
        ("Disable", (NEAR, FAR)),
        ("Force", (STORE,)),
    ],
)
def test_the_cheapest_is_asked_first_as_the_policy_allows(policy: str, order: tuple[ReadSource, ...]) -> None:
    assert sources(policy, has_near=True, has_far=True, is_in_store=True) == order


@pytest.mark.parametrize("policy", ["NotInDisk", "NotInMemory", "Disable", "Force"])
def test_nodes_are_asked_for_what_no_store_has(policy: str) -> None:
    assert sources(policy, has_near=True, has_far=True, is_in_store=False) == (NEAR, FAR)
    assert sources(policy, has_near=False, has_far=False, is_in_store=False) == ()


def test_nodes_of_the_same_rack_are_near() -> None:
    racks = {1: "a", 2: "b", 3: "a", 4: None}
    assert provers(SEGMENT, 1, "a", racks.get) == ([3], [2, 4])
    assert provers(SEGMENT, 1, None, racks.get) == ([4], [2, 3])


def test_who_has_not_proved_its_copy_is_not_asked() -> None:
    assert provers(replace(SEGMENT, local_nodes=(1, 2)), 1, None, {}.get) == ([2], [])
    assert provers(replace(SEGMENT, state=SegmentState.SEALING, seal=None), 1, None, {}.get) == ((), ())
