"""Segments of a shard that concern several nodes: a start leaves them to the follower."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from stratalog.machines.leading.shared_segments import is_shared
from stratalog.model.ids import SegmentKey
from stratalog.model.producers import NO_PRODUCERS
from stratalog.model.segment import SealRecord, Segment, SegmentState


def segment(epoch: int, *replicas: int, is_sealed: bool = False) -> Segment:
    base = 100 * epoch
    found = Segment(SegmentKey(UUID(int=1), 0, epoch, base), SegmentState.ACTIVE, 1, replicas, replicas, 0, 0)
    seal = SealRecord(epoch, base, base + 100, 0, 0, 1, b"", NO_PRODUCERS, replicas, 0)
    return replace(found, state=SegmentState.SEALED, seal=seal) if is_sealed else found


def test_what_has_one_replica_is_its_own() -> None:
    assert not is_shared([segment(0, 1)], 0)


def test_what_a_recovery_decides_is_not() -> None:
    assert is_shared([replace(segment(0, 1), leader=None, fence=1)], 0)
    assert not is_shared([replace(segment(0, 1, is_sealed=True), leader=None, fence=1)], 0)


def test_what_has_several_is_shared_until_it_is_sealed() -> None:
    assert is_shared([segment(0, 1, 2)], 0)
    assert not is_shared([segment(0, 1, 2, is_sealed=True)], 0)


def test_what_was_rolled_into_and_not_confirmed_goes_with_the_segment_before() -> None:
    listed = [segment(0, 1, 2, is_sealed=True), segment(1, 1, 2)]
    assert is_shared(listed, 2)
    assert not is_shared([segment(0, 1)], 1)


def test_a_file_below_all_that_is_listed_is_the_nodes_own() -> None:
    assert not is_shared([segment(3, 1, 2)], 1)
    assert not is_shared([], 0)
