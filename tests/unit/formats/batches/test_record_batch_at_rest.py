"""Headers as stored: prefix, log append time, what a check compares, how a scan asks for more."""

from __future__ import annotations

import struct

import pytest

from stratalog.formats.batches.record_batch import (
    check_batch,
    first_timestamp_ms,
    log_append_header,
    parse_header,
    scan_valid_prefix,
    stored_prefix,
    walk,
)
from stratalog.formats.batches.records import Record, decode_records, encode_batch
from stratalog.formats.fields import FieldWriter
from stratalog.model.errors import Corrupt, InvalidRequest
from support.stored_samples import BATCHES, DATA, EPOCH

BATCH = encode_batch([Record(-1, 100 + i, b"k", b"v") for i in range(3)], epoch=-1)


def test_the_stored_prefix_changes_offset_and_epoch_and_nothing_else() -> None:
    stored = stored_prefix(900, len(BATCH), 4) + BATCH[16:]
    assert check_batch(stored, source="x") == parse_header(BATCH)._replace(base_offset=900, epoch=4)
    assert stored[16:] == BATCH[16:]


def test_log_append_time_is_stamped_under_a_new_crc() -> None:
    stored = log_append_header(memoryview(BATCH), 900, 4, 555) + BATCH[61:]
    header = check_batch(stored, source="x")
    assert header.is_log_append_time
    assert (header.base_offset, header.epoch, header.max_timestamp_ms) == (900, 4, 555)
    assert first_timestamp_ms(header) == 555
    assert [r.timestamp_ms for r in decode_records(stored)] == [555, 555, 555]
    assert first_timestamp_ms(parse_header(BATCH)) == 100


def test_a_header_is_read_at_its_position_in_any_buffer() -> None:
    for buffer in (b"xxx" + BATCH, bytearray(b"xxx" + BATCH), memoryview(b"xxx" + BATCH)):
        assert parse_header(buffer, 3) == parse_header(BATCH)
        assert parse_header(buffer, 3).size_bytes == len(BATCH)


@pytest.mark.parametrize("size", [0, 1, 60])
def test_a_header_cut_short_is_refused(size: int) -> None:
    with pytest.raises(Corrupt, match=f"{size} of 61 bytes"):
        check_batch(BATCH[:size], source="x")


def test_a_batch_with_bytes_after_it_is_not_one_batch() -> None:
    with pytest.raises(Corrupt, match=f"claims {len(BATCH)} bytes, {len(BATCH) + 1} are there"):
        check_batch(BATCH + b"\0", source="x")


def test_more_records_than_offsets_are_refused_even_under_a_right_crc() -> None:
    header = parse_header(BATCH)
    for words, form, at, value in (
        ("4 records in 3 offsets", ">i", 57, 4),
        ("-1 records", ">i", 57, -1),
        ("last offset delta -1", ">i", 23, -1),
    ):
        damaged = bytearray(BATCH)
        struct.pack_into(form, damaged, at, value)
        fixed = log_append_header(damaged, 0, 0, header.max_timestamp_ms) + BATCH[61:]
        with pytest.raises(Corrupt, match=words):
            check_batch(fixed, source="x")
        assert words in str(scan_valid_prefix(fixed, 0, 0).reason)


@pytest.mark.fault("gap-offsets-log")
def test_fewer_records_than_offsets_are_what_compaction_leaves() -> None:
    batch = encode_batch([Record(10, 1, b"k", b"v"), Record(14, 1, b"k", b"v")], base_offset=10)
    header = check_batch(batch, source="x")
    assert (header.record_count, header.end_offset) == (2, 15)


@pytest.mark.fault("gap-offsets-log")
def test_a_walk_without_crc_still_refuses_what_breaks_the_chain() -> None:
    damaged = bytearray(DATA)
    damaged[len(BATCHES[0]) - 1] ^= 1
    assert len(list(walk(damaged, source="x", verify=False, expected_base_offset=1_000, epoch=EPOCH))) == 3
    with pytest.raises(Corrupt, match="has CRC"):
        list(walk(damaged, source="x"))
    with pytest.raises(Corrupt, match="expected 999"):
        list(walk(DATA, source="x", verify=False, expected_base_offset=999))


def test_a_walk_gives_positions_in_the_data_and_messages_give_positions_in_the_source() -> None:
    found = [at for at, _ in walk(DATA, source="x", position=5_000)]
    assert found == [0, len(BATCHES[0]), len(BATCHES[0]) + len(BATCHES[1])]
    with pytest.raises(Corrupt) as refused:
        list(walk(DATA[:-1], source="x", position=5_000))
    assert refused.value.position == 5_000 + found[2] + 8


def test_a_scan_says_how_many_bytes_it_needs_to_continue() -> None:
    header_missing = scan_valid_prefix(DATA[:10], 1_000, EPOCH)
    assert (header_missing.end_position, header_missing.wanted_bytes) == (0, 61)
    body_missing = scan_valid_prefix(DATA[:70], 1_000, EPOCH)
    assert (body_missing.end_position, body_missing.wanted_bytes) == (0, len(BATCHES[0]))
    assert scan_valid_prefix(b"\xff" * 70, 1_000, EPOCH).wanted_bytes == 0
    assert scan_valid_prefix(b"", 1_000, EPOCH).reason is None


def test_an_empty_log_is_valid_and_ends_where_it_begins() -> None:
    found = scan_valid_prefix(b"", 77, EPOCH)
    assert (found.end_position, found.next_offset, found.headers, found.wanted_bytes) == (0, 77, (), 0)


def test_a_writer_refuses_what_no_reader_would_take() -> None:
    out = FieldWriter()
    for write, words in (
        (lambda: out.natural(-1, "an offset"), "an offset is -1: it must not be below 0"),
        (lambda: out.natural(1 << 63, "an offset"), "which 8 bytes cannot hold"),
        (lambda: out.natural32(-1, "a shard"), "a shard is -1"),
        (lambda: out.u8(256, "a count"), "which 1 bytes cannot hold"),
        (lambda: out.text("ü" * 3, 5, "a name"), "a name is 6 bytes long: the limit is 5"),
        (lambda: out.digest(b"short", "a digest"), "a digest has 5 bytes"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            write()
    assert len(out) == 0
