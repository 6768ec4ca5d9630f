"""Several data directories: which file of a segment counts, and moves of sealed copies between directories."""

__all__ = ("copy_mover", "copy_places", "several_directories")
