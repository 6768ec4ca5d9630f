"""`stratalog topics`, `segments`, `locate` and `seal`."""

__all__ = (
    "segments",
    "topics",
)
