"""What a consumer gets if its position lies in a batch without records, as an unclean seal or a forced retirement
leaves them: the next batch with records, or, if there is none yet, a control batch with the same end.

An answer with only batches without records makes segmentio's client deliver an earlier record again and again, and
KafkaJS stay before them. If records follow in the same answer every client continues behind them, so those answers stay
as they are. Every client skips control batches and continues behind them. The one record of this control batch has an
offset below the requested one, because segmentio's client delivers what a control batch holds from the requested offset
on.
Lives on the event loop. Cost: a division for each partition that is answered.
"""

from __future__ import annotations

from stratalog.formats.batches.record_batch import walk
from stratalog.formats.batches.records import Record, encode_batch
from stratalog.model.batch import BATCH_HEADER_BYTES
from stratalog_node.shards.copies.local_shard import LocalShard
from stratalog_node.shards.read.reading import Read, ReadBuffer, ShardReader

_MOST_BYTES = 16 * BATCH_HEADER_BYTES
"""An answer of more batches without records is left as it is: holes are filled with one batch each."""
_MOST_SKIPPED = 8
"""Segments without records that one read skips; the next read continues."""
_MOST_OFFSETS = 1 << 31
"""Limit for one batch."""
_COMMIT_KEY, _COMMIT_VALUE = b"\x00\x00\x00\x01", bytes(6)
"""Key and value of a control record that ends a transaction: version and type; version and the coordinator's epoch."""


def read_hot(reader: ShardReader, shard: LocalShard, offset: int, max_bytes: int, high_watermark: int) -> Read:
    """What is in memory from `offset` on, for a socket. Raises: as `ShardReader.read_hot`."""
    read = reader.read_hot(shard, offset, max_bytes, for_socket=True)
    if not _may_be_empty(read.size_bytes):
        return read
    begin = offset
    for _ in range(_MOST_SKIPPED):
        end_offset = _end_if_empty(read.buffers) if _may_be_empty(read.size_bytes) else None
        if end_offset is None:
            return read
        _release(read)
        begin = end_offset
        if begin >= high_watermark:
            break
        read = reader.read_hot(shard, begin, max_bytes, for_socket=True)
    else:
        _release(read)
    return _control_read(offset, begin)


async def read_with_records(
    reader: ShardReader, shard: LocalShard, offset: int, max_bytes: int, high_watermark: int, client: str
) -> Read:
    """The same for a client id, from wherever the data is. Raises: as `ShardReader.read`."""
    begin = offset
    for _ in range(_MOST_SKIPPED):
        read = await reader.read(shard, begin, max_bytes, client)
        end_offset = _end_if_empty(read.buffers) if _may_be_empty(read.size_bytes) else None
        if end_offset is None:
            return read
        _release(read)
        begin = end_offset
        if end_offset >= high_watermark:
            break
    return _control_read(offset, begin)


def control_batch(offset: int, end_offset: int) -> bytes:
    """A control batch for a reader at `offset`, whose next offset is then `end_offset`, or as far as one batch
    spans."""
    base_offset = max(offset - 1, 0)
    end_offset = min(end_offset, base_offset + _MOST_OFFSETS)
    marker = Record(base_offset, -1, _COMMIT_KEY, _COMMIT_VALUE)
    return encode_batch(
        [marker], base_offset=base_offset, epoch=0, is_control=True, last_offset_delta=end_offset - base_offset - 1
    )


def _control_read(offset: int, end_offset: int) -> Read:
    data = control_batch(offset, end_offset)
    return Read([data], len(data), next_offset=end_offset)


def _may_be_empty(size_bytes: int) -> bool:
    return not size_bytes % BATCH_HEADER_BYTES and size_bytes <= _MOST_BYTES


def _end_if_empty(buffers: list[ReadBuffer]) -> int | None:
    """The end of whole batches, if none of them has a record. Requires: `_may_be_empty`."""
    data = b"".join(Read(buffers, 0).in_memory())
    headers = [header for _, header in walk(data, source="batches that were read", verify=False)]
    return None if not headers or any(header.record_count for header in headers) else headers[-1].end_offset


def _release(read: Read) -> None:
    read.give_back()
