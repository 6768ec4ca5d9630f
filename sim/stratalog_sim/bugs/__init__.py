"""Deliberate bugs in the product's code, patched in from here alone, and the worlds of the product that find them.

A bug is a mistake that a programmer could make: a missing check, or one answer mistaken for another.
"""

__all__ = ("catalog",)
