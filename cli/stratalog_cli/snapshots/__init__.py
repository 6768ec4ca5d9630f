"""`stratalog snapshot`: consistent cuts and restores."""

__all__ = ("command",)
