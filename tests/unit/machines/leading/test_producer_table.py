"""Idempotent producers: the last five batches, sequence wrap, replay and restore."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratalog.machines.leading.producer_table import KEPT_BATCHES, Duplicate, ProducerTable, SequenceFault
from stratalog.model.batch import BatchHeader

LAST = 2**31 - 1


def test_the_sequence_after_the_largest_is_zero() -> None:
    table = ProducerTable()
    table.record(1, 0, LAST - 1, 2, 0, 0)
    assert table.check_sequence(1, 0, 0, 1) is None
    assert table.check_sequence(1, 0, LAST - 1, 2) == Duplicate(0, 2)


def test_a_batch_that_spans_the_wrap_is_followed_correctly() -> None:
    table = ProducerTable()
    table.record(1, 0, LAST, 3, 0, 0)
    assert table.check_sequence(1, 0, 2, 1) is None
    assert table.check_sequence(1, 0, LAST, 3) == Duplicate(0, 3)


def test_only_the_last_five_batches_are_answered_with_their_offsets() -> None:
    table = ProducerTable()
    for number in range(KEPT_BATCHES + 2):
        table.record(1, 0, number, 1, 100 + number, 0)
    assert table.check_sequence(1, 0, 2, 1) == Duplicate(102, 103)
    assert table.check_sequence(1, 0, 1, 1) is SequenceFault.DUPLICATE_FORGOTTEN
    assert table.check_sequence(1, 0, KEPT_BATCHES + 3, 1) is SequenceFault.OUT_OF_ORDER


def test_what_comes_before_all_that_a_producer_ever_appended_is_out_of_order() -> None:
    table = ProducerTable()
    for number in range(1, KEPT_BATCHES):
        table.record(1, 0, number, 1, 100 + number, 0)
    assert table.check_sequence(1, 0, 0, 1) is SequenceFault.OUT_OF_ORDER, "clients take a duplicate for success"


def test_an_expired_producer_may_begin_anywhere() -> None:
    table = ProducerTable()
    table.record(1, 0, 0, 1, 0, 1_000)
    assert table.expire(now_ms=2_000, expiration_ms=1_000) == 0
    assert table.expire(now_ms=2_001, expiration_ms=1_000) == 1
    assert table.check_sequence(1, 0, 77, 1) is None


def test_above_its_limit_the_one_not_seen_for_longest_is_forgotten() -> None:
    table = ProducerTable(limit=3)
    for now_ms, producer in enumerate([1, 2, 3, 1, 4]):
        table.record(producer, 0, 5, 1, now_ms, now_ms)
    assert [entry.producer_id for entry in table.snapshot()] == [1, 3, 4]
    assert table.pop_dropped() == 1
    assert table.pop_dropped() == 0, "each is counted once"
    again = ProducerTable(table.snapshot(), limit=2)
    assert [entry.producer_id for entry in again.snapshot()] == [1, 4], "the order outlives a snapshot"
    assert again.check_sequence(2, 0, 77, 1) is None, "forgotten: it may begin anywhere"


@st.composite
def logs(draw: st.DrawFn) -> list[BatchHeader]:
    headers, offset, sequences = [], 0, {}
    for _ in range(draw(st.integers(0, 30))):
        producer, count = draw(st.integers(-1, 3)), draw(st.integers(1, 5))
        epoch, sequence = (-1, -1) if producer < 0 else (0, sequences.get(producer, 0))
        sequences[producer] = sequence + count
        headers.append(BatchHeader(offset, 61, 0, 0, 0, count - 1, offset, offset, producer, epoch, sequence, count))
        offset += count
    return headers


@given(logs(), st.integers(0, 30))
def test_replaying_a_log_in_two_parts_gives_the_same_table(log: list[BatchHeader], cut: int) -> None:
    whole = ProducerTable()
    for header in log:
        whole.replay(header, header.base_offset)
    first = ProducerTable()
    for header in log[:cut]:
        first.replay(header, header.base_offset)
    second = ProducerTable(first.snapshot())
    for header in log[cut:]:
        second.replay(header, header.base_offset)
    assert second.snapshot() == whole.snapshot()


@given(logs())
def test_restoring_undoes_a_record(log: list[BatchHeader]) -> None:
    table = ProducerTable()
    for header in log:
        before = table.snapshot()
        if header.producer_id >= 0:
            old = table.record(header.producer_id, 0, header.base_sequence, header.record_count, header.base_offset, 0)
            table.restore(header.producer_id, old)
        assert table.snapshot() == before
        table.replay(header, header.base_offset)
