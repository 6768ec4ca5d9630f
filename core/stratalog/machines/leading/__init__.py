"""Leads a shard: appends, acknowledges, tracks the in-sync replicas, rolls from one segment to the next."""

__all__ = (
    "chain_events",
    "disk_health",
    "leader_events",
    "next_check",
    "producer_table",
    "rejected_batches",
    "resigning",
    "sealed_producers",
    "segment_leader",
    "shard_chain",
    "shard_life",
    "shared_segments",
)
