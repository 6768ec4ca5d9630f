"""The record batch v2 at rest: header, check, stored prefix, walk, torn tail (docs/formats.md section 2).

`parse_header` is the hot path: no checks, about 0.4 us. Everything that reads stored bytes uses the checking functions.
In those, `position` says where the bytes given begin in `source`; it is used for messages only. Positions that are
returned count from the first byte given.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from crc32c import crc32c

from stratalog.formats.fields import Buffer
from stratalog.model.batch import BATCH_HEADER_BYTES, BatchHeader
from stratalog.model.errors import Corrupt

MAGIC = 2
LENGTH_AT = 8
EPOCH_AT = 12
MAGIC_AT = 16
CRC_AT = 17
ATTRIBUTES_AT = 21
UNCOUNTED_BYTES = 12
"""Bytes of a batch that its own length field does not count: base offset and length."""
STORED_PREFIX_BYTES = 16

_LOG_APPEND_TIME = 0x08

_HEADER = struct.Struct(">qiixIhiqqqhii")
_PREFIX = struct.Struct(">qii")
_LENGTH = struct.Struct(">i")
_OFFSET_AND_EPOCH = struct.Struct(">q4xi")
_CRC_AND_ATTRIBUTES = struct.Struct(">Ih")
_MAX_TIMESTAMP = struct.Struct(">q")
_new_header = tuple.__new__


def parse_header(buf: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position` of `buf`, unchecked: what it says, not whether it is true.

    Requires: 61 bytes from `position` on. Raises: struct.error when there are fewer.
    """
    base, length, epoch, crc, attributes, delta, base_ts, max_ts, producer, producer_epoch, sequence, count = (
        _HEADER.unpack_from(buf, position)
    )
    # tuple.__new__ saves a third of a NamedTuple's construction.
    return _new_header(
        BatchHeader,
        (base, length + 12, epoch, crc, attributes, delta, base_ts, max_ts, producer, producer_epoch, sequence, count),
    )


def offset_and_epoch(buf: Buffer) -> tuple[int, int]:
    """Of the batch at the front, unchecked: where in the log it says that it belongs. Raises: struct.error."""
    base_offset, epoch = _OFFSET_AND_EPOCH.unpack_from(buf)
    return base_offset, epoch


def check_batch(view: Buffer, *, source: str, position: int = 0) -> BatchHeader:
    """Check that `view` is exactly one whole, intact batch.

    Base offset and epoch lie outside the CRC: the caller compares them with what it expects (`walk` can).
    Raises: Corrupt.
    """
    view = memoryview(view)
    fault = _header_fault(view)
    if fault is not None:
        raise Corrupt(fault[1], source=source, position=position + fault[0])
    header = parse_header(view)
    if header.size_bytes != len(view):
        raise Corrupt(
            f"batch claims {header.size_bytes} bytes, {len(view)} are there",
            source=source,
            position=position + LENGTH_AT,
        )
    computed = crc32c(view[ATTRIBUTES_AT:])
    if computed != header.crc:
        raise Corrupt(_crc_words(header, computed), source=source, position=position + CRC_AT)
    fault = _field_fault(header)
    if fault is not None:
        raise Corrupt(fault[1], source=source, position=position + fault[0])
    return header


def stored_prefix(base_offset: int, size_bytes: int, epoch: int) -> bytes:
    """The 16 bytes that replace a client's first 16: both fields they change lie outside the CRC."""
    return _PREFIX.pack(base_offset, size_bytes - 12, epoch)


def log_append_header(batch: Buffer, base_offset: int, epoch: int, timestamp_ms: int) -> bytes:
    """The 61 bytes that replace a client's header on a topic with log append time: the CRC is made again.

    Cost: one CRC over the batch.
    """
    view = memoryview(batch)
    header = bytearray(view[:BATCH_HEADER_BYTES])
    _PREFIX.pack_into(header, 0, base_offset, len(view) - 12, epoch)
    attributes = _CRC_AND_ATTRIBUTES.unpack_from(header, CRC_AT)[1] | _LOG_APPEND_TIME
    _MAX_TIMESTAMP.pack_into(header, 35, timestamp_ms)
    _CRC_AND_ATTRIBUTES.pack_into(header, CRC_AT, 0, attributes)
    crc = crc32c(view[BATCH_HEADER_BYTES:], crc32c(memoryview(header)[ATTRIBUTES_AT:]))
    _CRC_AND_ATTRIBUTES.pack_into(header, CRC_AT, crc, attributes)
    return bytes(header)


def first_timestamp_ms(header: BatchHeader) -> int:
    """The time of a batch's first record, as far as the header says."""
    return header.max_timestamp_ms if header.is_log_append_time else header.base_timestamp_ms


def walk(
    data: Buffer,
    *,
    source: str,
    position: int = 0,
    verify: bool = True,
    expected_base_offset: int | None = None,
    epoch: int | None = None,
) -> Iterator[tuple[int, BatchHeader]]:
    """Every batch of `data`, which must be whole batches back to back, as (position in `data`, header).

    With `expected_base_offset` offsets must continue from there, with `epoch` every batch must carry it; `verify=False`
    leaves the CRC out (bytes that were checked already). Raises: Corrupt at the first bad batch.
    """
    view = memoryview(data)
    end = len(view)
    at = 0
    while at < end:
        header, fault = _next_batch(view, at, expected_base_offset, epoch, verify)
        if header is None:
            where, reason = fault
            raise Corrupt(reason, source=source, position=position + at + where)
        yield at, header
        at += header.size_bytes
        if expected_base_offset is not None:
            expected_base_offset = header.end_offset


@dataclass(frozen=True, slots=True)
class ValidPrefix:
    """How far a log can be trusted. `end_position` is where the last whole, valid, contiguous batch ends."""

    end_position: int
    next_offset: int
    headers: tuple[tuple[int, BatchHeader], ...]
    """(position, header) of each valid batch."""
    reason: str | None
    """Why the scan stopped, naming the byte; None when the data ended exactly after a batch."""
    wanted_bytes: int
    """When the data ends inside a batch: how many bytes from `end_position` on are needed to judge it; else 0."""


def scan_valid_prefix(data: Buffer, expected_base_offset: int, epoch: int, *, position: int = 0) -> ValidPrefix:
    """Find the end of the valid batches in the tail of an active segment. Never raises: a torn tail is not an error.

    To scan a file in windows, call again with more bytes from `end_position` on while `wanted_bytes` is above 0 and the
    file holds as much; when it does not, the tail is torn there.
    """
    view = memoryview(data)
    end = len(view)
    at = 0
    next_offset = expected_base_offset
    found: list[tuple[int, BatchHeader]] = []
    while at < end:
        header, fault = _next_batch(view, at, next_offset, epoch, True)
        if header is None:
            where, reason = fault
            wanted = _wanted_bytes(view, at)
            return ValidPrefix(at, next_offset, tuple(found), f"at byte {position + at + where}: {reason}", wanted)
        found.append((at, header))
        at += header.size_bytes
        next_offset = header.end_offset
    return ValidPrefix(at, next_offset, tuple(found), None, 0)


_NO_FAULT = (0, "")


def _next_batch(
    view: memoryview, at: int, expected_base_offset: int | None, epoch: int | None, verify: bool
) -> tuple[BatchHeader | None, tuple[int, str]]:
    """The batch at `at`, or None and (byte within the batch, reason)."""
    rest = view[at:]
    fault = _header_fault(rest)
    if fault is not None:
        return None, fault
    header = parse_header(rest)
    if header.size_bytes > len(rest):
        return None, (LENGTH_AT, f"batch is cut short: it claims {header.size_bytes} bytes, {len(rest)} are left")
    if verify:
        computed = crc32c(rest[ATTRIBUTES_AT : header.size_bytes])
        if computed != header.crc:
            return None, (CRC_AT, _crc_words(header, computed))
    fault = _field_fault(header)
    if fault is not None:
        return None, fault
    if expected_base_offset is not None and header.base_offset != expected_base_offset:
        return None, (0, f"batch has base offset {header.base_offset}, expected {expected_base_offset}")
    if epoch is not None and header.epoch != epoch:
        return None, (EPOCH_AT, f"batch has epoch {header.epoch}, the segment has {epoch}")
    return header, _NO_FAULT


def _header_fault(view: memoryview) -> tuple[int, str] | None:
    """What is wrong before the CRC can be computed: too few bytes, no batch at all, a length that cannot be."""
    if len(view) < BATCH_HEADER_BYTES:
        return len(view), f"batch header is cut short: {len(view)} of {BATCH_HEADER_BYTES} bytes"
    magic = view[MAGIC_AT]
    length = _LENGTH.unpack_from(view, LENGTH_AT)[0]
    if magic != MAGIC:
        if not any(view[:BATCH_HEADER_BYTES]):
            return 0, "zeros where a batch should begin"
        return MAGIC_AT, f"batch has magic {magic}, expected {MAGIC}"
    if length < BATCH_HEADER_BYTES - 12:
        return LENGTH_AT, f"batch has length {length}, below the smallest possible {BATCH_HEADER_BYTES - 12}"
    return None


def _field_fault(header: BatchHeader) -> tuple[int, str] | None:
    if header.base_offset < 0:
        return 0, f"batch has base offset {header.base_offset}"
    if header.last_offset_delta < 0:
        return 23, f"batch has last offset delta {header.last_offset_delta}"
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        return 57, f"batch has {header.record_count} records in {header.last_offset_delta + 1} offsets"
    return None


def _wanted_bytes(view: memoryview, at: int) -> int:
    """How long the data from `at` on must be to judge the batch there, when it is not that long; else 0."""
    held = len(view) - at
    if held < BATCH_HEADER_BYTES:
        return BATCH_HEADER_BYTES
    if view[at + MAGIC_AT] != MAGIC:
        return 0
    size: int = _LENGTH.unpack_from(view, at + LENGTH_AT)[0] + 12
    return size if size > held else 0


def _crc_words(header: BatchHeader, computed: int) -> str:
    return f"batch of {header.size_bytes} bytes has CRC {header.crc:08x}, its bytes have {computed:08x}"
