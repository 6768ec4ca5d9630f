"""`stratalog pipeline`: jobs over cold data."""

__all__ = ("command",)
