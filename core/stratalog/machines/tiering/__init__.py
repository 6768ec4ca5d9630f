"""Decides what goes to the object store, what expires, and what is deleted there."""

__all__ = (
    "age_clock",
    "bundles",
    "chunk_merging",
    "chunk_packing",
    "claims",
    "mounted_uploads",
    "orphans",
    "part_chain",
    "retention",
    "upload_duty",
    "upload_events",
    "upload_state",
    "uploader",
)
