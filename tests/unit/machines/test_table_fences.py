"""After a fence was raised nothing that an earlier leader asks changes the segment (design rule 7)."""

from __future__ import annotations

import pytest

from stratalog.model.commands.table_commands import BeginRecovery, PrepareSegment, ProposeIsr, TableCommand
from stratalog.model.errors import Fenced
from support.table_stories import TableStory, promise, state_of


@pytest.mark.fault("fenced-leader-earlier-life")
@pytest.mark.parametrize("deed", ["isr", "roll", "prepare"])
def test_an_earlier_leader_changes_nothing_after_a_fence(deed: str) -> None:
    story = TableStory(nodes=2)
    key = story.active(story.topic(replicas=2)).key
    story.do(BeginRecovery(key))
    before = state_of(story.table)
    asked: dict[str, TableCommand] = {"isr": ProposeIsr(key, (1,), 0), "prepare": PrepareSegment(key)}
    with pytest.raises(Fenced, match="its fence is at 1"):
        if deed == "roll":
            story.roll(key, 10)
        else:
            story.do(asked[deed])
    assert state_of(story.table) == before


def test_a_roll_that_the_recovery_made_is_not_an_answer_for_the_earlier_leader() -> None:
    """If it took this for its own roll, it would continue as leader of the next segment."""
    story = TableStory(nodes=2)
    key = story.active(story.topic(replicas=2)).key
    story.do(BeginRecovery(key))
    for node in (1, 2):
        story.do(promise(story, key, node, 7))
    assert story.segment(key).end_offset == 7
    with pytest.raises(Fenced):
        story.roll(key, 7)


def test_a_fence_in_a_sealing_segment_keeps_its_end() -> None:
    story = TableStory(nodes=2)
    key = story.active(story.topic(replicas=2)).key
    story.roll(key, 7)
    fenced = story.do(BeginRecovery(key)).result
    assert (fenced.end_offset, fenced.leader) == (7, None)
    with pytest.raises(Fenced):
        story.roll(key, 7)


def test_the_segment_after_a_fenced_one_begins_without_a_fence() -> None:
    story = TableStory(nodes=2)
    topic = story.topic(replicas=2)
    key = story.active(topic).key
    story.do(BeginRecovery(key))
    for node in (1, 2):
        story.do(promise(story, key, node, 7))
    opened = story.active(topic)
    assert (opened.fence, opened.base_offset) == (0, 7)
    story.roll(opened.key, 9)
