"""Kafka's batch v2 and the records in it: headers, bodies, compression, times."""

__all__ = (
    "batch_bodies",
    "batch_headers",
    "batch_scan",
    "compression",
    "offered_batch",
    "record_batch",
    "record_frames",
    "record_times",
    "records",
    "time_window",
)
