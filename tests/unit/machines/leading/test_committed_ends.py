"""What a shard knows to be committed from the metadata alone, while this node leads none of its segments."""

from __future__ import annotations

import uuid

from stratalog.machines.leading.chain_events import ShardRecovered
from stratalog.machines.leading.leader_events import RollPolicy
from stratalog.machines.leading.producer_table import ProducerTable
from stratalog.machines.leading.segment_leader import SegmentLeader
from stratalog.machines.leading.shard_chain import ShardChain
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.segment import Segment
from support.replicated_segment import replicated_segment

NODE, OTHER = 1, 2
SHARD = ShardKey(uuid.UUID(int=1), 0)
POLICY = RollPolicy(segment_bytes=100, segment_ms=60_000)


def key(epoch: int) -> SegmentKey:
    return SegmentKey(SHARD.topic_id, SHARD.shard, epoch, 10 * epoch)


def active(epoch: int) -> Segment:
    return replicated_segment(key(epoch), OTHER, (NODE, OTHER), (NODE, OTHER))


def ended(epoch: int) -> Segment:
    return replicated_segment(key(epoch), OTHER, (NODE, OTHER), (NODE, OTHER), end_offset=10 * epoch + 10)


def leader(epoch: int) -> SegmentLeader:
    return SegmentLeader(key(epoch), NODE, POLICY, ProducerTable(), isr=(NODE,), replicas=(NODE,))


def chain_at(epoch: int) -> ShardChain:
    return ShardChain.begin(SHARD, NODE, POLICY, active(epoch))


def test_all_before_the_newest_segment_is_committed() -> None:
    assert chain_at(3).high_watermark == 30
    assert ShardChain.begin(SHARD, NODE, POLICY, None).high_watermark == 0
    chain = chain_at(3)
    assert chain.learn_committed(active(5)) and chain.high_watermark == 50


def test_a_segment_that_another_leader_ended_is_committed_up_to_its_end() -> None:
    chain = chain_at(3)
    assert chain.learn_committed(ended(3))
    assert chain.high_watermark == 40


def test_what_is_known_to_be_committed_never_falls() -> None:
    chain = chain_at(3)
    chain.learn_committed(ended(3))
    assert not chain.learn_committed(active(3)), "an older list"
    chain.step(ShardRecovered((), None, high_watermark=0), 0)
    assert chain.high_watermark == 40, "a check of the disk takes nothing back"
    assert chain.after_resigning(POLICY, active(4)).high_watermark == 40


def test_a_leader_moves_its_own_high_watermark() -> None:
    chain = chain_at(3)
    chain.step(ShardRecovered((), leader(3), high_watermark=30), 0)
    assert not chain.learn_committed(active(5)) and chain.high_watermark == 30


def test_while_an_ended_segment_waits_for_its_seal_only_what_lies_before_the_newest_counts() -> None:
    chain = chain_at(3)
    chain.step(ShardRecovered((leader(3),), None, high_watermark=30), 0)
    assert not chain.learn_committed(ended(3)), "this node tells how much of it is committed"
    assert chain.learn_committed(active(4)) and chain.high_watermark == 40


def test_who_resigned_may_lead_again_behind_the_listed_segment() -> None:
    chain = chain_at(3)
    assert chain.led_since_epoch == 3
    assert chain.after_resigning(POLICY, active(4)).led_since_epoch == 5
    assert chain.after_resigning(POLICY, None).led_since_epoch == 0
