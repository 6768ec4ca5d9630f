"""Whether a node comes with the directory in which its last life ran; what a copy, or an older state, is worth."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from stratalog.machines.table.nodes import is_process_over
from stratalog.model.commands.table_commands import PrepareSegment, RegisterNode, RollSegment
from stratalog.model.errors import Fenced
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Registration
from stratalog.model.segment import Doubt, GapReason
from support.table_stories import TableStory


def started(story: TableStory, node_id: int, start_id: str, *earlier: str, **what: Any) -> Registration:
    """A start in the machine's only boot, in a directory that names `earlier`."""
    info = story.table.state.nodes[node_id].info
    command = RegisterNode(info, start_id, boot_id="boot", earlier_starts=earlier, **what)
    result: Registration = story.do(command).result
    return result


def shared(replicas: int = 3, **settings: str) -> tuple[TableStory, SegmentKey]:
    """A segment on nodes that have each begun a life by a start that is called "one"."""
    story = TableStory(nodes=replicas)
    for node_id in range(1, replicas + 1):
        started(story, node_id, "one")
    topic = story.topic(replicas=replicas, settings={name.replace("_", "."): value for name, value in settings.items()})
    return story, story.active(topic).key


@pytest.mark.fault("older-copy-node-directory")
@pytest.mark.parametrize("policy", ["replicated", "fsync"])
def test_only_the_directory_that_names_the_start_of_the_last_life_continues_it(policy: str) -> None:
    story, key = shared(flush_policy=policy)
    assert started(story, 3, "two", "one").is_continued
    assert started(story, 3, "three", "two").is_continued
    assert 3 in story.segment(key).isr and not story.segment(key).handed.doubts
    assert not started(story, 3, "four", "one").is_continued, "an older state of the directory"
    assert story.segment(key).isr == (1, 2)
    assert story.segment(key).handed.doubts == (Doubt(3, is_lost=False),)


@pytest.mark.fault("process-dies-registration-note")
def test_a_start_that_was_not_answered_may_have_begun_the_last_life() -> None:
    story, key = shared()
    started(story, 3, "two", "one")
    assert started(story, 3, "three", "one", "two").is_continued
    assert 3 in story.segment(key).isr


@pytest.mark.fault("process-dies-registration-note")
def test_a_registration_of_an_earlier_start_that_comes_late_is_refused() -> None:
    story, _ = shared()
    started(story, 3, "two", "one")
    started(story, 3, "four", "two", "three")
    for late in ("one", "two", "three"):
        with pytest.raises(Fenced, match="came late"):
            started(story, 3, late)
    assert started(story, 3, "four").is_continued, "the present one is answered again"
    names = [f"start {number}" for number in range(20)]
    for before, name in itertools.pairwise(["four", *names]):
        started(story, 3, name, before)
    assert len(story.table.state.nodes[3].past_starts) == 8


def test_a_registration_that_is_repeated_gets_the_same_of_its_directory() -> None:
    story, _ = shared()
    assert not started(story, 3, "two").is_continued
    assert not started(story, 3, "two").is_continued
    assert started(story, 3, "three", "two").is_continued


def test_a_directory_in_which_the_last_life_stopped_in_order_continues_it_though_it_names_no_start() -> None:
    story, key = shared()
    last = story.table.state.nodes[3].node_epoch
    assert started(story, 3, "two", stopped_epoch=last).is_continued, "it was stopped and then copied"
    assert 3 in story.segment(key).isr
    assert not started(story, 3, "three", stopped_epoch=last).is_continued


def test_what_an_older_state_of_a_directory_said_of_its_copies_counts_no_more() -> None:
    story, key = shared()
    story.do(PrepareSegment(key, caller=story.life(1)))
    story.do(RollSegment(key, 5, caller=story.life(1)))
    story.report(key, 3)
    started(story, 3, "two", "one")
    assert [report.node_id for report in story.segment(key).handed.reports] == [3]
    started(story, 3, "three", "one")
    assert not story.segment(key).handed.reports


@pytest.mark.fault("two-directories-storage-id")
def test_the_only_replica_that_comes_with_an_older_state_says_that_its_log_may_have_a_break() -> None:
    story, key = shared(replicas=1, flush_policy="fsync")
    started(story, 1, "two", "one")
    assert not story.segment(key).handed.given_up
    started(story, 1, "three", "one")
    assert [gap.reason for gap in story.segment(key).handed.given_up] == [GapReason.RESTARTED]


def test_the_lock_of_a_directory_shows_that_the_process_before_is_over() -> None:
    story, _ = shared()
    started(story, 3, "two", "one", seat="boot/8/12")
    known = story.table.state.nodes[3]
    for seat, start_id, is_over in (
        ("boot/8/12", "three", True),
        ("boot/8/13", "three", False),
        ("", "three", False),
        ("", "two", True),
    ):
        assert is_process_over(known, RegisterNode(known.info, start_id, seat=seat)) is is_over
    assert is_process_over(None, RegisterNode(known.info))
    started(story, 3, "three", "two")
    assert not is_process_over(story.table.state.nodes[3], RegisterNode(known.info, "four")), "nothing is known of both"
