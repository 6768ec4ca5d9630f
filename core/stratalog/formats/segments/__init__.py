"""What a segment has on disk and in the bucket alike: its digest, index points, producers and seal."""

__all__ = (
    "digest",
    "index_block",
    "index_points",
    "producers",
    "seal",
)
