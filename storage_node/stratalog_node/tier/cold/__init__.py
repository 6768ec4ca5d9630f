"""Reads cold data back from the object store: verified blocks, read ahead, bounded memory."""

__all__ = (
    "cold_limits",
    "cold_reader",
    "remote_reads",
)
