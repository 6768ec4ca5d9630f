"""What held nodes told makes a vector; whether the bucket has it all is seen from the segments. That the vector is
consistent is shown by `unit/cli/test_holding_several_nodes.py`."""

from __future__ import annotations

from uuid import UUID

from stratalog.machines.reading.consistent_cut import ReportedEnd, TieredSegment, coverage, join, unreported_shards
from stratalog.model.ids import ShardKey

SHARD, OTHER = ShardKey(UUID(int=1), 0), ShardKey(UUID(int=1), 1)


def test_of_two_that_say_they_lead_the_later_one_does() -> None:
    old, new = ReportedEnd(SHARD, 1, 3, 0, 90), ReportedEnd(SHARD, 2, 4, 0, 80)
    assert join([old, new]) == join([new, old]) == {SHARD: new}
    assert unreported_shards({SHARD: None, OTHER: None}, join([old])) == [OTHER]


def test_a_cut_is_covered_once_all_its_segments_are_complete() -> None:
    end = ReportedEnd(SHARD, 1, 2, 5, 25)
    whole = [TieredSegment(0, 0, 10, True), TieredSegment(1, 10, 20, True), TieredSegment(2, 20, 30, True)]
    assert coverage(end, [*whole, TieredSegment(3, 30, 40, False)]) == coverage(end, whole)
    assert (coverage(end, whole).epoch, coverage(end, whole).is_complete) == (2, True)
    assert not coverage(end, [*whole[:2], TieredSegment(2, 20, 30, False)]).is_complete
    assert not coverage(end, [*whole[:2], TieredSegment(2, 20, 22, True)]).is_complete
    assert coverage(ReportedEnd(SHARD, 1, 2, 5, 5), []).is_complete, "nothing is needed"


def test_what_retention_took_meanwhile_is_reported() -> None:
    end = ReportedEnd(SHARD, 1, 2, 5, 25)
    assert "retention" in str(coverage(end, [TieredSegment(1, 10, 30, True)]).fault)
    assert "retention" in str(coverage(end, []).fault)
    gap = [TieredSegment(0, 0, 10, True), TieredSegment(2, 20, 30, True)]
    assert "offset 10" in str(coverage(end, gap).fault)
