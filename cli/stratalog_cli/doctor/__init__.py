"""`stratalog doctor`, `dump` and `verify`: check data directories, buckets and running nodes."""

__all__ = (
    "doctor",
    "dump",
    "verify",
)
