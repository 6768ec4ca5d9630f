"""Knows what no node knows: each written batch, each decided record, each copy on a disk.

Raises `Broken` as soon as a promise is broken. Changes nothing in the world.
"""

__all__ = (
    "judge",
    "shard_truth",
)
