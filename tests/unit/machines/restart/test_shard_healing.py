"""What happens to a healing while it asks the object store: metadata and settings may move meanwhile. The rest is in
`restart_stories`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog.machines.leading.shard_life import StopCause
from stratalog.machines.restart import shard_healing
from stratalog.machines.restart.restart_events import Heal, RecoveredLog
from stratalog.model.segment import Segment, SegmentState
from support.simulated_disk import key_of, segment_of

SEGMENT = segment_of(key_of(0, 0), SegmentState.ACTIVE, commit_offset=6)
MISSING = Heal(SEGMENT, 2, 6, RecoveredLog())


def asked(
    *missed: tuple[int, int], segment: Segment | None = SEGMENT, may_give_up: bool = True
) -> shard_healing.StoreAnswered:
    return shard_healing.StoreAnswered(missed, segment, may_give_up)


def begun(*, may_give_up: bool = True) -> shard_healing.ShardHealing:
    """One that found an object gone."""
    healing = shard_healing.ShardHealing(MISSING)
    healing.step(shard_healing.AttemptBegun(SEGMENT, 0, has_file=True, may_give_up=may_give_up))
    (ask,) = healing.step(shard_healing.FileRefilled(2, shard_healing.Obstacle.NOT_THERE, "gone"))
    assert isinstance(ask, shard_healing.AskStore) and ask.ranges == ((2, 6),)
    return healing


def asked_often(healing: shard_healing.ShardHealing) -> None:
    for _ in range(5):
        pause, again = healing.step(asked((2, 4)))
        assert isinstance(pause, shard_healing.Pause)
        assert isinstance(again, shard_healing.AskStore) and again.ranges == ((2, 4),), "only what could not be had"


def test_what_was_asked_for_six_times_in_vain_is_given_up() -> None:
    healing = begun()
    asked_often(healing)
    give_up, *_ = healing.step(asked((2, 4)))
    assert give_up == shard_healing.GiveUp(SEGMENT, ((2, 4),), 6)


def test_parts_that_touch_are_one_hole() -> None:
    healing = begun()
    asked_often(healing)
    give_up, *_ = healing.step(asked((2, 3), (3, 4), (5, 6)))
    assert isinstance(give_up, shard_healing.GiveUp) and give_up.holes == ((2, 4), (5, 6))


@pytest.mark.parametrize(
    "now", [None, replace(SEGMENT, remote=replace(SEGMENT.remote, commit_offset=7))], ids=["deleted", "more committed"]
)
def test_metadata_that_moved_while_the_store_was_asked_give_nothing_up(now: Segment | None) -> None:
    healing = begun()
    asked_often(healing)
    (again,) = healing.step(asked((2, 4), segment=now))
    assert isinstance(again, shard_healing.TryAgain) and "metadata moved" in again.why


def test_a_setting_that_was_taken_back_while_the_store_was_asked_gives_nothing_up() -> None:
    healing = begun()
    asked_often(healing)
    (stop,) = healing.step(asked((2, 4), may_give_up=False))
    assert isinstance(stop, shard_healing.StopHealing) and stop.cause is StopCause.DATA_LOST and stop.lost == ((2, 4),)


def test_an_attempt_that_failed_counts_no_tries() -> None:
    healing = begun()
    asked_often(healing)
    assert isinstance(healing.step(shard_healing.AttemptFailed("away", is_final=False))[0], shard_healing.TryAgain)
    healing.step(shard_healing.AttemptBegun(SEGMENT, 0, has_file=True, may_give_up=True))
    healing.step(shard_healing.FileRefilled(2, shard_healing.Obstacle.NOT_THERE, "gone"))
    asked_often(healing)


def test_a_part_that_is_there_after_all_is_brought_back_before_anything_behind_it_is_given_up() -> None:
    """The file continues there: the given-up range begins where its batches end."""
    healing = begun()
    asked_often(healing)
    (again,) = healing.step(asked((4, 5)))
    assert isinstance(again, shard_healing.TryAgain)
