"""What a client is told of a shard that is not here."""

from __future__ import annotations

from stratalog.kafka.error_codes import ErrorCode
from stratalog_node.shards.catalog import Catalog


def missing_shard_error(catalog: Catalog, topic: str, shard: int) -> int:
    """Unknown here: is it being created (retriable), or is there no such shard?"""
    known = catalog.topic(topic)
    if known is not None and 0 <= shard < known.shard_count:
        return ErrorCode.LEADER_NOT_AVAILABLE
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
