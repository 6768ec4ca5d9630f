"""The table of producers at a segment's end is a function of the log: every reader of the same batches makes the same
table."""

from __future__ import annotations

import uuid
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from stratalog.machines.leading.producer_table import KEPT_BATCHES, ProducerTable
from stratalog.machines.leading.sealed_producers import (
    TO_THE_END,
    Producers,
    as_seen,
    is_settled,
    is_whole,
    producers_before,
    sealed_table,
    without,
)
from stratalog.model.ids import SegmentKey
from stratalog.model.producers import BatchMemo, ProducerRule, ProducerSnapshot
from stratalog.model.segment import Segment, SegmentState
from support.replicated_segment import replicated_segment

DAY_MS = 86_400_000
RULE = ProducerRule(limit=1_000, expiration_ms=DAY_MS)

appends = st.lists(st.integers(1, 6), max_size=60)
"""Who wrote each batch of a log, one record each."""


def log_of(writers: list[int], base_offset: int = 0, *, limit: int = 1_000, now_ms: int = 7) -> Producers:
    """What batches of these say alone: the producer's number, its sequence the offset."""
    table = ProducerTable((), limit)
    for offset, producer_id in enumerate(writers, base_offset):
        table.record(producer_id, 0, offset, 1, offset, now_ms)
        table.trim()
    return table.snapshot()


def sealed(before: Producers, found: Producers, base: int, opened_ms: int = 0, rule: ProducerRule = RULE) -> Producers:
    return sealed_table(before, found, base_offset=base, opened_ms=opened_ms, rule=rule)


def known(table: Producers) -> dict[int, tuple[int, ...]]:
    """The offsets that are remembered of each."""
    return {entry.producer_id: tuple(memo.base_offset for memo in entry.batches) for entry in table}


@given(appends, appends)
def test_wherever_a_log_is_cut_its_end_says_the_same(first: list[int], second: list[int]) -> None:
    base = len(first)
    in_two = sealed(sealed((), log_of(first), 0), log_of(second, base), base)
    assert known(in_two) == known(log_of(first + second))


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(1, 3)), max_size=30),
    st.integers(0, 30),
)
def test_however_a_row_of_batches_is_cut_in_two(written: list[tuple[int, int, int]], at: int) -> None:
    """(producer, how much its epoch grows, records)."""
    whole, first, second = ProducerTable(), ProducerTable(), ProducerTable()
    epochs: dict[int, int] = {}
    sequences: dict[int, int] = {}
    offset = base = 0
    for number, (producer_id, grown, count) in enumerate(written):
        if grown == 2:
            epochs[producer_id] = epochs.get(producer_id, 0) + 1
            sequences[producer_id] = 0
        sequence = sequences.get(producer_id, 0)
        for table in (whole, first if number < at else second):
            table.record(producer_id, epochs.get(producer_id, 0), sequence, count, offset, number)
        sequences[producer_id] = sequence + count
        offset += count
        base = offset if number < at else base
    in_two = sealed(sealed((), first.snapshot(), 0), second.snapshot(), base)
    at_once = sealed((), whole.snapshot(), 0)
    assert [one._replace(last_append_ms=0) for one in in_two] == [one._replace(last_append_ms=0) for one in at_once]


@given(appends, appends, st.integers(1, 5))
def test_a_leaders_table_and_a_followers_give_the_same(first: list[int], second: list[int], limit: int) -> None:
    """The leader's has what came before in it, and other times; what both read back of this segment is one."""
    rule, base = ProducerRule(limit, DAY_MS), len(first)
    before = sealed((), log_of(first, limit=limit), 0, rule=rule)
    own = log_of(second, base, limit=limit, now_ms=99)
    reopened = ProducerTable((*own, *(one for one in before if one.producer_id not in {o.producer_id for o in own})))
    assert sealed(before, own, base, rule=rule) == sealed(before, reopened.snapshot(), base, rule=rule)
    assert len(sealed(before, own, base, rule=rule)) <= limit


def test_the_last_writers_are_kept_when_there_are_too_many() -> None:
    table = sealed(log_of([1, 2, 3]), log_of([4, 2], 3), 3, rule=ProducerRule(3, DAY_MS))
    assert known(table) == {2: (1, 4), 3: (2,), 4: (3,)}


def test_a_producer_that_was_silent_for_longer_than_a_day_of_segments_is_forgotten() -> None:
    first = sealed((), log_of([1, 2]), 0, opened_ms=0)
    assert {entry.last_append_ms for entry in first} == {TO_THE_END}
    second = sealed(first, log_of([2], 2), 2, opened_ms=10)
    assert [entry.last_append_ms for entry in second] == [10, TO_THE_END], "1 wrote before the second one opened"
    third = sealed(second, log_of([3], 3), 3, opened_ms=10 + DAY_MS)
    assert list(known(third)) == [1, 2, 3]
    fourth = sealed(third, log_of([3], 4), 4, opened_ms=11 + DAY_MS)
    assert list(known(fourth)) == [2, 3]


def test_a_later_epoch_of_a_producer_begins_again() -> None:
    before = (ProducerSnapshot(1, 3, 5, (BatchMemo(0, 0, 0, 5),)),)
    found = (ProducerSnapshot(1, 4, 5, (BatchMemo(0, 0, 1, 5),)),)
    (entry,) = sealed(before, found, 1)
    assert (entry.producer_epoch, len(entry.batches)) == (4, 1)


def test_five_batches_are_kept_over_the_border_of_two_segments() -> None:
    table = sealed(log_of([1] * 4), log_of([1] * 3, 4), 4)
    assert known(table) == {1: (2, 3, 4, 5, 6)} and len(table[0].batches) == KEPT_BATCHES


def test_the_leader_that_continues_behind_a_segment_counts_those_as_seen_that_wrote_in_it() -> None:
    table = sealed(sealed((), log_of([1]), 0), log_of([2], 1), 1, opened_ms=10)
    assert [entry.last_append_ms for entry in as_seen(table, 500)] == [10, 500]


def test_what_a_leader_knew_before_its_segment_replaces_a_table_that_is_gone() -> None:
    assert known(without(log_of([1, 2, 1, 3]), 2)) == {1: (0,), 2: (1,)}


# The table at a segment's base ----------------------------------------------------------------------------------------
def segment(epoch: int, *, is_sealed: bool = False, fence: int = 0) -> Segment:
    """Ten offsets long."""
    key = SegmentKey(uuid.UUID(int=1), 0, epoch, 10 * epoch)
    holders = (1,) if is_sealed else None
    return replicated_segment(key, 1, (1, 2), (1, 2), fence=fence, end_offset=10 * epoch + 10, holders=holders)


def before(
    segments: list[Segment],
    epoch: int,
    *,
    at_seal: dict[int, Producers] | None = None,
    in_copy: dict[int, Producers] | None = None,
) -> Producers | None:
    sealed_tables, copies = at_seal or {}, in_copy or {}
    return producers_before(
        segments, epoch, lambda one: sealed_tables.get(one.epoch), lambda one: copies.get(one.epoch), RULE
    )


def test_without_an_earlier_segment_there_are_no_producers() -> None:
    assert before([segment(3)], 3) == ()
    assert before([segment(3), segment(4)], 3) == (), "what comes behind it says nothing"


def test_the_newest_sealed_table_is_continued_by_the_copies_behind_it() -> None:
    segments = [segment(0, is_sealed=True), segment(1, is_sealed=True), segment(2), segment(3)]
    table = sealed((), log_of([7], 10), 10)
    found = before(segments, 3, at_seal={1: table}, in_copy={2: log_of([7, 8], 20)})
    assert found is not None and known(found) == {7: (10, 20), 8: (21,)}, "the table of epoch 0 is not asked for"


def test_a_table_or_a_copy_that_is_not_here_leaves_the_producers_unknown() -> None:
    segments = [segment(0, is_sealed=True), segment(1), segment(2)]
    assert before(segments, 2, in_copy={1: log_of([7], 10)}) is None
    assert before(segments, 2, at_seal={0: ()}) is None
    assert before(segments, 2, at_seal={0: ()}, in_copy={1: ()}) == ()


def test_an_unknown_table_of_a_deleted_segment_is_not_mistaken_for_an_empty_one() -> None:
    """A retry of a batch in it would be appended a second time."""
    deleted = replace(segment(0, is_sealed=True), state=SegmentState.DELETED)
    assert before([deleted, segment(1)], 1) is None


def test_the_producers_are_unknown_until_each_recovery_before_is_sealed() -> None:
    recovered = segment(0, fence=1)
    assert not is_settled([recovered]) and is_settled([segment(0, is_sealed=True, fence=1)])
    assert before([recovered, segment(1)], 1, in_copy={0: log_of([7])}) is None
    assert before([segment(0), segment(1, fence=2)], 1, in_copy={0: log_of([7])}) is not None, "it comes behind"


def test_only_a_copy_that_ends_where_its_segment_ends_is_whole() -> None:
    ended = segment(1)
    assert is_whole(ended, 20)
    assert not is_whole(ended, 19)
    assert not is_whole(ended, 21), "it has batches that were never acknowledged"
    assert not is_whole(replace(ended, state=SegmentState.ACTIVE, end_offset=None), 20), "no end is named yet"
