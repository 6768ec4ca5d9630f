"""`stratalog pipeline sink`: committed records into a database or a search engine, each exactly once."""

__all__ = ("sink", "target")
