"""What uploads and sweeps share: the write lock and its claim on the bucket, counters, rounds of work."""

__all__ = (
    "claim",
    "lock",
    "periodic_task",
    "remote_copy",
    "side_by_side",
    "stats",
    "wrong_store",
)
