"""Uploads committed data to the object store: read, build parts, put, commit, publish complete segments."""

__all__ = (
    "committed_ranges",
    "encoder",
    "packer",
    "uploader",
)
