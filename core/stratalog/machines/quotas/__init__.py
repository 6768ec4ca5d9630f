"""Decides which quota a client has, how much it has used of it, and how long it has to wait."""

__all__ = ("alterations", "connection_rates", "rates", "table", "usage")
