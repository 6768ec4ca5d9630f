"""Local copies of segments: the active one, sealed ones, followed ones, and the context that all parts of the shards
use."""

__all__ = (
    "active",
    "active_age",
    "cold_reads",
    "context",
    "direct_room",
    "due_shards",
    "events",
    "file_creations",
    "local_copy",
    "local_shard",
    "missing_files",
    "peer_reads",
    "producer_tables",
    "sealed",
    "sealed_points",
    "shard_view",
    "stats",
    "stopped",
    "write_gate",
)
