"""The meta service's table of topics, shards, segments, nodes, locks and mounts, and its transactions."""

__all__ = (
    "dump",
    "locks",
    "nodes",
    "records",
    "shard_table",
    "state",
    "topics",
)
