"""Producers, consumers, readers of mounts and retired directories, and people with requests.

They compare what they get with what the judge knows.
"""

__all__ = (
    "clients",
    "people",
    "volume",
)
