"""Worlds in which segments move to the bucket and local copies are freed."""

__all__ = ("stored_copies", "uploading")
