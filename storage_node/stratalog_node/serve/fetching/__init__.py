"""Fetch requests of consumers: batches below the high watermark, hot, cold, and from other replicas."""

__all__ = (
    "fetch",
    "fetch_scheduler",
    "read_replicas",
)
