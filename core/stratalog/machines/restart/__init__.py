"""Restarts and heals a shard: brings what the disk holds together with what the metadata say."""

__all__ = (
    "missing_copy",
    "restart_events",
    "shard_healing",
    "shard_restart",
)
