"""What a fetch is answered of a partition that it cannot have. Every code makes all clients try again, unless the user
must hear of it. Pure."""

from __future__ import annotations

from stratalog.kafka.error_codes import ErrorCode
from stratalog.kafka.fetch import FetchedPartition
from stratalog.model.errors import Corrupt, NotFound, OutOfReach, StratalogError, Unavailable
from stratalog_node.serve.connections.serving import ServeStats
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.shards.read.reading import ReadBuffer


def code_of(error: StratalogError, stats: ServeStats) -> int:
    """Of a read that failed."""
    if isinstance(error, NotFound):
        return ErrorCode.OFFSET_NOT_AVAILABLE
    if isinstance(error, Corrupt):
        # The client must hear of it: behind a retriable code a consumer would wait forever and not know why.
        return ErrorCode.CORRUPT_MESSAGE
    if isinstance(error, OutOfReach):
        # What Kafka answers where remote storage fails: clients go on, and say so to their users.
        return ErrorCode.UNKNOWN_SERVER_ERROR
    if isinstance(error, Unavailable):
        stats.reads_unavailable += 1
        # Retriable: consumers must not jump because a store is slow (F40).
        return ErrorCode.KAFKA_STORAGE_ERROR
    return ErrorCode.UNKNOWN_SERVER_ERROR


def failed(partition: int, code: int, shard: ShardLog | None) -> FetchedPartition[ReadBuffer]:
    if shard is not None and not shard.is_leader:
        # Whatever a replica cannot read its leader may.
        return FetchedPartition(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1, -1, current_leader=shard.leader)
    if shard is None or not shard.is_end_known:
        return FetchedPartition(partition, code, -1, -1, -1)
    return FetchedPartition(partition, code, shard.high_watermark, shard.last_stable_offset, shard.log_start_offset)
