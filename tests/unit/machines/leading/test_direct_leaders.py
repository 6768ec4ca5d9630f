"""The leader of a Direct segment: what it acknowledges is in the object store (docs/direct-spec.md section 1)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratalog.machines.leading import leader_events
from stratalog.machines.leading.producer_table import ProducerTable
from stratalog.machines.leading.segment_leader import SegmentLeader
from support.leader_story import KEY, POLICY


def _leader(*, is_direct: bool = True, is_confirmed: bool = True, needed: int = 1) -> SegmentLeader:
    policy = leader_events.RollPolicy(1 << 20, POLICY.segment_ms, needed)
    return SegmentLeader(KEY, 1, policy, ProducerTable(), isr=(1,), is_confirmed=is_confirmed, is_direct=is_direct)


def _write(leader: SegmentLeader, *sizes: int) -> list[leader_events.LeaderEffect]:
    """One batch of each number of records, all in one turn."""
    offered = [leader_events.OfferedBatch(None, 10, size, -1, -1, -1, -1, -1, None, None) for size in sizes]
    (persist,) = leader.step(leader_events.BatchesReceived(offered), 0)
    assert isinstance(persist, leader_events.PersistBatches)
    effects = leader.step(leader_events.BatchesPersisted(persist.end_offset), 0)
    leader.check_invariants()
    return effects


def _record(stored_end: int, *, is_direct: bool = True, fence: int = 0) -> leader_events.SegmentRecord:
    leader = None if fence else 1
    return leader_events.SegmentRecord(leader, (1,), (1,), 0, fence, not fence, is_direct, stored_end)


def _hear(leader: SegmentLeader, record: leader_events.SegmentRecord) -> list[leader_events.LeaderEffect]:
    effects = leader.step(leader_events.RecordReceived(record), 0)
    leader.check_invariants()
    return effects


def test_what_is_written_is_acknowledged_once_the_object_store_has_it_whatever_acks_asks_for() -> None:
    leader = _leader()
    assert _write(leader, 3, 4) == [leader_events.Acknowledge(0, 0)]
    assert _hear(leader, _record(3)) == [leader_events.Acknowledge(3, 3)]
    assert _hear(leader, _record(7)) == [leader_events.Acknowledge(7, 7)]
    assert _hear(leader, _record(7)) == [], "no news"


def test_the_mark_stops_at_the_end_of_a_batch() -> None:
    leader = _leader()
    _write(leader, 3, 4)
    assert _hear(leader, _record(5)) == [leader_events.Acknowledge(3, 3)]


def test_a_record_that_comes_late_takes_nothing_back() -> None:
    leader = _leader()
    _write(leader, 3, 4)
    _hear(leader, _record(7))
    assert _hear(leader, _record(3)) == [] and leader.high_watermark == 7


def test_the_object_store_having_more_than_was_heard_to_be_written_acknowledges_what_is_written() -> None:
    leader = _leader()
    _write(leader, 3)
    _hear(leader, _record(10))
    assert leader.high_watermark == 3
    assert _write(leader, 2) == [leader_events.Acknowledge(5, 5)]


def test_after_a_fence_a_commit_acknowledges_nothing() -> None:
    leader = _leader()
    _write(leader, 3)
    assert _hear(leader, _record(0, fence=1)) == [leader_events.StopLeading()]
    assert _hear(leader, _record(3)) == [] and leader.high_watermark == 0


def test_before_its_opening_is_confirmed_nothing_is_acknowledged() -> None:
    leader = _leader(is_confirmed=False)
    assert _write(leader, 3) == []
    assert leader.step(leader_events.OpeningConfirmed(_record(0)), 0) == [leader_events.Acknowledge(0, 0)]
    assert _hear(leader, _record(3)) == [leader_events.Acknowledge(3, 3)]


def test_the_record_says_how_it_was_opened_whatever_was_prepared() -> None:
    leader = _leader(is_confirmed=False, is_direct=False)
    _write(leader, 3)
    leader.step(leader_events.OpeningConfirmed(_record(0)), 0)
    assert leader.is_direct and leader.high_watermark == 0
    other = _leader(is_confirmed=False)
    _write(other, 3)
    other.step(leader_events.OpeningConfirmed(_record(0, is_direct=False)), 0)
    assert not other.is_direct and other.high_watermark == 3
    other.check_invariants()


def test_the_minimum_of_replicas_in_sync_does_not_concern_it() -> None:
    assert not _leader(needed=2).lacks_replicas
    assert _leader(is_direct=False, needed=2).lacks_replicas


@given(
    st.lists(st.one_of(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 60)), max_size=30),
)
def test_the_mark_is_the_end_of_the_last_batch_that_the_object_store_has_whole(steps: list[list[int] | int]) -> None:
    leader, ends, stored = _leader(), [0], 0
    for step in steps:
        if isinstance(step, int):
            stored = max(stored, step)
            _hear(leader, _record(step))
        else:
            _write(leader, *step)
            for size in step:
                ends.append(ends[-1] + size)
        assert leader.high_watermark == max(end for end in ends if end <= stored)
