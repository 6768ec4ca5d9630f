"""The service's clock is set while nodes leave: what was noted by it earlier lies in the future then."""

from __future__ import annotations

import pytest

from stratalog.machines.copies.leaving import HANDOVER_MS, is_between_holders
from stratalog.machines.plans.retirement import SIGHTING_LASTS_MS, Served, is_verified
from stratalog.model.retirement import Retirement, RetireMode, RetireStep, Sighting
from support.retirement_story import INTERVAL_MS, RetirementStory
from unit.machines.plans.test_one_release_at_a_time import both_ready

HOUR_MS = 3_600_000


def in_verify() -> RetirementStory:
    story = RetirementStory(nodes=3)
    story.now_ms += 2 * HOUR_MS
    story.verifies(1)
    return story


@pytest.mark.fault("service-clock-set-nodes")
def test_a_clock_that_is_set_back_holds_back_the_next_release_no_longer() -> None:
    story = both_ready()
    story.now_ms += HOUR_MS
    for node_id in (1, 2):
        story.run_pass(node_id)  # too long ago: again
    for _ in range(2):
        story.now_ms += INTERVAL_MS
        for node_id in (1, 2):
            story.sight(node_id, by_node=3)
    story.run_passes(1, 2)
    for node_id in (1, 2):
        story.write_inventory(node_id, by_node=3)
    story.mount = Served.PENDING
    story.run_passes(1, 2)
    assert (story.record(1).step, story.record(2).step) == (RetireStep.MOUNT, RetireStep.SNAPSHOT)
    story.now_ms -= HANDOVER_MS
    story.run_passes(2)
    assert story.record(2).step.is_released


@pytest.mark.parametrize(("ago_ms", "is_between"), [(-HANDOVER_MS, False), (1 - HANDOVER_MS, True), (0, True)])
def test_a_handover_is_a_distance_in_time(ago_ms: int, is_between: bool) -> None:
    record = Retirement("disk", RetireMode.OFFLOAD, RetireStep.MOUNT, 0, HOUR_MS)
    assert is_between_holders(record, HOUR_MS + ago_ms) is is_between


@pytest.mark.fault("service-clock-set-nodes")
def test_a_first_check_from_before_the_clock_was_set_back_is_dropped() -> None:
    """Or the second one would be apart from it only once the clock has come there again."""
    story = in_verify()
    story.sight(1, by_node=2)
    story.now_ms -= HOUR_MS
    story.sight(1, by_node=3)
    (kept,) = story.record(1).sightings
    assert kept.at_ms == story.now_ms
    story.run_passes(1)
    assert story.record(1).step is RetireStep.VERIFY
    story.now_ms += INTERVAL_MS
    story.sight(1, by_node=2)
    story.run_passes(1, count=1)
    assert story.record(1).step is RetireStep.SNAPSHOT


@pytest.mark.fault("service-clock-set-nodes")
def test_looks_from_before_the_clock_was_set_back_do_not_count_until_it_is_there_again() -> None:
    story = in_verify()
    for by_node in (2, 3):
        story.sight(1, by_node)
        story.now_ms += INTERVAL_MS
    story.run_passes(1, count=1)
    assert story.record(1).step is RetireStep.SNAPSHOT
    story.now_ms -= HOUR_MS
    story.run_passes(1, count=1)
    assert story.record(1).step is RetireStep.VERIFY, "who knows how long ago that was"
    for by_node in (2, 3):
        story.sight(1, by_node)
        story.now_ms += INTERVAL_MS
    story.run_passes(1, count=1)
    assert story.record(1).step is RetireStep.SNAPSHOT


@pytest.mark.parametrize(("ahead_ms", "is_new"), [(1, True), (SIGHTING_LASTS_MS, True), (SIGHTING_LASTS_MS + 1, False)])
def test_another_leader_whose_clock_is_a_little_behind_takes_what_was_seen(ahead_ms: int, is_new: bool) -> None:
    seen = [Sighting(2, at_ms, 1) for at_ms in (HOUR_MS, HOUR_MS + INTERVAL_MS)]
    assert is_verified(seen, INTERVAL_MS, 1, HOUR_MS + INTERVAL_MS - ahead_ms) is is_new
