"""Plain data that crosses the meta service's door: what a caller asks and what it learns.

The same records are used in one process (passed by reference) and over HTTP (as JSON, see `meta_api.codec`). They live
in `stratalog.model.metadata`, so that the shard table, a pure machine, can speak them too.
"""

from __future__ import annotations

from stratalog.model.ids import ShardKey
from stratalog.model.metadata import (
    Change,
    ChangeSet,
    Lock,
    NodeChanged,
    NodeInfo,
    PartCommit,
    PartReplacement,
    Registration,
    SegmentChanged,
    SegmentPurged,
    ShardChanged,
    Snapshot,
    TopicChanged,
    TopicDeleted,
)

__all__ = [
    "Change",
    "ChangeSet",
    "Lock",
    "NodeChanged",
    "NodeInfo",
    "PartCommit",
    "PartReplacement",
    "Registration",
    "SegmentChanged",
    "SegmentPurged",
    "ShardChanged",
    "ShardKey",
    "Snapshot",
    "TopicChanged",
    "TopicDeleted",
]
