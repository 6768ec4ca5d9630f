"""`stratalog groups`: list, describe, reset, delete."""

__all__ = ("groups",)
