"""The age of the newest record of a shard's active segment: retention also ends that segment once all of it is old.

Lives on the event loop; files are read on the disk threads. What was read once for the times of its records is not read
again, neither here nor by the seal (`shards/copies/read_back.py`).
"""

from __future__ import annotations

import os

from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.model.segment import TimesKnown
from stratalog_node.shards.copies.active import ActiveSegment
from stratalog_node.shards.copies.local_shard import LocalShard
from stratalog_node.shards.copies.shard_view import NewestRecord


def may_be_before(shard: LocalShard, before_ms: int) -> bool:
    """Whether the newest record of the active segment may be older, so that a precise check is worth it. Cost: under 1
    us."""
    active = shard.active
    if active is None or active.leader.end_offset == active.key.base_offset:
        return False
    begun_ms = active.leader.first_append_ms
    return active.index.max_timestamp_ms < before_ms or (begun_ms is not None and begun_ms < before_ms)


async def newest_record(shard: LocalShard, before_ms: int) -> NewestRecord | None:
    """None where the newest record is not older than `before_ms`, or where that is not known: not all is committed, or
    something was appended meanwhile. Raises: Corrupt, NotFound, Unavailable."""
    active = shard.active
    if active is None or not active.leader.is_wholly_committed or not active.leader.is_confirmed:
        return None
    end_offset = active.leader.end_offset
    newest_ms = await shard.context.threads.read_file(active.file, lambda: _newest_ms(active, before_ms))
    has_grown = shard.active is not active or active.leader.end_offset != end_offset
    return None if newest_ms >= before_ms or has_grown else NewestRecord(end_offset, newest_ms)


def _newest_ms(active: ActiveSegment, before_ms: int) -> int:
    """Blocking. Batches are opened only where the last write is old, or all that headers claim is."""
    written_ms = int(os.stat(active.file.path).st_mtime * 1_000)
    if written_ms >= before_ms and active.index.max_timestamp_ms >= before_ms:
        return written_ms
    end_position = active.file.size_bytes - SEGMENT_HEADER_BYTES
    index = active.read_back.times_below(active.window_reader(), end_position)
    if index.times_known is TimesKnown.ALL and index.max_timestamp_ms >= 0:
        return index.max_timestamp_ms
    return max(index.max_timestamp_ms, written_ms)
