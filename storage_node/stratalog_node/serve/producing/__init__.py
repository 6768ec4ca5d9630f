"""Produce requests: find the batches, hand them to their shards, answer when they are acknowledged."""

__all__ = ("produce",)
