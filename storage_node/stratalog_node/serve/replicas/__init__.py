"""Fetches of other nodes: sessions of followers, and sealed segments that this node proved."""

__all__ = ("replica_requests",)
