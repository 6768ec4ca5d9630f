"""A replaced leader gives up its segment once its metadata name another leader, and not before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog.machines.leading.chain_events import ShardRecovered, ShardStopped
from stratalog.machines.leading.leader_events import RollPolicy
from stratalog.machines.leading.producer_table import ProducerTable
from stratalog.machines.leading.resigning import must_resign
from stratalog.machines.leading.segment_leader import SegmentLeader
from stratalog.machines.leading.shard_chain import ShardChain
from stratalog.machines.leading.shard_life import Stop, StopCause
from stratalog.model.segment import Segment
from support.table_stories import TableStory

NODE = 1


@pytest.fixture
def story() -> TableStory:
    return TableStory(nodes=2)


@pytest.fixture
def active(story: TableStory) -> Segment:
    return story.active(story.topic(replicas=2))


def chain_over(segment: Segment, cause: StopCause | None, *, is_confirmed: bool = True) -> ShardChain:
    policy = RollPolicy(1_000, 1_000)
    leader = SegmentLeader(segment.key, NODE, policy, ProducerTable(), isr=segment.isr, is_confirmed=is_confirmed)
    chain = ShardChain(segment.key.shard_key, NODE, policy)
    chain.step(ShardRecovered((), leader, segment.base_offset, -1, None), 0)
    if cause is not None:
        chain.step(ShardStopped(Stop("told so", cause)), 0)
    return chain


def fenced(segment: Segment) -> Segment:
    return replace(segment, leader=None, fence=segment.epoch + 1)


@pytest.mark.parametrize("cause", [None, StopCause.FLUSH_FAILED, StopCause.FAULT])
def test_who_was_not_deposed_keeps_what_it_led(active: Segment, cause: StopCause | None) -> None:
    assert not must_resign(chain_over(active, cause), fenced(active), None)


def test_a_replaced_leader_continues_as_a_replica_of_what_others_seal(active: Segment) -> None:
    assert must_resign(chain_over(active, StopCause.DEPOSED), fenced(active), None)


def test_what_it_leads_still_is_not_a_reason(active: Segment) -> None:
    led = replace(active, leader=NODE)
    assert not must_resign(chain_over(led, StopCause.DEPOSED), led, None)


def test_metadata_that_name_it_still_lag_behind_what_deposed_it(active: Segment) -> None:
    """News of the segment before would have it begin the file that it was writing again."""
    led = replace(active, leader=NODE)
    chain = chain_over(led, StopCause.DEPOSED)
    before = fenced(active)
    assert not must_resign(chain, before, led)
    assert must_resign(chain, before, replace(led, leader=2)), "another leads it"
    assert must_resign(chain_over(led, StopCause.DEPOSED, is_confirmed=False), before, led), "of what it opened ahead"


def test_a_segment_that_no_other_node_has_stays_stopped_unless_its_recovery_waits_for_this_node(
    active: Segment,
) -> None:
    alone = replace(active, leader=None, replicas=(NODE,))
    assert not must_resign(chain_over(alone, StopCause.DEPOSED), alone, None)
    assert must_resign(chain_over(alone, StopCause.DEPOSED), fenced(alone), None)
