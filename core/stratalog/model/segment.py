"""Segments, their seal records and their remote parts.

Invariant: within a shard segments are contiguous: one's end offset is the next one's base offset, epochs grow by one.
Source: docs/design.md section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from uuid import UUID

from stratalog.model.bounds import Count, CountOrNone, Int32
from stratalog.model.ids import SegmentKey
from stratalog.model.producers import ProducerSnapshot


class SegmentState(StrEnum):
    """The life of a segment. ACTIVE -> SEALING -> SEALED -> DELETED; nothing goes back."""

    ACTIVE = "active"
    SEALING = "sealing"
    SEALED = "sealed"
    DELETED = "deleted"
    """Retention has passed: unreadable at once, files and objects go after the grace period."""


class RemoteState(StrEnum):
    NONE = "none"
    PARTIAL = "partial"
    COMPLETE = "complete"
    """Sealed, every byte, index and manifest are in the object store, and the manifest was read back and checked."""


@dataclass(frozen=True, slots=True)
class SegmentIdentity:
    """What a segment file or an object says about itself, so that it alone tells what it holds."""

    cluster_id: str
    topic_id: UUID
    topic: str
    shard: int
    epoch: int
    base_offset: int
    created_ms: int

    @property
    def key(self) -> SegmentKey:
        return SegmentKey(self.topic_id, self.shard, self.epoch, self.base_offset)


@dataclass(frozen=True, slots=True)
class SealRecord:
    """The one truth about a sealed segment, written once by compare-and-set (rule 10).

    `size_bytes` counts the batches only, without the file's identity header. `digest` is the chained digest over the
    batch headers (docs/formats.md). Timestamps are -1 when the segment holds no record.
    """

    epoch: Int32
    base_offset: Count
    end_offset: Count
    first_timestamp_ms: int
    max_timestamp_ms: int
    size_bytes: Count
    digest: bytes
    producers: tuple[ProducerSnapshot, ...]
    replicas: tuple[Int32, ...]
    sealed_ms: Count


@dataclass(frozen=True, slots=True)
class RemotePart:
    """A committed piece of a segment in the object store: a chunk object, or one part of a bundle object.

    The part occupies `[position, position + size_bytes)` of the object and starts with its own part header.
    """

    object_key: str
    position: Count
    size_bytes: Count
    base_offset: Count
    end_offset: Count


@dataclass(frozen=True, slots=True)
class RemoteCopy:
    """Where a segment is in the object store. Everything below `commit_offset` is durable there."""

    state: RemoteState = RemoteState.NONE
    commit_offset: CountOrNone = -1
    parts: Sequence[RemotePart] = ()
    """Committed parts, contiguous by offset. Empty once COMPLETE: then the manifest object lists them. Immutable; from
    the meta service a `PartList` (there may be thousands), which equals a tuple of the same parts."""
    manifest_key: str | None = None
    manifest_digest: bytes | None = None
    size_bytes: Count = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment as the meta service knows it."""

    key: SegmentKey
    state: SegmentState
    leader: Int32 | None
    """Node id of the leader while ACTIVE or SEALING; a sealed segment has none."""
    replicas: tuple[Int32, ...]
    isr: tuple[Int32, ...]
    isr_version: Count
    opened_ms: Count
    end_offset: Count | None = None
    """Set when the segment leaves ACTIVE."""
    seal: SealRecord | None = None
    local_nodes: tuple[Int32, ...] = ()
    """Nodes that hold a local copy whose digest equals the seal record's."""
    remote: RemoteCopy = field(default_factory=RemoteCopy)
    deleted_ms: Count | None = None
    fence: Count = 0
    """Raised by recovery: appends of a leader below it are void (rule 7)."""

    @property
    def base_offset(self) -> int:
        return self.key.base_offset

    @property
    def epoch(self) -> int:
        return self.key.epoch
