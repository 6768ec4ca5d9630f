"""Restarts and heals shards: what the disk holds is brought together with what the meta service knows."""

__all__ = (
    "copy_files",
    "giving_up",
    "healed_file",
    "healing",
    "opening",
    "recovery",
)
