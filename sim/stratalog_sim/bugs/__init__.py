"""Deliberate bugs, patched in from here alone. Each must break a promise, which shows that the simulator bites."""

__all__ = ("bugs",)
