"""Worlds in which segments move to the bucket and local copies are freed, or whose topic is acknowledged there."""

__all__ = ("direct", "stored_copies", "uploading")
