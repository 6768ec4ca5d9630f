"""Which replica serves a consumer that names its rack."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from uuid import UUID

import pytest

from stratalog.machines.reading.read_replica import has_run, reader_of
from stratalog.model.ids import SegmentKey
from stratalog.model.producers import NO_PRODUCERS
from stratalog.model.segment import SealRecord, Segment, SegmentState

TOPIC = UUID(int=1)


def sealed(epoch: int, base: int, end: int, *nodes: int, size_bytes: int = 1_000) -> Segment:
    seal = SealRecord(epoch, base, end, 0, 0, size_bytes, b"d" * 16, NO_PRODUCERS, nodes, 0)
    key = SegmentKey(TOPIC, 0, epoch, base)
    return Segment(key, SegmentState.SEALED, None, nodes, nodes, 1, 0, end, seal, nodes)


def active(epoch: int, base: int, *nodes: int) -> Segment:
    return Segment(SegmentKey(TOPIC, 0, epoch, base), SegmentState.ACTIVE, nodes[0], nodes, nodes, 1, 0)


LOG = [sealed(0, 0, 10, 1, 2, 3), sealed(1, 10, 20, 1, 2), active(2, 20, 1, 2, 3)]
RACKS = {1: "a", 2: "b", 3: "c"}


def reader(
    offset: int = 0, rack: str = "b", racks: dict[int, str] = RACKS, least: int = 1, who: str = "x"
) -> int | None:
    first = 0 if offset < 10 else 1 if offset < 20 else 2
    return reader_of(LOG, first, offset, named=(1, 2, 3), racks=racks, rack=rack, least_bytes=least, consumer=who)


def test_one_of_its_rack_comes_first() -> None:
    assert [reader(rack=rack) for rack in "abc"] == [1, 2, 3]


@pytest.mark.fault("node-consumer-sent-died")
def test_one_whose_lease_is_gone_belongs_to_no_one() -> None:
    assert reader(rack="b", racks={1: "a", 3: "c"}) in (1, 3)
    assert reader(racks={}) is None


def test_what_is_active_no_other_node_serves() -> None:
    assert reader(offset=20) is None


def test_no_fetch_is_sent_for_less_than_is_asked_for() -> None:
    assert reader(rack="c", least=1_001) in (1, 2), "node 3 has 1,000 bytes and then a gap"
    assert reader(least=2_001) is None
    assert reader(offset=15, least=500) == 2
    assert reader(offset=15, least=501) is None, "half a segment is left of it"


def test_a_replica_that_metadata_do_not_name_is_passed_over() -> None:
    named = reader_of(LOG, 0, 0, named=(1, 3), racks=RACKS, rack="b", least_bytes=1, consumer="x")
    assert named in (1, 3), "clients take nobody else"


def test_others_are_spread_over_all_and_each_keeps_its_own() -> None:
    chosen = {f"consumer {number}": reader(rack="far", who=f"consumer {number}") for number in range(300)}
    assert min(Counter(chosen.values()).values()) > 60
    left = {who: reader(rack="far", racks={1: "a", 2: "b"}, who=who) for who in chosen}
    assert all(left[who] == node for who, node in chosen.items() if node != 3), "who was not on the one that went stays"


@pytest.mark.parametrize("state", [SegmentState.ACTIVE, SegmentState.SEALING, SegmentState.DELETED])
def test_only_what_is_sealed_counts(state: SegmentState) -> None:
    assert not has_run([replace(LOG[0], state=state)], 0, 0, 1, 1)


def test_thousands_of_empty_segments_are_not_looked_at() -> None:
    many = [sealed(number, 5, 5, 1, size_bytes=0) for number in range(5_000)]
    assert not has_run(many, 0, 5, 1, 0)
