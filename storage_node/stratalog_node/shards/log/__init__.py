"""The shards of a node as logs: they take batches, open new segments, hand over leadership, and are found by name."""

__all__ = (
    "ages",
    "append",
    "directory",
    "disk_usage",
    "handing_over",
    "new_segment",
    "shard_log",
    "workers",
)
