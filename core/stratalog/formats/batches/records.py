"""Looks inside a record batch: decodes and encodes its records, finds one by time (docs/formats.md section 2).

Never on the produce or fetch path, which do not open batches; by-time lookups, internal topics, tools, tests.
Requires: the batch was checked (`record_batch.check_batch`); what is inside is still not trusted.
Cost: about 2 us per record to decode, 0.6 us to look at its time; decompression on top.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, NoReturn

from crc32c import crc32c

from stratalog.formats.batches.compression import compress, decompress
from stratalog.formats.batches.offered_batch import LARGEST_DECODED_BYTES, LEAST_RECORD_BYTES
from stratalog.formats.batches.record_batch import ATTRIBUTES_AT, MAGIC, parse_header
from stratalog.formats.fields import NO_TIMESTAMP_MS, Buffer
from stratalog.model.batch import BATCH_HEADER_BYTES, NO_PRODUCER_ID, BatchHeader
from stratalog.model.errors import Corrupt, InvalidRequest

MAX_DECODED_BYTES = LARGEST_DECODED_BYTES
NEXT_OFFSET = -1
"""As a record's offset: the one after the record before."""

_MAX_VARINT_BITS = 70
_HEAD = struct.Struct(">qiibI")
_BODY = struct.Struct(">hiqqqhii")


class Record(NamedTuple):
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class OffsetAndTime(NamedTuple):
    offset: int
    timestamp_ms: int


Pace = Callable[[Iterator[OffsetAndTime]], Iterator[OffsetAndTime]]
"""What records are drawn through one by one, so that a thread can let others run in between."""

Frame = tuple[int, int, int, int]
FramePace = Callable[[Iterator[Frame]], Iterator[Frame]]
"""The same for records that are not opened yet."""


class KeyMatches(NamedTuple):
    """What a batch has of a key, and how many bytes its records were decompressed."""

    records: list[Record]
    opened_bytes: int


# Decoding ---------------------------------------------------------------------------------------------------------
def decode_records(
    batch: Buffer, *, max_bytes: int = MAX_DECODED_BYTES, source: str = "record batch", position: int = 0
) -> list[Record]:
    """Every record of one batch. Raises: Corrupt, also when the records are over `max_bytes` decompressed."""
    inside = _Inside(batch, max_bytes, source, position)
    header = inside.header
    records: list[Record] = []
    try:
        for at, end, timestamp_ms, offset in inside.frames():
            key, at = inside.bytes_or_none(at, end, "key")
            value, at = inside.bytes_or_none(at, end, "value")
            headers, at = inside.headers(at, end)
            if at != end:
                inside.refuse(f"record {offset - header.base_offset} has {end - at} bytes after its last field")
            records.append(Record(offset, timestamp_ms, key, value, headers))
    except IndexError:
        inside.refuse("a record is cut short")
    return records


def decode_pairs(
    batch: Buffer, *, max_bytes: int = MAX_DECODED_BYTES, source: str = "record batch"
) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Key and value of every record of one batch, for readers of many small ones: times and headers are passed over.

    Cost: about 1 us per record; numbers of one and two bytes are read in place for that. Raises: Corrupt.
    """
    inside = _Inside(batch, max_bytes, source, 0)
    data = inside.data
    varint = inside.varint
    at = 0
    try:
        for number in range(inside.header.record_count):
            size, at = (data[at] >> 1, at + 1) if not data[at] & 0x81 else varint(at)
            end = at + size
            if size < LEAST_RECORD_BYTES - 1 or end > len(data):
                inside.refuse(f"record {number} claims {size} bytes, {len(data) - at} are left")
            at = at + 2 if data[at + 1] < 0x80 else varint(at + 1)[1]
            at = at + 1 if data[at] < 0x80 else varint(at)[1]
            size, at = (data[at] >> 1, at + 1) if not data[at] & 0x81 else varint(at)
            if not -1 <= size <= end - at:
                inside.refuse(f"the key of record {number} claims {size} bytes, {end - at} are left")
            key = data[at : at + size] if size >= 0 else None
            at += max(size, 0)
            size, at = (data[at] >> 1, at + 1) if not data[at] & 0x81 else varint(at)
            if not -1 <= size <= end - at:
                inside.refuse(f"the value of record {number} claims {size} bytes, {end - at} are left")
            yield key, data[at : at + size] if size >= 0 else None
            at = end
    except IndexError:
        inside.refuse("a record is cut short")
    if at != len(data):
        inside.refuse(f"{len(data) - at} bytes are left after the last record")


def records_of_key(
    batch: Buffer,
    key: bytes,
    *,
    from_offset: int = 0,
    limit: int | None = None,
    pace: FramePace = iter,
    max_bytes: int = MAX_DECODED_BYTES,
    source: str = "record batch",
    position: int = 0,
) -> KeyMatches:
    """The first `limit` records of a key from an offset on. All others are only looked at, and nothing of them is kept.

    Cost: 1 us per record, none where the key's bytes are nowhere. Raises: Corrupt, also over `max_bytes` decompressed.
    """
    inside = _Inside(batch, max_bytes, source, position)
    records: list[Record] = []
    matches = KeyMatches(records, len(inside.data))
    if inside.data.find(key) < 0:
        return matches
    try:
        for at, end, timestamp_ms, offset in pace(inside.frames()):
            found, at = inside.bytes_or_none(at, end, "key")
            if found != key or offset < from_offset:
                continue
            value, at = inside.bytes_or_none(at, end, "value")
            headers, at = inside.headers(at, end)
            if at != end:
                inside.refuse(f"the record at offset {offset} has {end - at} bytes after its last field")
            records.append(Record(offset, timestamp_ms, found, value, headers))
            if limit is not None and len(records) >= limit:
                break
    except IndexError:
        inside.refuse("a record is cut short")
    return matches


def first_offset_at_or_after(
    batch: Buffer,
    timestamp_ms: int,
    *,
    from_offset: int = 0,
    pace: Pace = iter,
    max_bytes: int = MAX_DECODED_BYTES,
    source: str = "record batch",
    position: int = 0,
) -> OffsetAndTime | None:
    """The first record from an offset on with a time of `timestamp_ms` or later; None when the batch has none (its
    header may claim one).

    With log append time all records carry the batch's max timestamp. Raises: Corrupt; TooLarge above `max_bytes`.
    """
    times = pace(_Inside(batch, max_bytes, source, position).times())
    return next((found for found in times if found.timestamp_ms >= timestamp_ms and found.offset >= from_offset), None)


def offset_of_max_timestamp(
    batch: Buffer,
    *,
    from_offset: int = 0,
    pace: Pace = iter,
    max_bytes: int = MAX_DECODED_BYTES,
    source: str = "record batch",
    position: int = 0,
) -> OffsetAndTime | None:
    """The first record that carries the highest time of those from `from_offset` on; None when no record has a time.
    Raises: as above."""
    best: OffsetAndTime | None = None
    for found in pace(_Inside(batch, max_bytes, source, position).times()):
        if found.offset >= from_offset and found.timestamp_ms > (best.timestamp_ms if best else NO_TIMESTAMP_MS):
            best = found
    return best


class _Inside:
    """The decompressed records of a batch, and where we are in them."""

    __slots__ = ("_position", "_source", "data", "header")

    def __init__(self, batch: Buffer, max_bytes: int, source: str, position: int) -> None:
        view = memoryview(batch)
        if len(view) < BATCH_HEADER_BYTES:
            raise Corrupt(f"batch is cut short: {len(view)} bytes", source=source, position=position)
        self.header: BatchHeader = parse_header(view)
        self._source = source
        self._position = position + BATCH_HEADER_BYTES
        body = view[BATCH_HEADER_BYTES : max(BATCH_HEADER_BYTES, self.header.size_bytes)]
        opened = decompress(self.header.compression, body, max_bytes, source=source, position=self._position)
        # One copy, because indexing bytes is faster than indexing a view.
        self.data = bytes(opened)
        if self.header.record_count * LEAST_RECORD_BYTES > len(self.data) or self.header.record_count < 0:
            self.refuse(f"the batch claims {self.header.record_count} records in {len(self.data)} bytes")

    def refuse(self, reason: str) -> NoReturn:
        raise Corrupt(reason, source=self._source, position=self._position)

    def frames(self) -> Iterator[Frame]:
        """(key position, record end, timestamp, offset) of each record. Raises: Corrupt, IndexError."""
        data, header = self.data, self.header
        at = 0
        previous = -1
        for number in range(header.record_count):
            size, at = self.varint(at)
            end = at + size
            if size < LEAST_RECORD_BYTES - 1 or end > len(data):
                self.refuse(f"record {number} claims {size} bytes, {len(data) - at} are left")
            timestamp_delta, at = self.varint(at + 1)
            delta, at = self.varint(at)
            if at > end:
                self.refuse(f"record {number} is cut short: its fields pass its end")
            if not previous < delta <= header.last_offset_delta:
                self.refuse(
                    f"record {number} has offset delta {delta} after {previous}, last is {header.last_offset_delta}"
                )
            previous = delta
            stamp = header.max_timestamp_ms if header.is_log_append_time else header.base_timestamp_ms + timestamp_delta
            yield at, end, stamp, header.base_offset + delta
            at = end
        if at != len(data):
            self.refuse(f"{len(data) - at} bytes are left after the last record")

    def times(self) -> Iterator[OffsetAndTime]:
        try:
            for _, _, timestamp_ms, offset in self.frames():
                yield OffsetAndTime(offset, timestamp_ms)
        except IndexError:
            self.refuse("a record is cut short")

    def varint(self, at: int) -> tuple[int, int]:
        data = self.data
        byte = data[at]
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), at + 1
        value = byte & 0x7F
        for shift in range(7, _MAX_VARINT_BITS, 7):
            at += 1
            byte = data[at]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1), at + 1
        self.refuse("a number is longer than 10 bytes")

    def bytes_or_none(self, at: int, end: int, what: str) -> tuple[bytes | None, int]:
        size, at = self.varint(at)
        if size == -1:
            return None, at
        if not 0 <= size <= end - at:
            self.refuse(f"a record's {what} claims {size} bytes, {end - at} are left")
        return self.data[at : at + size], at + size

    def headers(self, at: int, end: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
        count, at = self.varint(at)
        if count == 0:
            return (), at
        if not 0 < count <= end - at:
            self.refuse(f"a record claims {count} headers in {end - at} bytes")
        found: list[tuple[str, bytes | None]] = []
        for _ in range(count):
            name, at = self.bytes_or_none(at, end, "header name")
            if name is None:
                self.refuse("a record's header has no name")
            value, at = self.bytes_or_none(at, end, "header value")
            # Kafka's clients send UTF-8, but nothing enforces it. An invalid byte must not hide the record, and its
            # replacement must be text that can be encoded, because names go into JSON and pages. Java's client replaces
            # it, too.
            found.append((name.decode("utf-8", "replace"), value))
        return tuple(found), at


# Encoding ---------------------------------------------------------------------------------------------------------
def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    epoch: int = -1,
    compression: int = 0,
    is_log_append_time: bool = False,
    max_timestamp_ms: int | None = None,
    is_transactional: bool = False,
    is_control: bool = False,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    last_offset_delta: int | None = None,
) -> bytes:
    """One batch of these records, whose offsets rise from `base_offset` on (NEXT_OFFSET: one after the other).

    `max_timestamp_ms` defaults to the records' own maximum; with log append time it is every record's time.
    `last_offset_delta`: of a batch that spans offsets behind its last record.
    Raises: InvalidRequest for no records, or for offsets that do not rise.
    """
    if not records:
        raise InvalidRequest("a batch needs at least one record")
    base_timestamp_ms = records[0].timestamp_ms
    out = bytearray()
    delta = -1
    for record in records:
        previous = delta
        delta = previous + 1 if record.offset == NEXT_OFFSET else record.offset - base_offset
        if delta <= previous:
            raise InvalidRequest(f"record offsets must rise from {base_offset} on: {record.offset} does not")
        body = _encode_record(record, record.timestamp_ms - base_timestamp_ms, delta)
        _put_varint(out, len(body))
        out += body
    if max_timestamp_ms is None:
        max_timestamp_ms = max(record.timestamp_ms for record in records)
    attributes = compression | is_log_append_time << 3 | is_transactional << 4 | is_control << 5
    payload = compress(compression, bytes(out))
    rest = _BODY.pack(
        attributes,
        delta if last_offset_delta is None else last_offset_delta,
        base_timestamp_ms,
        max_timestamp_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    length = BATCH_HEADER_BYTES - 12 + len(payload)
    head = _HEAD.pack(base_offset, length, epoch, MAGIC, crc32c(payload, crc32c(rest)))
    assert len(head) == ATTRIBUTES_AT
    return head + rest + payload


def encode_empty_batches(base_offset: int, end_offset: int, *, epoch: int) -> bytes:
    """Batches without records in the place of `[base_offset, end_offset)`: mostly one, for it spans 2^31 offsets.

    Requires: base_offset < end_offset.
    """
    out = bytearray()
    while base_offset < end_offset:
        count = min(end_offset - base_offset, 1 << 31)
        rest = _BODY.pack(0, count - 1, NO_TIMESTAMP_MS, NO_TIMESTAMP_MS, NO_PRODUCER_ID, -1, -1, 0)
        out += _HEAD.pack(base_offset, BATCH_HEADER_BYTES - 12, epoch, MAGIC, crc32c(rest)) + rest
        base_offset += count
    return bytes(out)


def _encode_record(record: Record, timestamp_delta: int, offset_delta: int) -> bytearray:
    out = bytearray(1)
    _put_varint(out, timestamp_delta)
    _put_varint(out, offset_delta)
    _put_bytes(out, record.key)
    _put_bytes(out, record.value)
    _put_varint(out, len(record.headers))
    for name, value in record.headers:
        _put_bytes(out, name.encode("utf-8", "surrogateescape"))
        _put_bytes(out, value)
    return out


def _put_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)
        return
    _put_varint(out, len(value))
    out += value


def _put_varint(out: bytearray, value: int) -> None:
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
