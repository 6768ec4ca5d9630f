"""Rebuilds the meta service's table from a snapshot and from the objects in the bucket."""

__all__ = (
    "meta_backups",
    "shard",
    "table",
)
