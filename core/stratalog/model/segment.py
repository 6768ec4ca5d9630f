"""Segments, their seal records and their remote parts.

Invariant: within a shard segments are contiguous: one's end offset is the next one's base offset, epochs grow by one.
Source: docs/design.md section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple
from uuid import UUID

from stratalog.model.bounds import Count, CountOrNone, Int32
from stratalog.model.ids import SegmentKey
from stratalog.model.producers import ProducerTally
from stratalog.model.storage_policy import StoragePolicy


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


class TimesKnown(StrEnum):
    """Where the times of a segment or a part come from, and so what they prove. Closed."""

    CLAIMED = "claimed"
    """From the batch headers, which clients wrote: they prove nothing. All times of older releases are claimed."""
    PARTLY = "partly"
    """From the records, except for batches that could not be opened."""
    ALL = "all"
    """From the records."""


@dataclass(frozen=True, slots=True)
class SealRecord:
    """The one truth about a sealed segment, written once by compare-and-set (rule 10). The meta store, index blocks and
    manifests hold it.

    `size_bytes` counts the batches only, without the file's identity header. `digest` is the chained digest over the
    batch headers (docs/formats.md). Timestamps are the lowest and the highest of its records, -1 where none has one, as
    far as `times_known` says.

    A leader makes it (`shards/seal/sealing.py` of the node), a follower (`replication/replica_copy.py`), or a rebuild
    (`bucket/publish.py` of the meta service). With several replicas the record is that of the report that completes it,
    so a field must be the same function of the batches on every node. Readers of the bucket compare only epoch,
    offsets, size and digest (`stored/remote/expected.py`).
    """

    epoch: Int32
    base_offset: Count
    end_offset: Count
    first_timestamp_ms: int
    max_timestamp_ms: int
    size_bytes: Count
    digest: bytes
    producers: ProducerTally
    """Of the table at the segment's end, not of those that wrote in this segment."""
    replicas: tuple[Int32, ...]
    sealed_ms: Count
    times_known: TimesKnown = TimesKnown.CLAIMED

    def is_older_than(self, timestamp_ms: int) -> bool:
        """Whether it is proven that no record has this time or a later one. For a batch that could not be decompressed,
        the time in its header counts, as it does for a search by time."""
        return self.times_known is not TimesKnown.CLAIMED and self.max_timestamp_ms < timestamp_ms

    def may_have_record_in(self, from_ms: int, until_ms: int) -> bool:
        """Whether a record may have a time of `[from_ms, until_ms)`; of claimed times nothing is concluded."""
        if self.times_known is TimesKnown.CLAIMED:
            return True
        return self.max_timestamp_ms >= max(from_ms, 0) and self.first_timestamp_ms < until_ms


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
    replaced_ms: Count = 0
    """When the manifest took the place of another one, or may have (a rebuild); 0 when it is the first. Readers may
    still hold the other."""


class NextReplicas(NamedTuple):
    """Where the segment after this one will be."""

    leader: Int32
    replicas: tuple[Int32, ...]
    policy: StoragePolicy = StoragePolicy.REPLICATED


class Doubt(NamedTuple):
    """A replica that began a life in which its tail may be cut (`is_lost`: on an empty disk), and was not taken back
    into the ISR since. It was in the ISR, so what it holds may be needed; it alone proves nothing."""

    node_id: Int32
    is_lost: bool
    is_faulty: bool = False
    """In its present life it cannot vouch for what it holds: a flush failed, or it cannot be read."""


class Vote(NamedTuple):
    """A replica's promise to take no more of the segment from its leader, and what it holds."""

    node_id: Int32
    life: Count
    """Epoch of the life that promised: a later one has to promise again."""
    end_offset: Count
    high_watermark: Count
    """The highest that it knows: everything below was acknowledged, or may have been."""
    is_tail_whole: bool
    """Everything that it ever confirmed is there."""
    seen_offset: Count = 0
    """For a damaged copy, the offset below which its file has batches that may be unreadable. Otherwise 0."""


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """What a replica that has reached the end of a SEALING segment, flushed it and read it back says of its copy."""

    node_id: Int32
    size_bytes: Count
    digest: bytes


class GapReason(StrEnum):
    UNCONFIRMED = "unconfirmed"
    """Only a leader or a replica that is gone had these offsets: no write with acks=all was acknowledged there."""
    RESTARTED = "restarted"
    """Every member began again with a doubtful tail: what each of them lost is lost, from the first offset on."""
    UNCLEAN = "unclean"
    """A person or the topic's policy gave them up."""


class GivenUp(NamedTuple):
    """Offsets of a segment that a recovery gave up: at most `[base_offset, end_offset)`, as far as is known. An empty
    range says that no loss is known, and that none can be ruled out."""

    base_offset: Count
    end_offset: Count
    reason: GapReason


@dataclass(frozen=True, slots=True)
class Handover:
    """What happens to a segment between the hands of its leader and its seal; of most segments there is none.

    Each of the lists has at most one entry per replica, and `given_up` one per decision.
    """

    prepared: NextReplicas | None = None
    """While ACTIVE: where its successor will open."""
    doubts: tuple[Doubt, ...] = ()
    votes: tuple[Vote, ...] = ()
    source: Int32 | None = None
    """While SEALING without a leader: the replicas that have everything below the end, or complete it there. The others
    copy it."""
    reports: tuple[ReplicaReport, ...] = ()
    """While SEALING: who proved what. Once SEALED: of those that differed, and were dropped."""
    given_up: tuple[GivenUp, ...] = ()
    is_roll_asked: bool = False
    """While ACTIVE: its leader ends it as soon as it learns of this, even if it is empty."""


NO_HANDOVER: Final = Handover()


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment as the meta service knows it."""

    key: SegmentKey
    state: SegmentState
    leader: Int32 | None
    """Node id of the leader while ACTIVE or SEALING; a fenced or sealed segment has none."""
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
    """0 while its leader leads; `epoch + 1` from the beginning of a recovery on: nothing is appended any more (rule
    7)."""
    handover: Handover | None = None
    policy: StoragePolicy = StoragePolicy.REPLICATED
    """As it was opened; what its topic says by now holds for the next ones."""

    @property
    def handed(self) -> Handover:
        """The handover, or one in which nothing has happened."""
        return NO_HANDOVER if self.handover is None else self.handover

    @property
    def is_fenced(self) -> bool:
        """Its leader leads no more; a recovery seals it."""
        return self.fence > 0

    @property
    def is_direct(self) -> bool:
        """What was acknowledged of it is in the object store, whichever nodes are there."""
        return self.policy is StoragePolicy.DIRECT

    @property
    def is_shared(self) -> bool:
        """Others than its leader's disk have a say in where it ends: other nodes, a recovery, or the object store."""
        return len(self.replicas) > 1 or self.is_fenced or self.is_direct

    @property
    def committed_end(self) -> int:
        """All of it below is in the object store; its base offset when nothing is."""
        return max(self.key.base_offset, self.remote.commit_offset)

    @property
    def is_wholly_committed(self) -> bool:
        """It has ended, and the object store has every batch of it: COMPLETE is more, namely a manifest that was
        checked."""
        is_committed = self.end_offset is not None and self.committed_end >= self.end_offset
        return is_committed or self.remote.state is RemoteState.COMPLETE

    @property
    def base_offset(self) -> int:
        return self.key.base_offset

    @property
    def epoch(self) -> int:
        return self.key.epoch
