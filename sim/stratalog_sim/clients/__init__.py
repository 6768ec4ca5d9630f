"""Producers and consumers.

They compare what they get with what the judge knows.
"""

__all__ = ("clients",)
