"""Rolls and seals a shard's segments, and prepares the segments that follow them."""

__all__ = (
    "producers_before",
    "sealing",
)
