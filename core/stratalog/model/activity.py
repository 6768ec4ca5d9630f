"""What a node tells of its work with its heartbeats: for people to look at, nothing is decided by it.

Counters begin again with each life of the node. Plain immutable data; the service keeps it in memory alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from stratalog.model.bounds import Count, Int32

MAX_STOPPED_TOLD: Final = 5
"""Stopped shards that a node names; when a disk fails there are thousands with the same reason."""


class StoppedHere(NamedTuple):
    """A shard that takes no writes on this node until a person acts."""

    topic: str
    shard: Int32
    cause: str
    reason: str
    next_step: str


@dataclass(frozen=True, slots=True)
class UploadActivity:
    """Of a node with an object store."""

    unsent_bytes: Count = 0
    """Committed, and not in the object store."""
    unsent_segments: Count = 0
    oldest_unsent_ms: Count = 0
    """Age of the oldest of these bytes; 0 when there is none."""
    held_segments: Count = 0
    """That cannot be uploaded any further."""
    store_away_ms: Count = 0
    """For so long the store has taken nothing; 0 while it does."""


@dataclass(frozen=True, slots=True)
class Activity:
    produced_bytes: Count
    """Of batches that were appended to what it leads."""
    fetched_bytes: Count
    """Of batches that clients read here, from the disk or from the object store."""
    uploads: UploadActivity | None = None
    troubles: tuple[str, ...] = ()
    """What it is not ready for, or cannot do, and why."""
    stopped_shards: Count = 0
    stopped: tuple[StoppedHere, ...] = ()
    """The first of them (`MAX_STOPPED_TOLD`)."""
    page_url: str = ""
    """Where its own page is; empty where it serves none."""
