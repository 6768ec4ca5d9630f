"""What a waiting fetch has counted: the bytes that each of its partitions could give by now.

A fetch that wants `min_bytes` is told of every append to its shards. It reads nothing for that: it adds what came, and
looks at all its partitions again only once the sum may be enough, or when something else than an append befell a shard.
Lives on the event loop. Cost: below a microsecond for each append and waiting fetch.
"""

from __future__ import annotations

from stratalog.kafka.fetch import PartitionFetch
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.shards.read.reading import Read


class PartitionCount:
    """One partition, as it was at the last look, and what it has grown by since."""

    __slots__ = ("_active", "_grows", "_is_cut", "_log_start_offset", "_most_bytes", "_position", "size_bytes")

    def __init__(self, shard: ShardLog, wanted: PartitionFetch, read: Read | None) -> None:
        """`read`: what the look found, None when there was nothing below the high watermark."""
        active = self._active = shard.active
        self._log_start_offset = shard.log_start_offset
        self._most_bytes = wanted.max_bytes
        self.size_bytes = read.size_bytes if read is not None else 0
        end_offset = read.next_offset if read is not None else wanted.fetch_offset
        # An answer has batches of one segment, up to a limit: behind what was cut short there nothing is added.
        self._is_cut = end_offset < shard.high_watermark
        self._grows = False
        self._position = 0
        if active is not None:
            self._grows = end_offset == shard.high_watermark and wanted.fetch_offset >= active.key.base_offset
            self._position = active.hw_position

    def grow(self, shard: ShardLog) -> int | None:
        """The shard moved: how many bytes more it could give. None: look again to know."""
        active = self._active
        if shard.active is not active or shard.log_start_offset != self._log_start_offset or shard.stop is not None:
            return None
        if not shard.is_leader:
            return None
        if self._is_cut:
            return 0
        if active is None or not self._grows:
            return None
        position, before = active.hw_position, self.size_bytes
        size = min(before + position - self._position, self._most_bytes)
        self._position = position
        if size <= before:
            return 0
        self.size_bytes = size
        return size - before
