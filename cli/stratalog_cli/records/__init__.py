"""`stratalog produce`, `consume` and `find`: records in and out."""

__all__ = (
    "consume",
    "find",
    "produce",
)
