"""What no node has any more is skipped, but not before a node that returned a moment ago could report a copy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stratalog.model.metadata import Node
from stratalog.model.segment import Segment
from stratalog_node.shards.catalog.lost_segments import PATIENCE_MS, LostSegments
from unit.machines.tiering.test_mounted_uploads import SEALED

pytestmark = pytest.mark.fault("node-given-force-replica")

LONELY = replace(SEALED, replicas=(1,), local_nodes=(1,))
SHARED = replace(SEALED, replicas=(1, 2), local_nodes=(1,))


class Known:
    """A catalog in a test's hands."""

    is_lost = True

    def __init__(self) -> None:
        self.living = {2}
        self.epoch = 7

    def is_lost_for_good(self, segment: Segment) -> bool:
        return self.is_lost and not (segment.replicas == (1, 2) and 2 not in self.living)

    def is_alive(self, node_id: int) -> bool:
        return node_id in self.living

    def node(self, node_id: int) -> Node:
        return Node(node_id, "disk", "host", 9, epoch=self.epoch)


def test_one_that_came_back_gets_time_to_tell_of_its_copy() -> None:
    known: Any = Known()
    now_ms = 5
    is_lost = LostSegments(known, known.is_lost_for_good, lambda: now_ms)
    assert is_lost(LONELY)
    assert not is_lost(SHARED)
    now_ms += PATIENCE_MS - 1
    assert not is_lost(SHARED)
    known.living = set()
    assert not is_lost(SHARED), "it is away again"
    known.living = {2}
    now_ms += 1
    assert not is_lost(SHARED), "and came back just now"
    now_ms += PATIENCE_MS
    assert is_lost(SHARED)
    known.is_lost = False
    assert not is_lost(SHARED), "it told of it"


def test_a_node_that_returned_between_two_checks_gets_the_same_time() -> None:
    known: Any = Known()
    now_ms = 5
    is_lost = LostSegments(known, known.is_lost_for_good, lambda: now_ms)
    assert not is_lost(SHARED)
    now_ms += PATIENCE_MS
    known.epoch = 8
    assert not is_lost(SHARED), "nobody looked while it was away"
    now_ms += PATIENCE_MS - 1
    three = replace(SHARED, replicas=(1, 2, 3))
    known.living = {2, 3}
    assert not is_lost(three)
    now_ms += 1
    assert not is_lost(three), "the other has had its time, this one not"
    known.living = {2}
    now_ms += PATIENCE_MS - 1
    assert is_lost(three), "who goes again makes nobody wait"
