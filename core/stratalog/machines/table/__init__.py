"""The meta service's table of topics, shards, segments, nodes, locks and mounts, and its transactions."""

__all__ = (
    "dump",
    "given_up",
    "lives",
    "locks",
    "mounts",
    "moves",
    "nodes",
    "records",
    "remote",
    "retirement",
    "segments",
    "shard_table",
    "state",
    "topics",
    "user_mounts",
)
