"""Makes appended bytes durable, and watches the disk and its room."""

__all__ = (
    "disk_watch",
    "flusher",
    "shard_lookup",
    "space",
)
