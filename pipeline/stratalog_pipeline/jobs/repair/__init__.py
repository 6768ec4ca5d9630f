"""`stratalog pipeline verify` and `compact`: check, repair and merge the objects of committed segments."""

__all__ = (
    "compact",
    "verify",
)
