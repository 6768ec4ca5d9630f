"""The times of a batch's records, found without decoding them, are those that decoding finds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratalog.formats.batches.compression import Codec
from stratalog.formats.batches.record_batch import parse_header
from stratalog.formats.batches.record_times import NO_TIMES, Opened, times_of
from stratalog.formats.batches.records import NEXT_OFFSET, Record, decode_records, encode_batch, encode_empty_batches
from stratalog.model.errors import Corrupt
from support.hostile_batches import GARBAGE, claiming, with_header_times

times = st.one_of(st.integers(-1, 10), st.integers(-1, 2**62))
values = st.one_of(st.none(), st.binary(max_size=40), st.integers(0, 40_000).map(bytes))
records = st.lists(st.tuples(times, values), min_size=1, max_size=40)


@given(records, st.sampled_from(Codec), st.integers(-1, 2**62))
def test_the_times_are_those_of_the_records_whatever_the_header_claims(
    found: list[tuple[int, bytes | None]], codec: Codec, claimed_ms: int
) -> None:
    batch = encode_batch([Record(NEXT_OFFSET, time_ms, None, value) for time_ms, value in found], compression=codec)
    lying = with_header_times(batch, max_ms=claimed_ms)
    told = times_of(lying, parse_header(lying))
    stamps = [time_ms for time_ms, _ in found]
    assert told == (min(stamps), max(stamps), Opened.ALL)


@given(records, st.data())
def test_damaged_records_are_garbage_or_what_decoding_makes_of_them(
    found: list[tuple[int, bytes | None]], draw: st.DataObject
) -> None:
    """Never an exception, and never other times than those of the records that a reader finds."""
    batch = bytearray(encode_batch([Record(NEXT_OFFSET, time_ms, None, value) for time_ms, value in found]))
    for _ in range(draw.draw(st.integers(1, 4))):
        batch[draw.draw(st.integers(61, len(batch) - 1))] = draw.draw(st.integers(0, 255))
    told = times_of(bytes(batch), parse_header(batch))
    try:
        stamps = [record.timestamp_ms for record in decode_records(bytes(batch))]
    except Corrupt:
        return
    if max(map(abs, stamps)) < 2**63:
        assert told == (max(min(stamps), -1), max(max(stamps), -1), Opened.ALL)


def test_a_batch_without_records_and_one_of_garbage_have_no_times() -> None:
    empty = encode_empty_batches(0, 5, epoch=0)
    assert times_of(empty, parse_header(empty)) == NO_TIMES
    for codec in Codec:
        garbage = claiming(GARBAGE, 3, 7, codec)
        assert times_of(garbage, parse_header(garbage)) == (-1, -1, Opened.GARBAGE)


def test_with_log_append_time_each_record_has_the_time_of_the_header() -> None:
    batch = encode_batch([Record(NEXT_OFFSET, 5, None, b"x")], is_log_append_time=True, max_timestamp_ms=99)
    assert times_of(batch, parse_header(batch)) == (99, 99, Opened.ALL)


def test_records_that_are_too_many_bytes_are_not_opened() -> None:
    batch = with_header_times(
        encode_batch([Record(NEXT_OFFSET, 5, None, bytes(3_000_000))], compression=Codec.ZSTD), max_ms=3
    )
    assert times_of(batch, parse_header(batch), max_bytes=1_000_000) == (3, 5, Opened.TOO_LARGE)
    assert times_of(batch, parse_header(batch)) == (5, 5, Opened.ALL)


def test_a_long_walk_pauses() -> None:
    pauses: list[int] = []
    batch = encode_batch([Record(NEXT_OFFSET, number, None, bytes(100)) for number in range(10_000)])
    assert times_of(batch, parse_header(batch), pause=lambda: pauses.append(1)) == (0, 9_999, Opened.ALL)
    assert len(pauses) >= 5
