"""What lies inside a batch: lookups by time, bombs, records that lie."""

from __future__ import annotations

import struct
import tracemalloc

import cramjam
import pytest
from crc32c import crc32c

from stratalog.formats.batches.compression import Codec, compress, decompress
from stratalog.formats.batches.records import (
    NEXT_OFFSET,
    Record,
    decode_records,
    encode_batch,
    first_offset_at_or_after,
    offset_of_max_timestamp,
    records_of_key,
)
from stratalog.model.errors import Corrupt, InvalidRequest

every_codec = pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name.lower())
compressed = pytest.mark.parametrize("codec", list(Codec)[1:], ids=lambda codec: codec.name.lower())


def timed(*times: int, codec: int = 0, **more: int | bool) -> bytes:
    return encode_batch([Record(NEXT_OFFSET, t, None, b"v") for t in times], base_offset=50, compression=codec, **more)


def with_payload(batch: bytes, payload: bytes, *, count: int | None = None, codec: int | None = None) -> bytes:
    """The batch with other bytes for its records, and a right length and CRC."""
    head = bytearray(batch[:61])
    struct.pack_into(">i", head, 8, 49 + len(payload))
    if codec is not None:
        struct.pack_into(">h", head, 21, codec)
    if count is not None:
        struct.pack_into(">i", head, 57, count)
    struct.pack_into(">I", head, 17, crc32c(payload, crc32c(bytes(head[21:]))))
    return bytes(head) + payload


@every_codec
@pytest.mark.parametrize(
    ("asked", "found"),
    [(0, (50, 10)), (10, (50, 10)), (11, (51, 30)), (30, (51, 30)), (31, (53, 40)), (40, (53, 40)), (41, None)],
)
def test_the_first_record_at_or_after_a_time_is_exact_inside_the_batch(
    codec: Codec, asked: int, found: tuple[int, int] | None
) -> None:
    assert first_offset_at_or_after(timed(10, 30, 20, 40, 40, codec=codec), asked) == found


@every_codec
def test_with_log_append_time_all_records_have_the_batchs_time(codec: Codec) -> None:
    batch = timed(10, 30, 20, codec=codec, is_log_append_time=True, max_timestamp_ms=77)
    assert first_offset_at_or_after(batch, 77) == (50, 77)
    assert first_offset_at_or_after(batch, 11) == (50, 77)
    assert first_offset_at_or_after(batch, 78) is None
    assert offset_of_max_timestamp(batch) == (50, 77)


@every_codec
def test_the_highest_time_is_that_of_the_first_record_that_carries_it(codec: Codec) -> None:
    assert offset_of_max_timestamp(timed(10, 40, 20, 40, codec=codec)) == (51, 40)


@every_codec
def test_the_records_of_a_key_are_those_among_all_from_an_offset_on_up_to_a_limit(codec: Codec) -> None:
    keys = [b"k", None, b"", b"kk", b"k", b"other", b"k", None]
    records = [Record(50 + n, n, key, b"k", (("k", b"k"),)) for n, key in enumerate(keys)]
    batch = encode_batch(records, base_offset=50, compression=codec)
    for key in (b"k", b"", b"kk", b"nobody"):
        expected = [one for one in decode_records(batch) if one.key == key]
        for from_offset in (0, 51, 54, 57, 99):
            left = [one for one in expected if one.offset >= from_offset]
            assert records_of_key(batch, key, from_offset=from_offset).records == left
            assert records_of_key(batch, key, from_offset=from_offset, limit=2).records == left[:2]


@pytest.mark.fault("search-key-thousands-batches")
@compressed
def test_records_of_other_keys_are_not_held(codec: Codec) -> None:
    batch = encode_batch([Record(n, 1, b"other", None) for n in range(100_000)] + [Record(100_000, 1, b"k", None)])
    batch = with_payload(batch, compress(codec, batch[61:]), codec=codec)
    tracemalloc.start()
    try:
        told = records_of_key(batch, b"k")
        assert [one.offset for one in told.records] == [100_000]
        assert tracemalloc.get_traced_memory()[1] < 4 * told.opened_bytes
    finally:
        tracemalloc.stop()


def test_records_without_a_time_have_no_highest_time() -> None:
    assert offset_of_max_timestamp(timed(-1, -1)) is None


def test_a_header_that_claims_a_later_time_than_its_records_does_not_mislead() -> None:
    assert first_offset_at_or_after(timed(1, 2, max_timestamp_ms=99), 50) is None


@compressed
def test_a_bomb_is_refused_and_takes_no_more_than_the_bound(codec: Codec) -> None:
    bomb = with_payload(timed(1), compress(codec, bytes(64 << 20)), codec=codec)
    assert len(bomb) < 4 << 20
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt, match="more than the 1048576 bytes allowed") as refused:
            decode_records(bomb, max_bytes=1 << 20, source="seg", position=700)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (refused.value.source, refused.value.position) == ("seg", 761)
    assert peak < 8 << 20


@compressed
@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 300_000])
def test_the_bound_is_exact(codec: Codec, size: int) -> None:
    data = bytes(range(251)) * (size // 251 + 1)
    packed = compress(codec, data[:size])
    if size:
        assert bytes(decompress(codec, packed, size, source="x", position=0)) == data[:size]
        with pytest.raises(Corrupt, match=f"more than the {size - 1} bytes allowed"):
            decompress(codec, packed, size - 1, source="x", position=0)


@compressed
def test_compressed_bytes_that_are_damaged_are_refused(codec: Codec) -> None:
    packed = compress(codec, b"some text, some text, some text" * 20)
    for size in range(len(packed) - 1):
        if codec is Codec.SNAPPY and size == 16:
            continue  # a xerial header alone is an empty stream
        with pytest.raises(Corrupt):
            decompress(codec, packed[:size], 1 << 20, source="x", position=0)


def test_a_snappy_block_that_claims_gigabytes_is_refused_before_they_are_allocated() -> None:
    with pytest.raises(Corrupt, match="more than the"):
        decompress(Codec.SNAPPY, b"\xff\xff\xff\xff\x0f1234", 1 << 20, source="x", position=0)
    with pytest.raises(Corrupt, match="a snappy block of 9 bytes claims"):
        decompress(Codec.SNAPPY, b"\xff\xff\xff\xff\x0f1234", 1 << 40, source="x", position=0)
    with pytest.raises(Corrupt, match="claims 2147483647 bytes"):
        framed = compress(Codec.SNAPPY, b"abc")[:16] + struct.pack(">i", 2**31 - 1) + b"x"
        decompress(Codec.SNAPPY, framed, 1 << 40, source="x", position=0)


def test_a_codec_that_does_not_exist_is_refused() -> None:
    with pytest.raises(Corrupt, match="codec 5, which does not exist"):
        decode_records(with_payload(timed(1), b"\0" * 10, codec=5))
    with pytest.raises(ValueError, match="no codec 5"):
        compress(5, b"")


def test_several_gzip_members_and_zstd_frames_are_one_stream() -> None:
    for codec in (Codec.GZIP, Codec.ZSTD):
        packed = compress(codec, b"first ") + compress(codec, b"second")
        assert bytes(decompress(codec, packed, 100, source="x", position=0)) == b"first second"


def test_only_the_first_lz4_frame_is_read_as_kafka_does() -> None:
    packed = compress(Codec.LZ4, b"first ") + compress(Codec.LZ4, b"second")
    assert bytes(decompress(Codec.LZ4, packed, 100, source="x", position=0)) == b"first "


ONE = timed(5)[61:]


@pytest.mark.parametrize(
    ("payload", "count", "words"),
    [
        (b"", 1, "claims 1 records in 0 bytes"),
        (ONE, 2**31 - 1, "claims 2147483647 records"),
        (ONE, 0, "bytes are left after the last record"),
        (ONE[:-1], 1, "record 0 claims"),
        (ONE + b"\0", 1, "1 bytes are left after the last record"),
        (bytes([0x7F]) + ONE[1:], 1, "record 0 claims -64 bytes"),
        (b"\xff" * 11 + ONE, 1, "longer than 10 bytes"),
        (ONE[:3] + bytes([2]) + ONE[4:], 1, "offset delta 1 after -1, last is 0"),
        (ONE[:4] + bytes([0x7E]) + ONE[5:], 1, "key claims 63 bytes"),
        (ONE[:5] + bytes([0x7E]) + ONE[6:], 1, "value claims 63 bytes"),
        (ONE[:-1] + bytes([0x7E]), 1, "claims 63 headers in 0 bytes"),
        (b"\x80" * 8, 1, "a record is cut short"),
        (ONE[:2] + b"\x80\x80\x80\x80\x80\0" + ONE[2:], 1, "record 0 is cut short: its fields pass its end"),
    ],
)
def test_records_that_lie_are_refused(payload: bytes, count: int, words: str) -> None:
    with pytest.raises(Corrupt, match=words):
        decode_records(with_payload(timed(5), payload, count=count))


def test_offsets_of_a_new_batch_must_rise() -> None:
    with pytest.raises(InvalidRequest, match="must rise"):
        encode_batch([Record(3, 0, None, None), Record(3, 0, None, None)])
    with pytest.raises(InvalidRequest, match="at least one record"):
        encode_batch([])
    assert [
        r.offset
        for r in decode_records(encode_batch([Record(7, 0, None, b""), Record(9, 0, None, b"")], base_offset=5))
    ] == [7, 9]


def test_the_library_still_says_what_a_full_output_buffer_means() -> None:
    with pytest.raises(cramjam.DecompressionError, match="write whole buffer"):
        cramjam.zstd.decompress_into(cramjam.zstd.compress(bytes(100)), bytearray(10))
