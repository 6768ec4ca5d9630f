"""Worlds about leaders: they fail over, hand their shards over, hear late of what others did, and lead on disks that
hang."""

__all__ = ("failovers", "handovers", "hanging", "late_news")
