"""Follows a segment that another node leads: what to fetch, from which node, and what to promise."""

__all__ = (
    "copies_to_report",
    "copy_sources",
    "fetch_rounds",
    "fetch_session",
    "followed_segments",
    "follower_events",
    "segment_follower",
)
