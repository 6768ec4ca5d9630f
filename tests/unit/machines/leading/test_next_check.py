"""A shard gets the time only if it may do something then: an idle shard whose replicas have everything is never
checked."""

from __future__ import annotations

import uuid

import pytest

from stratalog.machines.leading import leader_events
from stratalog.machines.leading.chain_events import SegmentEventReceived, ShardRecovered, ShardStopped
from stratalog.machines.leading.next_check import next_check_ms
from stratalog.machines.leading.producer_table import ProducerTable
from stratalog.machines.leading.segment_leader import SegmentLeader
from stratalog.machines.leading.shard_chain import ShardChain
from stratalog.machines.leading.shard_life import Stop, StopCause
from stratalog.model.ids import SegmentKey, ShardKey

SHARD = ShardKey(uuid.UUID(int=1), 0)
LEADER, FOLLOWER = 1, 2
POLICY = leader_events.RollPolicy(segment_bytes=1_000, segment_ms=60_000)
NOW = 5_000


def a_chain(isr: tuple[int, ...] = (LEADER, FOLLOWER)) -> ShardChain:
    """Its active segment is open, and empty."""
    chain = ShardChain(SHARD, LEADER, POLICY)
    key = SegmentKey(SHARD.topic_id, SHARD.shard, 0, 0)
    active = SegmentLeader(key, LEADER, POLICY, ProducerTable(), isr=isr)
    chain.step(ShardRecovered((), active, high_watermark=0, doubted_epoch=-1, stop=None), NOW)
    return chain


def append(chain: ShardChain, now_ms: int = NOW) -> None:
    chain.step(
        leader_events.BatchesReceived([leader_events.OfferedBatch(b"", 100, 1, now_ms, -1, -1, -1, -1, None, None)]),
        now_ms,
    )
    assert chain.active is not None
    chain.step(leader_events.BatchesPersisted(chain.active.end_offset), now_ms)


def fetch(chain: ShardChain, offset: int, life_epoch: int = 1) -> None:
    chain.step(SegmentEventReceived(0, leader_events.FollowerFetched(FOLLOWER, offset, life_epoch)), NOW)


def look(chain: ShardChain, steady_ms: int, now_ms: int = NOW) -> list[leader_events.ProposeIsr]:
    effects = chain.step(leader_events.TimePassed(steady_ms), now_ms)
    return [effect.proposal for effect in effects if hasattr(effect, "proposal")]


def test_an_empty_segment_is_not_looked_at() -> None:
    assert next_check_ms(ShardChain(SHARD, LEADER, POLICY), NOW) is None
    assert next_check_ms(a_chain(), NOW) is None


@pytest.mark.fault("node-thousands-idle-shards")
def test_a_segment_that_all_replicas_hold_is_looked_at_once_it_is_old() -> None:
    chain = a_chain()
    append(chain)
    fetch(chain, 1)
    assert next_check_ms(chain, NOW) == NOW + POLICY.segment_ms
    chain.step(leader_events.PolicyChanged(leader_events.RollPolicy(1_000, 7_000)), NOW)
    assert next_check_ms(chain, NOW) == NOW + 7_000, "by the policy of now"


def test_a_follower_that_is_behind_is_looked_at_each_time_until_it_is_seen_to_hold_all() -> None:
    chain = a_chain()
    append(chain)
    assert next_check_ms(chain, NOW) == NOW
    assert look(chain, 1_000) == []
    fetch(chain, 1)
    assert next_check_ms(chain, NOW) == NOW, "that it was behind is still to be forgotten"
    look(chain, 2_000)
    assert next_check_ms(chain, NOW) == NOW + POLICY.segment_ms


def test_a_follower_that_begins_another_life_after_a_rest_has_all_of_its_time_to_catch_up() -> None:
    chain = a_chain()
    append(chain)
    look(chain, 1_000)
    fetch(chain, 1)
    look(chain, 2_000)
    rested_ms = 2_000 + 10 * POLICY.lag_ms
    fetch(chain, 0, life_epoch=2)
    assert next_check_ms(chain, NOW) == NOW
    assert look(chain, rested_ms) == [] and look(chain, rested_ms + POLICY.lag_ms - 1) == []
    assert look(chain, rested_ms + POLICY.lag_ms) == [leader_events.ProposeIsr((LEADER,), 0)]


def test_a_dead_follower_is_looked_at_until_it_has_left_the_isr() -> None:
    chain = a_chain()
    append(chain)
    fetch(chain, 1)
    chain.step(leader_events.NodeUpdated(FOLLOWER, 1, is_alive=False), NOW)
    assert next_check_ms(chain, NOW) == NOW
    chain.step(SegmentEventReceived(0, leader_events.IsrCommitted((LEADER,), 1)), NOW)
    assert next_check_ms(chain, NOW) == NOW + POLICY.segment_ms


def test_a_proposal_of_unknown_outcome_is_looked_at_until_it_is_decided() -> None:
    chain = a_chain()
    append(chain)
    fetch(chain, 1)
    proposal = leader_events.ProposeIsr((LEADER,), 0)
    effects = chain.step(leader_events.NodeUpdated(FOLLOWER, 1, is_alive=False), NOW)
    assert [effect.proposal for effect in effects if hasattr(effect, "proposal")] == [proposal]
    fetch(chain, 1)
    chain.step(
        SegmentEventReceived(0, leader_events.ProposalReadBack(proposal, (LEADER, FOLLOWER), 0, was_refused=False)), NOW
    )
    assert next_check_ms(chain, NOW) == NOW
    chain.step(SegmentEventReceived(0, leader_events.IsrCommitted((LEADER, FOLLOWER), 1)), NOW)
    assert next_check_ms(chain, NOW) == NOW + POLICY.segment_ms


@pytest.mark.parametrize("cause", [StopCause.FAULT, StopCause.DEPOSED, StopCause.DELETED])
def test_a_shard_that_stopped_is_not_looked_at(cause: StopCause) -> None:
    chain = a_chain()
    append(chain)
    assert next_check_ms(chain, NOW) == NOW
    chain.step(ShardStopped(Stop("why", cause)), NOW)
    assert next_check_ms(chain, NOW) is None


def test_a_segment_that_is_overdue_is_looked_at_each_time() -> None:
    chain = a_chain((LEADER,))
    append(chain)
    assert next_check_ms(chain, NOW + POLICY.segment_ms + 1) == NOW + POLICY.segment_ms
