"""A batch as a client offered it: what is taken by its header, and what is said of each fault."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from stratalog.formats.batches.offered_batch import CRC_FROM, LZ4, BatchFault, FaultyBatch, OfferedHeader, check_offered
from stratalog.formats.batches.records import NEXT_OFFSET, Record, encode_batch

NOW_MS = 1_700_000_000_000
_ATTRIBUTES, _LAST_DELTA, _PRODUCER, _EPOCH, _SEQUENCE, _COUNT = 21, 23, 43, 51, 53, 57


def a_batch(*values: bytes) -> bytearray:
    return bytearray(encode_batch([Record(NEXT_OFFSET, NOW_MS, None, value) for value in values or (b"a", b"b")]))


def with_field(at: int, layout: str, value: int) -> bytearray:
    """A batch with one field changed, its CRC right."""
    batch = a_batch()
    struct.pack_into(layout, batch, at, value)
    struct.pack_into(">I", batch, 17, crc32c(batch[CRC_FROM:]))
    return batch


def checked(batch: bytes | bytearray, most_bytes: int = 1_000, **limits: int) -> OfferedHeader | FaultyBatch:
    return check_offered(memoryview(batch), most_bytes, **limits)


def fault_of(batch: bytes | bytearray, most_bytes: int = 1_000, **limits: int) -> BatchFault | None:
    found = checked(batch, most_bytes, **limits)
    return found.fault if isinstance(found, FaultyBatch) else None


def test_a_whole_batch_is_taken_with_what_its_header_says() -> None:
    header = checked(a_batch())
    assert not isinstance(header, FaultyBatch)
    assert header[8] == NOW_MS and header[12] == 2


@pytest.mark.parametrize(
    ("batch", "fault"),
    [
        (b"", BatchFault.NO_BATCH),
        (a_batch()[:60], BatchFault.NO_BATCH),
        (a_batch()[:-1], BatchFault.NOT_WHOLE),
        (a_batch() + a_batch(), BatchFault.SEVERAL),
        (a_batch()[:-1] + b"!", BatchFault.WRONG_CRC),
        (with_field(16, ">b", 1), BatchFault.OLD_MAGIC),
        (with_field(_COUNT, ">i", 3), BatchFault.WRONG_COUNT),
        (with_field(_COUNT, ">i", 0), BatchFault.WRONG_COUNT),
        (with_field(_LAST_DELTA, ">i", 0), BatchFault.WRONG_COUNT),
        (with_field(_ATTRIBUTES, ">h", 0x20), BatchFault.CONTROL),
        (with_field(_ATTRIBUTES, ">h", 0x30), BatchFault.CONTROL),
        (with_field(_ATTRIBUTES, ">h", 0x10), BatchFault.TRANSACTIONAL),
        (with_field(_PRODUCER, ">q", 7), BatchFault.WRONG_SEQUENCE),
        (with_field(_ATTRIBUTES, ">h", 5), BatchFault.UNKNOWN_CODEC),
        (with_field(_ATTRIBUTES, ">h", 4), None),
    ],
)
def test_each_fault_is_named(batch: bytes, fault: BatchFault | None) -> None:
    assert fault_of(batch) is fault


def test_limits_of_the_topic_and_of_the_client_are_kept() -> None:
    batch = a_batch()
    assert fault_of(batch, len(batch)) is None
    assert fault_of(batch, len(batch) - 1) is BatchFault.TOO_LARGE
    assert fault_of(with_field(_ATTRIBUTES, ">h", 4), newest_codec=LZ4) is BatchFault.UNKNOWN_CODEC


@given(st.binary(max_size=200))
def test_whatever_is_sent_is_judged_and_left_as_it_is(data: bytes) -> None:
    kept = bytearray(data)
    assert isinstance(checked(kept), FaultyBatch)
    assert kept == data


@given(st.integers(0, 60), st.integers(0, 255))
def test_whatever_a_header_says_it_is_judged(at: int, value: int) -> None:
    batch = a_batch()
    batch[at] = value
    struct.pack_into(">I", batch, 17, crc32c(batch[CRC_FROM:]))
    checked(batch)
