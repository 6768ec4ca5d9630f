"""The stand-in for a node: shells around the product's machines, each in the place of a shell of the product.

A shell performs effects in the requested order and makes no decisions.
"""

__all__ = (
    "node",
    "replica",
    "retention",
    "sealing",
    "serving",
    "shard",
    "shell",
    "sweeping",
)
