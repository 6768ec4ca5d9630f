"""After a fence was raised nothing that an earlier leader asks changes the segment (design rule 7)."""

from __future__ import annotations

import pytest

from stratalog.model.commands import ProposeIsr, RaiseFence, RollSegment, SealSegment
from stratalog.model.errors import Fenced
from stratalog.model.segment import SegmentState
from support.table_stories import TableStory, record_of, state_of


def test_an_earlier_leader_cannot_change_the_isr_after_a_fence() -> None:
    story = TableStory(nodes=2)
    key = story.active(story.topic(replicas=2)).key
    story.do(RaiseFence(key, 1))
    before = state_of(story.table)
    with pytest.raises(Fenced, match="its fence is at 1"):
        story.do(ProposeIsr(key, (1,), 0))
    assert state_of(story.table) == before
    assert story.do(ProposeIsr(key, (1,), 0, fence=1)).result.isr == (1,), "the recovery itself may"


def test_an_earlier_leader_cannot_roll_after_a_fence() -> None:
    story = TableStory(nodes=2)
    key = story.active(story.topic(replicas=2)).key
    story.do(RaiseFence(key, 1))
    before = state_of(story.table)
    with pytest.raises(Fenced, match="a recovery seals it"):
        story.roll(key, 10)
    assert state_of(story.table) == before
    story.do(RollSegment(key, 7, fence=1))
    assert story.segment(key).end_offset == 7


def test_a_roll_that_the_recovery_made_is_no_answer_for_the_earlier_leader() -> None:
    """Told of it as of its own roll, it would go on as leader of the next segment."""
    story = TableStory(nodes=2)
    key = story.active(story.topic(replicas=2)).key
    story.do(RaiseFence(key, 1))
    opened = story.do(RollSegment(key, 7, fence=1)).result
    with pytest.raises(Fenced):
        story.roll(key, 7)
    assert story.do(RollSegment(key, 7, fence=1)).result == opened, "asked again by the recovery it is answered again"


def test_a_later_recovery_fences_the_one_before() -> None:
    story = TableStory(nodes=2)
    key = story.active(story.topic(replicas=2)).key
    story.do(RaiseFence(key, 1))
    story.do(RaiseFence(key, 2))
    with pytest.raises(Fenced):
        story.do(RollSegment(key, 7, fence=1))
    with pytest.raises(Fenced):
        story.do(ProposeIsr(key, (1,), 0, fence=1))


def test_a_fence_in_a_sealing_segment_keeps_its_end_and_lets_the_recovery_seal_it() -> None:
    story = TableStory(nodes=2)
    key = story.active(story.topic(replicas=2)).key
    story.roll(key, 7)
    story.do(RaiseFence(key, 1))
    with pytest.raises(Fenced):
        story.roll(key, 7)
    sealed = story.do(SealSegment(key, record_of(key, 7))).result
    assert (sealed.state, sealed.end_offset) == (SegmentState.SEALED, 7)


def test_the_segment_after_a_fenced_one_begins_without_a_fence() -> None:
    story = TableStory(nodes=2)
    key = story.active(story.topic(replicas=2)).key
    story.do(RaiseFence(key, 3))
    opened = story.do(RollSegment(key, 7, fence=3)).result
    assert opened.fence == 0
    story.roll(opened.key, 9)
