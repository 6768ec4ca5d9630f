"""The meta service's table of topics, shards, segments, nodes, locks and mounts, and its transactions."""

__all__ = (
    "dump",
    "lives",
    "locks",
    "moves",
    "nodes",
    "records",
    "remote",
    "segments",
    "shard_table",
    "state",
    "topics",
)
