"""How many nodes shall have a copy: of a topic's next segments, and of a segment that there is.

Pure. Source: docs/direct-spec.md section 2.
"""

from __future__ import annotations

from stratalog.model.segment import Segment
from stratalog.model.storage_policy import StoragePolicy, next_policy
from stratalog.model.topic import Topic


def next_copies(topic: Topic) -> int:
    """Replicas of the next segment of each shard. A Direct topic keeps its replication factor for the way back."""
    return 1 if next_policy(topic.settings) is StoragePolicy.DIRECT else topic.replication_factor


def wanted_copies(topic: Topic, segment: Segment) -> int:
    """Nodes that shall have a copy of this segment: what it was opened as counts, not what its topic says now."""
    return 1 if segment.is_direct else topic.replication_factor
