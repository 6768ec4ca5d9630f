"""Time, messages, processes, disks and the object store of a simulated cluster.

Nothing here knows what a node or the meta service does. All that is random comes from the seed's generator.
"""

__all__ = (
    "disk",
    "network",
    "process",
    "scheduler",
    "store",
)
