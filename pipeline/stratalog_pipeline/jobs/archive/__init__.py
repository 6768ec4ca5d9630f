"""`stratalog pipeline archive`: sealed segments become rows of a table, each exactly once."""

__all__ = (
    "archive",
    "piece",
    "schema_files",
)
