"""The decoder of many records at once says what the one that goes record by record says, of good and of bad bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from crc32c import crc32c

from stratalog.formats.batches.offered_batch import CRC_FROM
from stratalog.formats.batches.records import Record, encode_batch
from stratalog.model.errors import Corrupt
from support.decoded_records import expected_rows, rows_of

TIMES = st.integers(0, 4_102_444_800_000)
BYTES = st.none() | st.binary(max_size=300)
HEADERS = st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=20)
RECORDS = st.lists(st.tuples(TIMES, BYTES, BYTES, HEADERS, st.integers(1, 9)), min_size=1, max_size=12)


@st.composite
def batch_of(draw: st.DrawFn, base_offset: int) -> tuple[bytes, int]:
    records, offset = [], base_offset
    for time_ms, key, value, headers, step in draw(RECORDS):
        records.append(Record(offset, time_ms, key, value, tuple(headers)))
        offset += step
    codec = draw(st.integers(0, 4))
    return encode_batch(
        records, base_offset=base_offset, epoch=2, compression=codec, is_log_append_time=draw(st.booleans())
    ), records[-1].offset + 1


@st.composite
def batches(draw: st.DrawFn) -> list[bytes]:
    found, base_offset = [], draw(st.integers(0, 1 << 40))
    for _ in range(draw(st.integers(1, 3))):
        one, base_offset = draw(batch_of(base_offset))
        found.append(one)
    return found * draw(st.sampled_from((1, 1, 30)))  # many of them go another way through the decoder


@given(batches())
def test_the_columns_are_the_records(found: list[bytes]) -> None:
    assert rows_of(found) == expected_rows(found)


def damaged(batch: bytes, places: list[tuple[int, int]], length: int | None) -> bytes:
    """Other bytes in its records, and header fields that fit them: as a hostile client could send it."""
    body = bytearray(batch[61:][: max(1, length) if length is not None else None])
    for place, byte in places:
        body[place % len(body)] = byte
    out = bytearray(batch[:61]) + body
    struct.pack_into(">i", out, 8, len(out) - 12)
    struct.pack_into(">I", out, 17, crc32c(bytes(out[CRC_FROM:])))
    return bytes(out)


@pytest.mark.fault("batch-hostile-content-sizes")
@given(
    st.lists(st.tuples(TIMES, BYTES, BYTES, HEADERS), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=4),
    st.none() | st.integers(1, 400),
    st.booleans(),
)
def test_whatever_is_in_a_batch_both_decoders_agree_or_refuse(
    records: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
    places: list[tuple[int, int]],
    length: int | None,
    is_one_of_many: bool,
) -> None:
    good = encode_batch([Record(n, *one[:3], tuple(one[3])) for n, one in enumerate(records)], epoch=2)
    bad = damaged(good, places, length)
    try:
        expected = expected_rows([bad])
    except Corrupt:
        with pytest.raises(Corrupt):
            rows_of([good] * 30 + [bad] if is_one_of_many else [bad])
        return
    try:
        found = rows_of([bad])
    except Corrupt as error:
        # The one thing that is refused here and taken there: a number that no 64 bits hold.
        assert "64 bits" in str(error)
        return
    for row, other in zip(found, expected, strict=True):
        row["headers"] = other["headers"] = [pair["value"] for pair in row["headers"]]
        assert row == other
