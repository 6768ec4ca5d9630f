"""Worlds in which rights are given and taken while faults occur."""

__all__ = ("changing",)
