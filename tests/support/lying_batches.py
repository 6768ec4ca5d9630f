"""Record batches that lie, by name: each field of the header of a batch and of its records, one lie at a time.

All are made of the same two records and carry a CRC that fits, unless the lie is the CRC. Deterministic: the same names
give the same bytes in each run, so that another server's answers to them can be recorded.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterable

from crc32c import crc32c

from stratalog.formats.batches.compression import compress
from stratalog.model.batch import BATCH_HEADER_BYTES

NOW_MS = 1_700_000_000_000
"""The time of the first record, in 2023."""
I16, I32, I64 = 2**15 - 1, 2**31 - 1, 2**63 - 1
_BODY = struct.Struct(">hiqqqhii")
_HEAD = struct.Struct(">qiibI")
_CODECS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def varint(value: int) -> bytes:
    """Zigzag, as long as it has to be."""
    left, out = (value << 1) ^ (value >> 63) if -(2**63) <= value < 2**63 else value, bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


def sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def record(
    number: int,
    *,
    attributes: int = 0,
    time_delta: bytes | None = None,
    offset_delta: bytes | None = None,
    key: bytes = b"\x02k",
    value: bytes = b"\x02v",
    headers: bytes = b"\x00",
    behind: bytes = b"",
    size: bytes | None = None,
) -> bytes:
    """A record; whatever is given replaces what would be true."""
    body = bytes([attributes])
    body += varint(number) if time_delta is None else time_delta
    body += varint(number) if offset_delta is None else offset_delta
    body += key + value + headers + behind
    return (varint(len(body)) if size is None else size) + body


TRUE_RECORDS = record(0) + record(1)


def batch(
    records: bytes = TRUE_RECORDS,
    *,
    base_offset: int = 0,
    length: int | None = None,
    leader_epoch: int = -1,
    magic: int = 2,
    crc: int | None = None,
    attributes: int = 0,
    last_offset_delta: int = 1,
    base_timestamp: int = NOW_MS,
    max_timestamp: int = NOW_MS + 1,
    producer: tuple[int, int, int] = (-1, -1, -1),
    record_count: int = 2,
) -> bytes:
    body = _BODY.pack(attributes, last_offset_delta, base_timestamp, max_timestamp, *producer, record_count) + records
    size = BATCH_HEADER_BYTES - 12 + len(records) if length is None else length
    return _HEAD.pack(base_offset, size, leader_epoch, magic, crc32c(body) if crc is None else crc) + body


def old_message(magic: int, value: bytes = b"v") -> bytes:
    """A message set of one message, as clients before Kafka 0.11 send it."""
    rest = bytes([magic & 0xFF, 0]) + (struct.pack(">q", NOW_MS) if magic else b"")
    rest += struct.pack(">i", -1) + struct.pack(">i", len(value)) + value
    message = struct.pack(">I", zlib.crc32(rest)) + rest
    return struct.pack(">qi", 0, len(message)) + message


def _headers() -> Iterable[tuple[str, bytes]]:
    yield "true", batch()
    for number in (5, -1, -2, I64, -I64 - 1, I64 - 1):
        yield f"base offset {number}", batch(base_offset=number)
    for number in (0, -1, 48, 49, len(batch()) - 13, len(batch()) - 11, I32, -I32 - 1):
        yield f"length {number}", batch(length=number)
    for number in (0, 7, I32, -I32 - 1):
        yield f"leader epoch {number}", batch(leader_epoch=number)
    for number in (0, 1, 3, 127, -1):
        yield f"magic {number}", batch(magic=number)
    yield "crc of nothing", batch(crc=0)
    yield "crc of another", batch(crc=0xDEADBEEF)
    for bits in (5, 6, 7, 0x08, 0x10, 0x18, 0x20, 0x30, 0x40, 0x80, 0x100, 0x4000, -0x8000, 0x7F80):
        yield f"attributes {bits:#x}", batch(attributes=bits)
    yield "transaction of a producer", batch(attributes=0x10, producer=(7, 0, 0))
    for number in (-1, 0, 2, 100, I32, -I32 - 1):
        yield f"last offset delta {number}", batch(last_offset_delta=number)
    for number in (-1, 0, -2, I64, -I64 - 1, NOW_MS + 10):
        yield f"base timestamp {number}", batch(base_timestamp=number)
        yield f"max timestamp {number}", batch(max_timestamp=number)
    yield "both timestamps -1", batch(base_timestamp=-1, max_timestamp=-1)
    yield "both timestamps 0", batch(base_timestamp=0, max_timestamp=0)
    for pid, epoch, sequence in (
        (7, -1, -1), (7, 0, -1), (7, -1, 0), (-1, 0, -1), (-1, -1, 0), (-1, 0, 0), (-2, -1, -1), (-I64 - 1, 0, 0),
        (8, 0, 0), (9, 0, 5), (10, I16, 0), (I64, I16, 0), (11, -I16 - 1, 0), (12, 0, I32), (13, 0, -2),
        (14, 0, -I32 - 1),
    ):  # fmt: skip
        yield f"producer {pid} epoch {epoch} sequence {sequence}", batch(producer=(pid, epoch, sequence))
    for count in (0, -1, 1, 3, I32, -I32 - 1):
        yield f"count {count}", batch(record_count=count)
    yield "no records", batch(b"", record_count=0, last_offset_delta=-1)
    yield "no records in 1 offset", batch(b"", record_count=0, last_offset_delta=0)
    yield "no records in 100 offsets", batch(b"", record_count=0, last_offset_delta=99)
    yield "count and delta of 1", batch(record_count=1, last_offset_delta=0)
    yield "count and delta of 3", batch(record_count=3, last_offset_delta=2)
    yield "count and delta of 2^31", batch(record_count=I32, last_offset_delta=I32 - 1)


def _wholes() -> Iterable[tuple[str, bytes]]:
    yield "two batches", batch() + batch()
    yield "two batches of one producer", batch(producer=(20, 0, 0)) + batch(producer=(20, 0, 2))
    yield "garbage behind", batch() + b"garbage"
    yield "zeros behind", batch() + bytes(100)
    yield "cut short", batch()[:-1]
    yield "half a header", batch()[:30]
    yield "no bytes", b""
    yield "one byte", b"\x00"
    yield "zeros", bytes(100)
    yield "message of magic 0", old_message(0)
    yield "message of magic 1", old_message(1)
    yield "batch and message of magic 1", batch() + old_message(1)


def _lies_inside() -> Iterable[tuple[str, bytes]]:
    """The records of a batch of two."""
    true = record(0)
    for number in (0, 1, 5, -1, 8, 100, I32, -I32 - 1, I64):
        yield f"size {number}", true + record(1, size=varint(number))
    yield "size with a long zero", true + record(1, size=b"\x8e\x80\x80\x80\x00")
    yield "size longer than a number", true + record(1, size=b"\xff" * 10 + b"\x01")
    yield "size cut short", true + b"\x8e"
    yield "attributes of a record", true + record(1, attributes=0xFF)
    for number in (-1, I32, I64, -I64 - 1, 10**12, I64 - NOW_MS, -NOW_MS - 1, -NOW_MS - 2):
        yield f"time delta {number}", true + record(1, time_delta=varint(number))
        yield f"time delta {number} of the first", record(0, time_delta=varint(number)) + record(1)
    yield "time delta longer than a number", true + record(1, time_delta=b"\xff" * 10 + b"\x01")
    yield "time delta with a long zero", true + record(1, time_delta=b"\x82\x80\x80\x00")
    for number in (0, 2, -1, 100, I32, -I32 - 1, I64):
        yield f"offset delta {number}", true + record(1, offset_delta=varint(number))
    yield "offset deltas turned around", record(1) + record(0)
    yield "offset deltas 5 and 6", record(5) + record(6)
    yield "key null", true + record(1, key=varint(-1))
    yield "key empty", true + record(1, key=varint(0))
    for number in (-2, 3, 100, I32, -I32 - 1, I64):
        yield f"key size {number}", true + record(1, key=varint(number) + b"k")
        yield f"value size {number}", true + record(1, value=varint(number) + b"v")
    yield "value null", true + record(1, value=varint(-1))
    yield "both null", true + record(1, key=varint(-1), value=varint(-1))
    for number in (-1, -2, 1, 100, I32, -I32 - 1):
        yield f"header count {number}", true + record(1, headers=varint(number))
    yield "header key null", true + record(1, headers=varint(1) + varint(-1) + sized(b"v"))
    yield "header key empty", true + record(1, headers=varint(1) + sized(b"") + sized(b"v"))
    yield "header key not of UTF-8", true + record(1, headers=varint(1) + sized(b"\xff\xfe\xc3") + sized(b"v"))
    yield "header value null", true + record(1, headers=varint(1) + sized(b"h") + varint(-1))
    yield "header key size 100", true + record(1, headers=varint(1) + varint(100) + b"h" + sized(b"v"))
    yield "header value size -2", true + record(1, headers=varint(1) + sized(b"h") + varint(-2))
    yield "header value size 100", true + record(1, headers=varint(1) + sized(b"h") + varint(100) + b"v")
    yield "10000 headers", true + record(1, headers=varint(10_000) + (sized(b"h") + sized(b"")) * 10_000)
    yield "same header twice", true + record(1, headers=varint(2) + (sized(b"h") + sized(b"v")) * 2)
    yield "bytes behind the headers", true + record(1, behind=b"more")
    yield "bytes behind the records", true + record(1) + b"more"
    yield "a third record", true + record(1) + record(2)
    yield "one record", true
    yield "no bytes of records", b""
    yield "garbage for records", bytes(range(64))


def _bombs() -> Iterable[tuple[str, bytes]]:
    """Of some MiB decompressed: how a server looks into them decides what they cost."""
    large = record(0) + record(1, value=sized(bytes(32 << 20)))
    for codec, number in _CODECS.items():
        packed = compress(number, large)
        if len(packed) < 900_000:
            yield f"32 MiB in {codec}", batch(packed, attributes=number)
    yield "gzip of two members", batch(gzip.compress(record(0)) + gzip.compress(record(1)), attributes=1)
    yield "gzip with bytes behind", batch(gzip.compress(TRUE_RECORDS) + b"more", attributes=1)
    yield "gzip cut short", batch(gzip.compress(TRUE_RECORDS)[:-4], attributes=1)


def _behind_the_stream() -> Iterable[tuple[str, bytes]]:
    """What follows the compressed records, which the CRC covers: producers with a buffer that is too large send it."""
    for codec, number in _CODECS.items():
        packed = compress(number, TRUE_RECORDS)
        yield f"{codec} with 4 bytes behind", batch(packed + b"more", attributes=number)
        yield f"{codec} with 40 bytes behind", batch(packed + b"more" * 10, attributes=number)
        yield f"{codec} with zeros behind", batch(packed + bytes(12), attributes=number)
        yield f"{codec} with an empty frame behind", batch(packed + compress(number, b""), attributes=number)
        third = packed + compress(number, record(2))
        yield f"{codec} with a third record in a frame behind", batch(third, attributes=number)
        two = compress(number, record(0)) + compress(number, record(1))
        yield f"{codec} of two frames", batch(two, attributes=number)
    packed, member = compress(1, TRUE_RECORDS), compress(1, record(2))
    yield "gzip with half a header behind", batch(packed + member[:4], attributes=1)
    yield "gzip with a header behind", batch(packed + member[:14], attributes=1)
    yield "gzip with a header and 30 bytes behind", batch(packed + member[:10] + b"\xff" * 30, attributes=1)


def lying_batches() -> dict[str, bytes]:
    found = dict(_headers()) | dict(_wholes()) | dict(_bombs()) | dict(_behind_the_stream())
    for name, records in _lies_inside():
        found[f"record: {name}"] = batch(records)
        for codec in ("gzip", "lz4", "zstd", "snappy"):
            if codec == "lz4" or name in ("garbage for records", "a third record", "offset delta 0", "one record"):
                found[f"record in {codec}: {name}"] = batch(
                    compress(_CODECS[codec], records), attributes=_CODECS[codec]
                )
    for codec, number in _CODECS.items():
        found[f"{codec}: true"] = batch(compress(number, TRUE_RECORDS), attributes=number)
        found[f"{codec}: not packed"] = batch(attributes=number)
        found[f"{codec}: nothing packed"] = batch(b"", attributes=number)
        found[f"{codec}: base offset 5"] = batch(compress(number, TRUE_RECORDS), attributes=number, base_offset=5)
    return found
