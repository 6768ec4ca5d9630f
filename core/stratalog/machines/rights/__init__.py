"""Decides what a principal may do, and what a client's certificate makes its name."""

__all__ = ("authorizer", "principal_names")
