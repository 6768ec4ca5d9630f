"""A record batch as a client offered it: check it by its header, put in what the log adds. In place, on the hot path.

The broker may change the base offset, the leader epoch (both outside the CRC) and, under LogAppendTime, the timestamp.
Nothing here copies a batch or looks at its records.
Source: https://kafka.apache.org/documentation/#recordbatch; docs/formats.md "Record batch".
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import NamedTuple, TypeAlias

from crc32c import crc32c

_HEADER = struct.Struct(">qiibIhiqqqhii")
_HEADER_BYTES = _HEADER.size
_LENGTH_FROM = 12

OfferedHeader: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
"""baseOffset, batchLength, partitionLeaderEpoch, magic, crc, attributes, lastOffsetDelta, baseTimestamp, maxTimestamp,
producerId, producerEpoch, baseSequence, recordsCount: a plain tuple, because it is made per batch."""

CRC_FROM = 21
"""The CRC-32C covers the batch from its attributes on."""

LEAST_RECORD_BYTES = 7
"""Length, attributes, two deltas, no key, no value, no headers: one byte each."""

LARGEST_DECODED_BYTES = 64 << 20
"""What a batch's records may take decompressed: no look-up opens more."""

_MOST_EXPANSION = (1, 1_032, 22, 255, 32_768)
"""What one byte can become, by codec: gzip 258 bytes of 2 bits, snappy 64 of 3 bytes, lz4 255 of one, zstd a block of
128 KiB of 4."""

_CODEC_BITS = 0x07
_TRANSACTIONAL_BIT = 0x10
_CONTROL_BIT = 0x20
LZ4, ZSTD = 3, 4

_CRC_AND_ATTRIBUTES = struct.Struct(">Ih")
_CRC_AT = 17
_MAGIC_AT = 16
_OLD_MAGICS = (0, 1)
_MAX_TIMESTAMP_AT = 35
LOG_APPEND_TIME_BIT = 0x08
_I64 = struct.Struct(">q")
_I32 = struct.Struct(">i")
_EPOCH_AT = 12

_MOST_LOCKED_BYTES = 1 << 20
"""Up to this size (50 us) the CRC runs without releasing the interpreter's lock. If the loop released it for 5 us, it
would get it back only when the disk thread that took it is done, which costs more than the CRC."""
_KEEP_LOCK, _GIVE_LOCK = 0, 1


class BatchFault(Enum):
    """What is wrong with an offered batch. Closed: who answers clients has a code for each."""

    NO_BATCH = "there are too few bytes for a batch"
    NOT_WHOLE = "its bytes are not those of a whole batch"
    OLD_MAGIC = "it is of an older format"
    SEVERAL = "more than one batch was sent as one"
    WRONG_CRC = "its bytes were changed on their way"
    WRONG_COUNT = "its number of records cannot be true"
    CONTROL = "it is a control batch, which only the log makes"
    TRANSACTIONAL = "it belongs to a transaction"
    WRONG_SEQUENCE = "it has a producer, and no sequence or epoch"
    UNKNOWN_CODEC = "no consumer can decompress it"
    TOO_LARGE = "it is larger than the topic allows"
    WRONG_TIME = "its timestamp is outside the topic's window"


class FaultyBatch(NamedTuple):
    """An offered batch that is not taken. Nothing of it was changed."""

    fault: BatchFault
    message: str


def check_offered(batch: memoryview, most_bytes: int, newest_codec: int = ZSTD) -> OfferedHeader | FaultyBatch:
    """The header's fields of one batch that may be appended, or what is wrong with it.

    `most_bytes` counts the whole batch; `newest_codec` is the highest number that all its readers understand. What is
    wrong with a batch on every topic is said before the limits of this one. The topic's window of timestamps is
    `formats.batches.time_window`'s.
    Cost: the CRC over its bytes, and about 1 us.
    """
    size = len(batch)
    if size < _HEADER_BYTES:
        if size > _MAGIC_AT and batch[_MAGIC_AT] in _OLD_MAGICS:
            return FaultyBatch(
                BatchFault.OLD_MAGIC, f"magic {batch[_MAGIC_AT]}: only record batches of magic 2 are taken"
            )
        return FaultyBatch(BatchFault.NO_BATCH, f"a record batch has more than {size} bytes")
    header: OfferedHeader = _HEADER.unpack_from(batch)
    _, length, _, magic, crc, attributes, last_delta, _, _, producer_id, epoch, sequence, count = header
    if magic != 2:
        return FaultyBatch(BatchFault.OLD_MAGIC, f"magic {magic}: only record batches of magic 2 are taken")
    if length + _LENGTH_FROM != size:
        if _HEADER_BYTES - _LENGTH_FROM <= length < size - _LENGTH_FROM:
            return FaultyBatch(BatchFault.SEVERAL, "more than one record batch for one partition")
        return FaultyBatch(BatchFault.NOT_WHOLE, f"batch length {length} in {size} bytes")
    if crc32c(batch[CRC_FROM:], 0, _KEEP_LOCK if size <= _MOST_LOCKED_BYTES else _GIVE_LOCK) != crc:
        return FaultyBatch(BatchFault.WRONG_CRC, "the batch's CRC does not match its bytes")
    if count <= 0 or last_delta != count - 1:
        return FaultyBatch(BatchFault.WRONG_COUNT, f"{count} records with last offset delta {last_delta}")
    if attributes & (_CONTROL_BIT | _TRANSACTIONAL_BIT):
        if attributes & _CONTROL_BIT:
            return FaultyBatch(BatchFault.CONTROL, "clients may not write control batches")
        return FaultyBatch(BatchFault.TRANSACTIONAL, "transactions are not offered yet")
    if producer_id >= 0 and (sequence < 0 or epoch < 0):
        return FaultyBatch(BatchFault.WRONG_SEQUENCE, f"producer {producer_id} with sequence {sequence}, epoch {epoch}")
    codec = attributes & _CODEC_BITS
    if codec > newest_codec:
        return FaultyBatch(BatchFault.UNKNOWN_CODEC, f"compression {codec}: {newest_codec} is the highest taken here")
    if count * LEAST_RECORD_BYTES > size - _HEADER_BYTES and count > (
        most := records_that_fit(codec, size - _HEADER_BYTES)
    ):
        return FaultyBatch(BatchFault.WRONG_COUNT, f"{count} records in {size} bytes: at most {most} can be in them")
    if size > most_bytes:
        return FaultyBatch(BatchFault.TOO_LARGE, f"batch of {size} bytes, max.message.bytes is {most_bytes}")
    return header


def records_that_fit(codec: int, payload_bytes: int) -> int:
    """How many records a payload of this size can hold at most. A batch that claims more is refused: its offsets would
    be made of nothing."""
    return min(payload_bytes * _MOST_EXPANSION[codec], LARGEST_DECODED_BYTES) // LEAST_RECORD_BYTES


def assign(batch: memoryview, base_offset: int, epoch: int) -> None:
    """Write the offset and the epoch that the log gives; both lie outside the CRC."""
    _I64.pack_into(batch, 0, base_offset)
    _I32.pack_into(batch, _EPOCH_AT, epoch)


def stamp_append_time(batch: memoryview, attributes: int, now_ms: int) -> None:
    """Give the batch the time of its append; flag and time are under the CRC, which is computed again."""
    _CRC_AND_ATTRIBUTES.pack_into(batch, _CRC_AT, 0, attributes | LOG_APPEND_TIME_BIT)
    _I64.pack_into(batch, _MAX_TIMESTAMP_AT, now_ms)
    _CRC_AND_ATTRIBUTES.pack_into(batch, _CRC_AT, crc32c(batch[CRC_FROM:]), attributes | LOG_APPEND_TIME_BIT)


def clear_append_time(batch: memoryview, attributes: int) -> OfferedHeader:
    """A client claims that the log gave the batch its time: clear the flag, which is under the CRC. Returns: the
    header by then."""
    attributes &= ~LOG_APPEND_TIME_BIT
    _CRC_AND_ATTRIBUTES.pack_into(batch, _CRC_AT, 0, attributes)
    _CRC_AND_ATTRIBUTES.pack_into(batch, _CRC_AT, crc32c(batch[CRC_FROM:]), attributes)
    header: OfferedHeader = _HEADER.unpack_from(batch)
    return header
