"""Up to where the log is unbroken from an epoch on, by a shard's segment list."""

from __future__ import annotations

from uuid import UUID

import pytest

from stratalog.model.ids import SegmentKey
from stratalog.model.segment import GapReason, GivenUp, Handover, Segment, SegmentState
from stratalog_node.shards.read.epochs import UNDEFINED, end_of_epoch, epoch_of_offset


def segment(epoch: int, base_offset: int, *given_up: GivenUp) -> Segment:
    handover = Handover(given_up=given_up) if given_up else None
    key = SegmentKey(UUID(int=1), 0, epoch, base_offset)
    return Segment(key, SegmentState.SEALED, None, (1,), (1,), 0, 0, handover=handover)


TRIMMED = [segment(4, 100), segment(5, 150), segment(6, 150), segment(7, 300)]


def test_an_epoch_that_was_trimmed_away_ends_where_the_known_log_begins() -> None:
    assert end_of_epoch(TRIMMED, 350, 2) == (2, 100)


def test_an_epoch_continues_over_rolls_to_the_end_of_the_log() -> None:
    assert [end_of_epoch(TRIMMED, 350, epoch) for epoch in (4, 5, 6)] == [(4, 350), (5, 350), (6, 350)]


@pytest.mark.fault("librdkafka-reader-asks-roll")
@pytest.mark.parametrize("lost", [GivenUp(150, 170, GapReason.UNCLEAN), GivenUp(150, 150, GapReason.RESTARTED)])
def test_an_epoch_ends_where_a_recovery_gave_up_what_followed_or_may_have(lost: GivenUp) -> None:
    log = [segment(4, 100), segment(5, 120, lost), segment(6, 150), segment(8, 300)]
    assert [end_of_epoch(log, 350, epoch) for epoch in (4, 5)] == [(4, 150), (5, 150)]
    assert [end_of_epoch(log, 350, epoch) for epoch in (6, 7, 8)] == [(6, 350), (6, 350), (8, 350)]


def test_the_last_epoch_ends_at_the_end_of_the_log() -> None:
    assert end_of_epoch(TRIMMED, 350, 7) == (7, 350)


def test_epochs_above_all_known_ones_are_undefined() -> None:
    assert end_of_epoch(TRIMMED, 350, 8) == UNDEFINED
    assert end_of_epoch([], 0, 0) == UNDEFINED
    assert end_of_epoch(TRIMMED, 350, -1) == UNDEFINED


def test_an_offset_belongs_to_the_last_segment_that_begins_at_or_below_it() -> None:
    assert [epoch_of_offset(TRIMMED, offset) for offset in (99, 100, 150, 299, 300, 999)] == [-1, 4, 6, 6, 7, 7]
