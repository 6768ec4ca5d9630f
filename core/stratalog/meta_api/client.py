"""The one door to metadata: what every part may ask of the meta service.

Two things stand behind it: the service itself, when it lives in this process, and an HTTP client. One suite of tests
passes on both. Raises `Rejected` and its kinds (nothing was done), `Unavailable` (nothing was done, try later),
`OutcomeUnknown` (the answer was lost: read before acting again).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol
from uuid import UUID

from stratalog.meta_api.commands import (
    ChangeSet,
    Lock,
    NodeInfo,
    PartCommit,
    PartReplacement,
    Registration,
    Snapshot,
)
from stratalog.model.errors import StratalogError
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.segment import SealRecord, Segment
from stratalog.model.topic import Shard, Topic


class MetaClient(Protocol):
    # Nodes and reading ------------------------------------------------------------------------------------------
    async def read_cluster_id(self) -> str:
        """Which cluster's metadata these are; durable, and the same for ever."""
        ...

    async def register_node(self, node: NodeInfo) -> Registration: ...

    async def snapshot(self) -> Snapshot: ...

    async def read_version(self) -> int:
        """The version of the newest change: a view of that version, or a newer one, misses nothing from before this
        call."""
        ...

    def watch(self, after_version: int) -> AsyncIterator[ChangeSet]:
        """Every change set after a version, in order, none missed. Raises NotFound when that history is gone
        (take a new snapshot)."""
        ...

    # Topics -----------------------------------------------------------------------------------------------------
    async def create_topic(
        self,
        name: str,
        *,
        shard_count: int,
        replication_factor: int,
        settings: Mapping[str, str],
        is_internal: bool = False,
        validate_only: bool = False,
    ) -> Topic:
        """Create a topic, its shards and the first (ACTIVE, epoch 0, base offset 0) segment of each, in one
        transaction. Placement is the service's. Raises AlreadyExists, InvalidRequest."""
        ...

    async def delete_topic(self, topic_id: UUID) -> None:
        """The topic and its shards vanish from the snapshot at once; each segment becomes DELETED and stays listed
        by `deleted_segments` until it is purged."""
        ...

    async def add_shards(self, topic_id: UUID, shard_count: int) -> Topic: ...

    async def topic(self, topic_id: UUID) -> Topic:
        """One topic as it is durable. Raises NotFound."""
        ...

    async def alter_topic(
        self,
        topic_id: UUID,
        settings: Mapping[str, str],
        *,
        expected: Mapping[str, str] | None = None,
        shard_count: int | None = None,
    ) -> Topic:
        """Replace the topic's settings as a whole and, with `shard_count`, let it grow, in one transaction. With
        `expected` (what the caller read before it changed them) raises Conflict when they are others now."""
        ...

    # Life of a segment ------------------------------------------------------------------------------------------
    async def roll_segment(self, segment: SegmentKey, end_offset: int) -> Segment:
        """The ACTIVE segment ends at `end_offset` (-> SEALING) and the next one opens there, epoch + 1 (rule 1), in
        one transaction. Idempotent for the same `end_offset`. Returns the new ACTIVE segment. Raises Fenced when
        `segment` is not the active one."""
        ...

    async def seal_segment(self, segment: SegmentKey, record: SealRecord) -> Segment:
        """SEALING -> SEALED, once (rule 10). Idempotent for an equal record; Conflict for another one. The answer is
        DELETED already when the log start passed its end while it was ACTIVE."""
        ...

    async def propose_isr(self, segment: SegmentKey, isr: Sequence[int], expected_version: int) -> Segment: ...

    async def raise_fence(self, segment: SegmentKey, fence: int) -> Segment: ...

    async def advance_log_start(self, shard: ShardKey, offset: int) -> Shard:
        """Monotonic: a lower offset than the present one changes nothing. Above the end of sealed data is allowed up
        to the caller's high watermark; segments wholly below it become DELETED (never the ACTIVE one)."""
        ...

    async def forget_local(self, segments: Sequence[SegmentKey], node_id: int) -> None:
        """The node is about to free its local copies. Raises Conflict unless each is COMPLETE in the object store,
        or is DELETED."""
        ...

    # Remote copies ----------------------------------------------------------------------------------------------
    async def commit_parts(self, lock: Lock, commits: Sequence[PartCommit]) -> list[Segment | StratalogError]:
        """Commit parts in one transaction; each stands or falls alone by its compare-and-set (a deleted or moved
        segment does not spoil its neighbours in a bundle). Raises Fenced when the lock is lost."""
        ...

    async def complete_remote(
        self, lock: Lock, segment: SegmentKey, *, manifest_key: str, manifest_digest: bytes, size_bytes: int
    ) -> Segment:
        """SEALED and committed to its end -> COMPLETE. The caller has read the manifest back and checked it."""
        ...

    async def replace_parts(
        self, lock: Lock, replacements: Sequence[PartReplacement]
    ) -> list[Segment | StratalogError]: ...

    async def deleted_segments(self) -> list[Segment]:
        """Segments whose files and objects may go once the grace period has passed since `deleted_ms`."""
        ...

    async def purged_topics(self) -> frozenset[UUID]:
        """Deleted topics that were purged, in part or wholly: the last 10,000. What names them may go."""
        ...

    async def purge_segments(self, segments: Sequence[SegmentKey]) -> None: ...

    # Locks and numbers ------------------------------------------------------------------------------------------
    async def acquire_lock(self, name: str, holder: str, ttl_ms: int, lasting: Sequence[str] = ()) -> Lock:
        """Take or renew. Of the earlier holders the lock goes on to remember the last few, and those whose names end
        with one of `lasting`. Raises Conflict while another holder's lease lasts."""
        ...

    async def release_lock(self, lock: Lock) -> None: ...

    async def allocate_producer_ids(self, count: int) -> range:
        """A block of producer ids never given before."""
        ...
