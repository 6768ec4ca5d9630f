"""A record batch as a client offered it: read its header, put in what the log adds. In place, on the hot path.

The broker may change the base offset, the leader epoch (both outside the CRC) and, under LogAppendTime, the timestamp.
Nothing here copies a batch or looks at its records.
Source: https://kafka.apache.org/documentation/#recordbatch; docs/formats.md "Record batch".
"""

from __future__ import annotations

import struct

from crc32c import crc32c

OFFERED_HEADER = struct.Struct(">qiibIhiqqqhii")
"""baseOffset, batchLength, partitionLeaderEpoch, magic, crc, attributes, lastOffsetDelta, baseTimestamp, maxTimestamp,
producerId, producerEpoch, baseSequence, recordsCount: unpacked as a plain tuple, because it is done per batch."""

CRC_FROM = 21
"""The CRC-32C covers the batch from its attributes on."""

LEAST_RECORD_BYTES = 7
"""Length, attributes, two deltas, no key, no value, no headers: one byte each."""

LARGEST_DECODED_BYTES = 64 << 20
"""What a batch's records may take decompressed: no look-up opens more."""

_MOST_EXPANSION = (1, 1_032, 22, 255, 32_768)
"""What one byte can become, by codec: gzip 258 bytes of 2 bits, snappy 64 of 3 bytes, lz4 255 of one, zstd a block of
128 KiB of 4."""

_CRC_AND_ATTRIBUTES = struct.Struct(">Ih")
_CRC_AT = 17
_MAX_TIMESTAMP_AT = 35
_LOG_APPEND_TIME_BIT = 0x08
_I64 = struct.Struct(">q")
_I32 = struct.Struct(">i")
_EPOCH_AT = 12


def most_records(codec: int, payload_bytes: int) -> int:
    """How many records a payload of this size can hold at most. A batch that claims more is refused: its offsets would
    be made of nothing."""
    return min(payload_bytes * _MOST_EXPANSION[codec], LARGEST_DECODED_BYTES) // LEAST_RECORD_BYTES


def assign(batch: memoryview, base_offset: int, epoch: int) -> None:
    """Write the offset and the epoch that the log gives; both lie outside the CRC."""
    _I64.pack_into(batch, 0, base_offset)
    _I32.pack_into(batch, _EPOCH_AT, epoch)


def stamp_append_time(batch: memoryview, attributes: int, now_ms: int) -> None:
    """Give the batch the time of its append; flag and time are under the CRC, which is computed again."""
    _CRC_AND_ATTRIBUTES.pack_into(batch, _CRC_AT, 0, attributes | _LOG_APPEND_TIME_BIT)
    _I64.pack_into(batch, _MAX_TIMESTAMP_AT, now_ms)
    _CRC_AND_ATTRIBUTES.pack_into(batch, _CRC_AT, crc32c(batch[CRC_FROM:]), attributes | _LOG_APPEND_TIME_BIT)
