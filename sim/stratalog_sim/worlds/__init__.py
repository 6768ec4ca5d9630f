"""Clusters of one process, drawn from a seed: what they consist of, which faults happen, and the history in words."""

__all__ = (
    "simulated_machines",
    "world",
)
