"""Worlds about leaders: they fail over, hand their shards over, and lead on disks that hang."""

__all__ = ("failovers", "handovers", "hanging")
