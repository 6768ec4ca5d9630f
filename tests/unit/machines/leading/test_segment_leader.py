"""The leader of a segment: offsets, acknowledgement, rolls, ISR, fences. A test per rule of the design, section 3."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from stratalog.machines.leading import leader_events
from stratalog.machines.leading.producer_table import ProducerTable, SequenceFault
from stratalog.machines.leading.segment_leader import SegmentLeader
from stratalog.model.ids import SegmentKey

KEY = SegmentKey(uuid.UUID(int=1), 0, 3, 100)
POLICY = leader_events.RollPolicy(segment_bytes=1_000, segment_ms=60_000)


def a_leader(
    *,
    isr: tuple[int, ...] = (1,),
    replicas: tuple[int, ...] | None = None,
    policy: leader_events.RollPolicy = POLICY,
    is_confirmed: bool = True,
) -> SegmentLeader:
    return SegmentLeader(KEY, 1, policy, ProducerTable(), isr=isr, replicas=replicas, is_confirmed=is_confirmed)


def a_batch(
    count: int = 1, size: int = 100, *, acks: int = -1, producer: tuple[int, int, int] = (-1, -1, -1)
) -> leader_events.OfferedBatch:
    return leader_events.OfferedBatch(b"", size, count, 1_000, *producer, acks, None, None)


def only(effects: list[leader_events.LeaderEffect], kind: type) -> Any:
    found = [effect for effect in effects if isinstance(effect, kind)]
    assert len(found) == 1, f"expected one {kind.__name__} in {effects}"
    return found[0]


def appended(leader: SegmentLeader, *batches: leader_events.OfferedBatch) -> list[leader_events.LeaderEffect]:
    effects = leader.step(leader_events.BatchesReceived(list(batches)), now_ms=0)
    if any(isinstance(effect, leader_events.PersistBatches) for effect in effects):
        effects += leader.step(leader_events.BatchesPersisted(leader.end_offset), now_ms=0)
    leader.check_invariants()
    return effects


def test_batches_get_contiguous_offsets_in_the_order_they_came() -> None:
    leader = a_leader()
    effects = leader.step(leader_events.BatchesReceived([a_batch(3), a_batch(1), a_batch(5)]), now_ms=0)
    persist = only(effects, leader_events.PersistBatches)
    assert [(b.base_offset, b.end_offset) for b in persist.batches] == [(100, 103), (103, 104), (104, 109)]
    assert persist.end_offset == leader.end_offset == 109


def test_a_lone_leader_commits_what_it_persisted() -> None:
    leader = a_leader()
    assert only(appended(leader, a_batch(2)), leader_events.Acknowledge) == leader_events.Acknowledge(102, 102)


def test_nothing_is_acknowledged_before_it_is_durable() -> None:
    leader = a_leader()
    leader.step(leader_events.BatchesReceived([a_batch(2)]), now_ms=0)
    assert leader.step(leader_events.BatchesWritten(), now_ms=0) == []
    assert leader.high_watermark == 100
    assert leader.step(leader_events.BatchesPersisted(102), now_ms=0) == [leader_events.Acknowledge(102, 102)]


def test_nothing_is_acknowledged_before_the_opening_is_confirmed() -> None:
    leader = a_leader(is_confirmed=False)
    assert only_acks(appended(leader, a_batch(2))) == []
    assert leader.step(leader_events.OpeningConfirmed(), now_ms=0) == [leader_events.Acknowledge(102, 102)]


@pytest.mark.fault("roll-answer-behind-death")
def test_the_answer_to_a_roll_does_not_take_back_what_the_record_said_since() -> None:
    """A node died right after the roll: its record, without that node in the ISR, arrives before the answer does."""
    leader = a_leader(isr=(1, 2, 3), is_confirmed=False)
    opened = leader_events.SegmentRecord(1, (1, 2, 3), (1, 2, 3), 0)
    leader.step(leader_events.NodeUpdated(3, 1, is_alive=False, can_write=True), now_ms=0)
    leader.step(leader_events.RecordReceived(opened), now_ms=0)
    leader.step(leader_events.RecordReceived(replace(opened, isr=(1, 2), isr_version=1)), now_ms=0)
    leader.step(leader_events.OpeningConfirmed(opened), now_ms=0)
    assert (leader.isr, leader.isr_version) == ((1, 2), 1)
    appended(leader, a_batch(2))
    (acknowledged,) = only_acks(leader.step(leader_events.FollowerFetched(2, 102), now_ms=0))
    assert acknowledged == leader_events.Acknowledge(102, 102), "the dead node is not waited for"


def only_acks(effects: list[leader_events.LeaderEffect]) -> list[leader_events.LeaderEffect]:
    return [effect for effect in effects if isinstance(effect, leader_events.Acknowledge)]


def test_a_failed_write_leaves_no_trace() -> None:
    leader = a_leader()
    appended(leader, a_batch(2, producer=(7, 0, 0)))
    before = (leader.describe(), leader.producers.snapshot())
    leader.step(
        leader_events.BatchesReceived([a_batch(3, producer=(7, 0, 2)), a_batch(1, producer=(8, 0, 0))]), now_ms=0
    )
    leader.step(leader_events.PersistFailed(), now_ms=0)
    assert (leader.describe(), leader.producers.snapshot()) == before


def test_a_write_that_failed_takes_its_roll_back() -> None:
    leader = a_leader()
    appended(leader, a_batch(1, 900))
    effects = leader.step(leader_events.BatchesReceived([a_batch(1, 50), a_batch(1, 500)]), now_ms=0)
    assert only(effects, leader_events.RollSegment).end_offset == 102
    leader.step(leader_events.PersistFailed(), now_ms=0)
    assert leader.end_offset == 101
    assert only(appended(leader, a_batch(1, 50)), leader_events.PersistBatches).end_offset == 102


def test_a_full_segment_rolls_and_hands_the_rest_on() -> None:
    leader = a_leader()
    late = a_batch(1, 600)
    effects = leader.step(leader_events.BatchesReceived([a_batch(4, 600), late, a_batch(1, 1)]), now_ms=0)
    assert [type(effect) for effect in effects] == [leader_events.PersistBatches, leader_events.RollSegment], (
        "persist first, then roll"
    )
    roll = only(effects, leader_events.RollSegment)
    assert roll.end_offset == 104
    assert roll.remaining[0] is late and len(roll.remaining) == 2


def test_a_batch_larger_than_a_segment_is_taken_by_an_empty_one() -> None:
    assert only(appended(a_leader(), a_batch(1, 5_000)), leader_events.PersistBatches).size_bytes == 5_000


def test_an_old_segment_rolls_by_the_clock_alone() -> None:
    leader = a_leader()
    appended(leader, a_batch(1))
    assert leader.step(leader_events.TimePassed(), now_ms=59_999) == []
    assert leader.step(leader_events.TimePassed(), now_ms=60_000) == [leader_events.RollSegment(101)]
    assert leader.step(leader_events.TimePassed(), now_ms=60_001) == [], "a second trigger is a no-op"


def test_an_empty_segment_never_rolls() -> None:
    leader = a_leader()
    assert leader.step(leader_events.TimePassed(), now_ms=10**9) == []
    assert leader.step(leader_events.RollRequested(), now_ms=0) == []


def test_an_ended_segment_takes_no_more() -> None:
    leader = a_leader()
    appended(leader, a_batch(1))
    assert leader.step(leader_events.RollRequested(), now_ms=0) == [leader_events.RollSegment(101)]
    assert isinstance(leader.step(leader_events.BatchesReceived([a_batch()]), now_ms=0)[0], leader_events.RefuseBatch)


def test_the_high_watermark_is_the_lowest_end_in_the_isr() -> None:
    leader = a_leader(isr=(1, 2, 3))
    assert only(appended(leader, a_batch(3), a_batch(2)), leader_events.Acknowledge) == leader_events.Acknowledge(
        105, 100
    )
    assert leader.step(leader_events.FollowerFetched(2, 105), now_ms=0) == [leader_events.Acknowledge(105, 100)]
    assert leader.step(leader_events.FollowerFetched(3, 103), now_ms=0) == [leader_events.Acknowledge(105, 103)]
    assert leader.step(leader_events.FollowerFetched(3, 105), now_ms=0) == [leader_events.Acknowledge(105, 105)]


@pytest.mark.fault("follower-holds-batches-turn")
def test_the_high_watermark_never_lies_inside_a_batch() -> None:
    leader = a_leader(isr=(1, 2))
    appended(leader, a_batch(3), a_batch(2), a_batch(4))
    for offset, mark in ((102, 100), (104, 103), (105, 105), (108, 105), (109, 109)):
        leader.step(leader_events.FollowerFetched(2, offset), now_ms=0)
        assert leader.high_watermark == mark
        leader.check_invariants()


def test_a_proposed_smaller_isr_does_not_move_the_mark_before_meta_agreed() -> None:
    leader = a_leader(isr=(1, 2))
    appended(leader, a_batch(5))
    assert (
        leader.step(leader_events.LagChecked(0), now_ms=0)
        == leader.step(leader_events.LagChecked(POLICY.lag_ms - 1), now_ms=0)
        == []
    )
    assert leader.step(leader_events.LagChecked(POLICY.lag_ms), now_ms=0) == [leader_events.ProposeIsr((1,), 0)]
    assert leader.high_watermark == 100
    assert leader.step(leader_events.IsrCommitted((1,), 1), now_ms=0) == [leader_events.Acknowledge(105, 105)]


def test_a_caught_up_follower_is_proposed_for_the_isr() -> None:
    leader = a_leader(replicas=(1, 2, 3))
    appended(leader, a_batch(5))
    effects = leader.step(leader_events.FollowerFetched(2, 105, life_epoch=7), now_ms=0)
    assert only(effects, leader_events.ProposeIsr) == leader_events.ProposeIsr((1, 2), 0)
    assert leader.step(leader_events.FollowerFetched(3, 105), now_ms=0) == [leader_events.Acknowledge(105, 105)], (
        "one proposal at a time"
    )


def test_a_joining_follower_holds_the_mark_from_the_proposal_on() -> None:
    leader = a_leader(replicas=(1, 2))
    appended(leader, a_batch(5))
    leader.step(leader_events.FollowerFetched(2, 105), now_ms=0)
    assert only(appended(leader, a_batch(5)), leader_events.Acknowledge) == leader_events.Acknowledge(110, 105), (
        "meta may count it already"
    )


def test_acks_all_is_refused_below_min_insync_replicas_and_acks_one_is_not() -> None:
    leader = a_leader(policy=leader_events.RollPolicy(1_000, 60_000, min_insync_replicas=2))
    strict, lax = a_batch(), a_batch(acks=1)
    effects = leader.step(leader_events.BatchesReceived([strict, lax]), now_ms=0)
    assert only(effects, leader_events.RefuseBatch).batch is strict
    assert only(effects, leader_events.PersistBatches).batches == [lax]


@pytest.mark.parametrize(
    ("replicas", "isr", "is_taken"),
    [((1,), (1,), True), ((1, 2), (1,), True), ((1, 2, 3), (1, 2), True), ((1, 2, 3), (1,), False)],
)
def test_where_one_replica_may_always_be_away_the_minimum_follows_the_replicas(
    replicas: tuple[int, ...], isr: tuple[int, ...], is_taken: bool
) -> None:
    policy = leader_events.RollPolicy(1_000, 60_000, min_insync_replicas=2, spares_one=True)
    leader = a_leader(policy=policy, isr=isr, replicas=replicas)
    effects = leader.step(leader_events.BatchesReceived([a_batch()]), now_ms=0)
    assert isinstance(effects[0], leader_events.PersistBatches if is_taken else leader_events.RefuseBatch)


def test_a_fenced_leader_cannot_acknowledge() -> None:
    leader = a_leader(isr=(1, 2))
    appended(leader, a_batch(5))
    assert leader.step(leader_events.FenceRaised(1), now_ms=0) == [leader_events.StopLeading()]
    assert leader.step(leader_events.FollowerFetched(2, 105), now_ms=0) == []
    assert isinstance(leader.step(leader_events.BatchesReceived([a_batch()]), now_ms=0)[0], leader_events.RefuseBatch)
    assert leader.high_watermark == 100


@pytest.mark.parametrize(
    ("producer", "expected"),
    [
        ((7, 0, 2), "append"),
        ((7, 0, 0), "repeat"),
        ((7, 0, 3), SequenceFault.OUT_OF_ORDER),
        ((7, 1, 0), "append"),
        ((7, 1, 5), SequenceFault.OUT_OF_ORDER),
        ((9, 4, 1_234), "append"),
    ],
)
def test_idempotence_follows_its_table(producer: tuple[int, int, int], expected: object) -> None:
    leader = a_leader()
    appended(leader, a_batch(2, producer=(7, 0, 0)))
    effects = appended(leader, a_batch(2, producer=producer))
    if expected == "append":
        assert only(effects, leader_events.PersistBatches).end_offset == 104
    elif expected == "repeat":
        repeat = only(effects, leader_events.AnswerDuplicate)
        assert (repeat.duplicate.base_offset, repeat.duplicate.end_offset) == (100, 102)
        assert leader.end_offset == 102
    else:
        assert only(effects, leader_events.RefuseBatch).why is expected


def test_a_lower_epoch_is_refused_as_stale() -> None:
    leader = a_leader()
    appended(leader, a_batch(1, producer=(7, 3, 0)))
    assert (
        only(appended(leader, a_batch(1, producer=(7, 2, 1))), leader_events.RefuseBatch).why
        is SequenceFault.STALE_EPOCH
    )


def test_a_repetition_in_the_same_turn_is_seen() -> None:
    leader = a_leader()
    effects = appended(leader, a_batch(2, producer=(7, 0, 0)), a_batch(2, producer=(7, 0, 0)))
    assert only(effects, leader_events.AnswerDuplicate).duplicate.base_offset == 100
    assert leader.end_offset == 102
