"""Files of a node's data directory: segments and their damaged tails, checkpoints, the journal."""

__all__ = (
    "checkpoint",
    "journal",
    "segment_file",
    "tail_damage",
)
