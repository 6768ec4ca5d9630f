"""Ends old data: retention, freed local copies, bundles without references, orphaned objects."""

__all__ = (
    "janitor",
    "retention",
)
