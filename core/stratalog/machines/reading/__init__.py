"""Decides where a range of a shard is read: local copy, another node, or the object store."""

__all__ = (
    "answer_size",
    "bucket_reads",
    "cold_rates",
    "consistent_cut",
    "eviction_order",
    "fair_queue",
    "read_policy",
    "read_range",
    "read_replica",
    "read_sources",
    "read_window",
    "shard_readers",
)
