"""The end of an epoch, from a shard's segment list."""

from __future__ import annotations

from uuid import UUID

from stratalog.model.ids import SegmentKey
from stratalog.model.segment import Segment, SegmentState
from stratalog_node.shards.epochs import UNDEFINED, end_of_epoch, epoch_of_offset


def segment(epoch: int, base_offset: int) -> Segment:
    return Segment(SegmentKey(UUID(int=1), 0, epoch, base_offset), SegmentState.SEALED, None, (1,), (1,), 0, 0)


TRIMMED = [segment(4, 100), segment(5, 150), segment(6, 150), segment(7, 300)]


def test_an_epoch_that_was_trimmed_away_ends_where_the_known_log_begins() -> None:
    assert end_of_epoch(TRIMMED, 350, 2) == (2, 100)


def test_an_epoch_without_records_ends_where_it_began() -> None:
    assert end_of_epoch(TRIMMED, 350, 5) == (5, 150)


def test_the_last_epoch_ends_at_the_end_of_the_log() -> None:
    assert end_of_epoch(TRIMMED, 350, 7) == (7, 350)


def test_epochs_above_all_known_ones_are_undefined() -> None:
    assert end_of_epoch(TRIMMED, 350, 8) == UNDEFINED
    assert end_of_epoch([], 0, 0) == UNDEFINED
    assert end_of_epoch(TRIMMED, 350, -1) == UNDEFINED


def test_an_offset_belongs_to_the_last_segment_that_begins_at_or_below_it() -> None:
    assert [epoch_of_offset(TRIMMED, offset) for offset in (99, 100, 150, 299, 300, 999)] == [-1, 4, 6, 6, 7, 7]
