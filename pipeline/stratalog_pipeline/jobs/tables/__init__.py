"""The logs of Delta and Iceberg tables: how an archive's files become rows for their readers."""

__all__ = (
    "delta_log",
    "iceberg_log",
    "table_log",
    "table_places",
)
