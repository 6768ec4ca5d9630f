"""Reads a shard: from local copies, from other nodes, from the object store, by offset and by time."""

__all__ = (
    "epochs",
    "other_sources",
    "ranges",
    "reading",
    "replica_reads",
    "time_lookups",
    "time_scan",
)
