"""What is due, by a table of facts."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from stratalog.machines.tiering.orphans import ListedObject, OrphanRules, SegmentFacts, Verdict, classify_object
from stratalog.machines.tiering.retention import (
    RetentionLimits,
    disk_pressure,
    expired,
    is_active_next,
    local_copies_to_free,
)
from stratalog.machines.tiering.service_gate import ServiceGate
from stratalog.model.ids import SegmentKey
from stratalog.model.producers import NO_PRODUCERS
from stratalog.model.segment import RemoteCopy, RemoteState, SealRecord, Segment, SegmentState, TimesKnown

TOPIC = UUID(int=3)
UNLIMITED = RetentionLimits(-1, -1, -1, -1, may_read_cold=True)


def _sealed(base: int, max_timestamp_ms: int, size: int = 100, sealed_ms: int = 0, complete: bool = True) -> Segment:
    key = SegmentKey(TOPIC, 0, base, base)
    times = max_timestamp_ms, max_timestamp_ms
    seal = SealRecord(base, base, base + 1, *times, size, b"d", NO_PRODUCERS, (1,), sealed_ms, TimesKnown.ALL)
    remote = RemoteCopy(RemoteState.COMPLETE if complete else RemoteState.PARTIAL)
    return Segment(key, SegmentState.SEALED, None, (1,), (1,), 0, 0, base + 1, seal, (1,), remote)


def _active(base: int) -> Segment:
    return Segment(SegmentKey(TOPIC, 0, base, base), SegmentState.ACTIVE, 1, (1,), (1,), 0, 0)


def test_only_whole_old_heads_expire() -> None:
    segments = [_sealed(0, 100), _sealed(1, 5_000), _sealed(2, 100), _active(3)]
    move = expired(segments, 0, replace(UNLIMITED, retention_ms=1_000), 2_000)
    assert move is not None and move.offset == 1, "the third is old too, but stands behind a young one"


def test_a_segment_that_is_being_sealed_stops_expiry() -> None:
    sealing = replace(_active(0), state=SegmentState.SEALING, end_offset=1)
    assert expired([sealing, _sealed(1, 0), _active(2)], 0, replace(UNLIMITED, retention_ms=0), 10**9) is None


def test_expiry_by_bytes_counts_the_active_segment_and_leaves_at_least_the_limit() -> None:
    segments = [_sealed(0, 0), _sealed(1, 0), _sealed(2, 0), _active(3)]
    limits = replace(UNLIMITED, retention_bytes=200)
    assert expired(segments, 50, limits, 0) is not None
    move = expired(segments, 50, limits, 0)
    assert move is not None and move.offset == 1
    assert expired(segments[1:], 50, limits, 0) is None


@pytest.mark.fault("segment-records-timestamps-empty")
@pytest.mark.parametrize(("now_ms", "is_due"), [(1_000, False), (1_001, True)])
def test_f83_an_unset_time_counts_from_the_seal(now_ms: int, is_due: bool) -> None:
    """F83."""
    move = expired([_sealed(0, -1, sealed_ms=0), _active(1)], 0, replace(UNLIMITED, retention_ms=1_000), now_ms)
    assert (move is not None) == is_due


@pytest.mark.fault("older-release-sealed-segment")
@pytest.mark.parametrize("times_known", [TimesKnown.CLAIMED, TimesKnown.PARTLY])
@pytest.mark.parametrize(("claimed_ms", "expires_ms"), [(-1, 6_001), (100, 6_001), (9_000, 10_001)])
def test_a_segment_whose_times_are_not_those_of_its_records_is_not_older_than_its_seal(
    times_known: TimesKnown, claimed_ms: int, expires_ms: int
) -> None:
    """As an older release sealed it, or with a batch that cannot be decompressed: a record may be later than its
    header."""
    segment = _sealed(0, claimed_ms, sealed_ms=5_000)
    assert segment.seal is not None
    segments = [replace(segment, seal=replace(segment.seal, times_known=times_known)), _active(1)]
    limits = replace(UNLIMITED, retention_ms=1_000)
    assert expired(segments, 0, limits, expires_ms - 1) is None
    assert expired(segments, 0, limits, expires_ms) is not None


@pytest.mark.fault("record-future-segment-complete")
def test_a_record_from_the_future_keeps_its_segment_and_not_its_local_copy() -> None:
    """The copy in the bucket is enough; the log keeps the record, as Kafka does."""
    segments = [_sealed(0, 10**15, sealed_ms=5_000), _active(1)]
    limits = replace(UNLIMITED, retention_ms=1_000, local_retention_ms=1_000)
    assert expired(segments, 0, limits, 10**9) is None
    assert local_copies_to_free(segments, lambda _: True, 0, limits, 6_000) == []
    assert len(local_copies_to_free(segments, lambda _: True, 0, limits, 6_001)) == 1


@pytest.mark.parametrize(
    ("segments", "log_start_offset", "is_next"),
    [
        ([_active(5)], 5, True),
        ([_active(5)], 7, True),
        ([_sealed(4, 0, sealed_ms=0), _active(5)], 4, True),
        ([_sealed(4, 10**9), _active(5)], 4, False),
        ([replace(_active(5), state=SegmentState.SEALING)], 5, False),
    ],
)
def test_the_active_segment_ends_only_behind_all_others(
    segments: list[Segment], log_start_offset: int, is_next: bool
) -> None:
    move = expired(segments, 0, replace(UNLIMITED, retention_ms=1_000), 10_000)
    assert is_active_next(segments, log_start_offset, move) is is_next


def test_local_copies_go_oldest_first_and_only_complete_ones() -> None:
    segments = [_sealed(0, 0, complete=False), _sealed(1, 0), _sealed(2, 0), _sealed(3, 0), _active(4)]
    limits = replace(UNLIMITED, local_retention_bytes=250)
    freed = local_copies_to_free(segments, lambda _: True, 0, limits, 0)
    assert [freeing.key.base_offset for freeing in freed] == [1]
    freed = local_copies_to_free(segments, lambda _: True, 200, limits, 0)
    assert [freeing.key.base_offset for freeing in freed] == [1, 2, 3]


def test_nothing_is_freed_without_limits_or_with_cold_reads_off() -> None:
    segments = [_sealed(0, 0), _active(1)]
    assert local_copies_to_free(segments, lambda _: True, 0, UNLIMITED, 10**15) == []
    off = replace(UNLIMITED, local_retention_ms=0, may_read_cold=False)
    assert local_copies_to_free(segments, lambda _: True, 0, off, 10**15) == []


def test_pressure_begins_above_the_limit_and_ends_with_room_to_spare() -> None:
    assert disk_pressure(10**12, -1, 0, None) is None
    assert disk_pressure(1_000, 1_000, 0, None) is None
    pressed = disk_pressure(1_001, 1_000, 7, None)
    assert pressed is not None
    assert disk_pressure(960, 1_000, 7, pressed) is not None, "it does not flutter"
    assert disk_pressure(950, 1_000, 7, pressed) is None


# Orphans --------------------------------------------------------------------------------------------------------------
COMPLETE = _sealed(0, 0)
PARTIAL = replace(COMPLETE, remote=RemoteCopy(RemoteState.PARTIAL, 7))
LIVING = SegmentFacts(COMPLETE, frozenset({"chosen"}), is_deleted=False, log_start_offset=0, is_purged=False)
GROWING = replace(LIVING, segment=PARTIAL)
MERGED = replace(LIVING, segment=replace(COMPLETE, remote=replace(COMPLETE.remote, replaced_ms=1)))
UNKNOWN = SegmentFacts(None, frozenset(), is_deleted=False, log_start_offset=None, is_purged=False)
OLD = ListedObject(
    "attempt", SegmentKey(TOPIC, 0, 0, 0), node_id=1, lock_epoch=2, modified_ms=0, is_chunk=True, to_offset=7
)


@pytest.mark.parametrize(
    ("listed", "facts", "verdict"),
    [
        (replace(OLD, key="chosen"), LIVING, Verdict.REFERENCED),
        (OLD, LIVING, Verdict.ORPHAN),
        (replace(OLD, modified_ms=1), LIVING, Verdict.WAIT),
        (OLD, MERGED, Verdict.WAIT),
        (
            OLD,
            replace(LIVING, segment=replace(COMPLETE, remote=replace(COMPLETE.remote, replaced_ms=0))),
            Verdict.ORPHAN,
        ),
        (OLD, GROWING, Verdict.ORPHAN),
        (replace(OLD, to_offset=8), GROWING, Verdict.WAIT),
        (replace(OLD, is_chunk=False), GROWING, Verdict.WAIT),
        (replace(OLD, lock_epoch=3), LIVING, Verdict.UNEXPLAINED),
        (replace(OLD, lock_epoch=3, modified_ms=1), LIVING, Verdict.WAIT),
        (replace(OLD, lock_epoch=3), replace(UNKNOWN, is_purged=True), Verdict.UNEXPLAINED),
        (replace(OLD, node_id=9), LIVING, Verdict.WAIT),
        (replace(OLD, key="in flight"), LIVING, Verdict.WAIT),
        (OLD, replace(UNKNOWN, is_deleted=True), Verdict.WAIT),
        (OLD, UNKNOWN, Verdict.UNEXPLAINED),
        (OLD, replace(UNKNOWN, log_start_offset=0), Verdict.UNEXPLAINED),
        (OLD, replace(UNKNOWN, log_start_offset=1), Verdict.ORPHAN),
        (OLD, replace(UNKNOWN, is_purged=True), Verdict.ORPHAN),
    ],
)
def test_what_is_not_positively_an_orphan_stays(listed: ListedObject, facts: SegmentFacts, verdict: Verdict) -> None:
    rules = OrphanRules({1: 2}, grace_ms=100)
    assert classify_object(listed, facts, rules, lambda key: key == "in flight", 100) is verdict


# The gate -------------------------------------------------------------------------------------------------------------
def test_refusals_that_run_together_count_once() -> None:
    gate = ServiceGate(8, 100, 10_000)
    assert gate.refused(0, 1.0)
    for _ in range(7):
        assert not gate.refused(0, 1.0)
    assert (gate.open_at_ms, gate.window) == (100, 4)


def test_the_pause_doubles_up_to_its_cap_and_success_ends_it() -> None:
    gate = ServiceGate(8, 100, 1_000)
    pauses = []
    now_ms = 0
    for _ in range(6):
        gate.refused(now_ms, 1.0)
        pauses.append(gate.open_at_ms - now_ms)
        now_ms = gate.open_at_ms
    assert pauses == [100, 200, 400, 800, 1_000, 1_000]
    assert gate.window == 1
    assert gate.answered() == 0
    assert gate.may_begin(0, now_ms) and gate.window == 2


def test_doubts_are_tolerated_a_few_times() -> None:
    gate = ServiceGate(4, 100, 1_000)
    assert [gate.doubted(0, 0.0, 3) for _ in range(3)] == [False, False, True]
    assert gate.open_at_ms == 200, "the doubts count as failures in a row"
