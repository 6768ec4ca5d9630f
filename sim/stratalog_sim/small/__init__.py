"""Small worlds whose every history is played."""

__all__ = ("explore",)
