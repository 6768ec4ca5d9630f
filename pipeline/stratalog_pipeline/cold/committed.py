"""Says which offsets of each shard are committed in the bucket, and in which objects. Pure.

Two sources count. One is the metadata: what their records call committed is committed. The other is a manifest under
its name: it is put once a segment is sealed and lists all of it, so it counts even before the metadata at hand mention
it. A chunk or bundle that no record and no manifest names is an attempt and is never read. Invariant: a shard's
segments follow one another without a gap, and `end_offset` is where this ends, whatever lies beyond. So the record at
an offset is the same in every read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from uuid import UUID

from stratalog.machines.table.records import ShardRow, StoredRecord
from stratalog.machines.tiering.chunk_merging import last_to_stay
from stratalog.model.cut import CutShard
from stratalog.model.errors import Conflict, Corrupt
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.segment import RemotePart, RemoteState, SealRecord, Segment, SegmentState
from stratalog.model.topic import Topic


@dataclass(frozen=True, slots=True)
class FoundManifest:
    """A manifest object, as its name tells."""

    key: str
    segment: SegmentKey
    end_offset: int
    node_id: int
    lock_epoch: int
    attempt: int


@dataclass(frozen=True, slots=True)
class CommittedSegment:
    """Records `[key.base_offset, end_offset)`: in `parts`, or in those that the manifest lists."""

    key: SegmentKey
    end_offset: int
    parts: Sequence[RemotePart] = ()
    manifest_key: str | None = None
    manifest_digest: bytes | None = None
    """None if unknown: then only the manifest's own checksum is checked."""
    seal: SealRecord | None = None

    @property
    def base_offset(self) -> int:
        return self.key.base_offset


@dataclass(frozen=True, slots=True)
class CommittedShard:
    """`topic` is empty where no record names it: manifests do, once they are read."""

    key: ShardKey
    topic: str
    log_start_offset: int
    segments: tuple[CommittedSegment, ...] = ()
    limit_offset: int | None = None
    """Of a snapshot: its records end here, inside a segment perhaps."""

    @property
    def end_offset(self) -> int:
        end = max(self.log_start_offset, self.segments[-1].end_offset if self.segments else 0)
        return end if self.limit_offset is None else min(end, self.limit_offset)

    def limited(self, offset: int) -> CommittedShard:
        """As if nothing came behind it."""
        return replace(self, limit_offset=max(offset, self.log_start_offset))


# From the records of the metadata -----------------------------------------------------------------------------------
def shards_of_records(records: Iterable[StoredRecord]) -> list[CommittedShard]:
    """All shards of a snapshot of the metadata, in order."""
    topics: dict[UUID, Topic] = {}
    starts: dict[ShardKey, int] = {}
    segments: dict[ShardKey, list[Segment]] = {}
    for record in records:
        match record:
            case Topic():
                topics[record.topic_id] = record
            case ShardRow():
                starts[record.key] = record.log_start_offset
            case Segment():
                segments.setdefault(record.key.shard_key, []).append(record)
            case _:
                pass
    return [
        shard_of_segments(topics[key.topic_id].name, key, starts[key], segments.get(key, ()))
        for key in sorted(starts)
        if key.topic_id in topics
    ]


def shard_of_segments(topic: str, key: ShardKey, log_start_offset: int, segments: Iterable[Segment]) -> CommittedShard:
    """What is committed of a shard, from its log start on."""
    committed: list[CommittedSegment] = []
    for segment in sorted(segments, key=lambda one: one.epoch):
        if segment.state is SegmentState.DELETED or _is_below(segment, log_start_offset):
            continue
        if committed and committed[-1].end_offset != segment.base_offset:
            break
        found = _committed(segment)
        if found is not None:
            committed.append(found)
        if segment.end_offset is None or (found is None and segment.end_offset > segment.base_offset):
            break
        if found is not None and found.end_offset < segment.end_offset:
            break
    if committed and committed[0].base_offset > log_start_offset:
        committed = []  # what is before it is not in the bucket yet
    return CommittedShard(key, topic, log_start_offset, tuple(committed))


def _is_below(segment: Segment, log_start_offset: int) -> bool:
    return segment.end_offset is not None and segment.end_offset <= log_start_offset


def _committed(segment: Segment) -> CommittedSegment | None:
    remote = segment.remote
    if remote.state is RemoteState.COMPLETE and remote.manifest_key is not None and segment.end_offset is not None:
        key, digest = remote.manifest_key, remote.manifest_digest
        return CommittedSegment(segment.key, segment.end_offset, (), key, digest, segment.seal)
    if remote.parts and remote.commit_offset > segment.base_offset:
        return CommittedSegment(segment.key, remote.commit_offset, remote.parts, seal=segment.seal)
    return None


# From the names of manifests ----------------------------------------------------------------------------------------
def newest_of_each(manifests: Iterable[FoundManifest]) -> dict[SegmentKey, FoundManifest]:
    """Of several attempts the newest, of a merging if there is one: they tell of the same records, for a segment is
    sealed once."""
    newest: dict[SegmentKey, FoundManifest] = {}
    for one in sorted(manifests, key=lambda one: last_to_stay(one.node_id, one.lock_epoch, one.attempt)):
        newest[one.segment] = one
    return newest


def with_sealed_since(shard: CommittedShard, manifests: Collection[FoundManifest]) -> CommittedShard:
    """The shard with the segments that became complete after the metadata were read. `manifests` are the shard's."""
    newest = newest_of_each(manifests)
    segments = list(shard.segments)
    if segments and segments[-1].manifest_key is None:
        found = newest.get(segments[-1].key)
        if found is not None and found.end_offset >= segments[-1].end_offset:
            segments[-1] = _of_manifest(found)
    end = segments[-1].end_offset if segments else shard.log_start_offset
    epoch = segments[-1].key.epoch if segments else -1
    for found in sorted(newest.values(), key=lambda one: one.segment.epoch):
        is_next = found.segment.base_offset == end or (not segments and found.segment.base_offset < end)
        if found.segment.epoch > epoch and is_next and found.end_offset > end:
            segments.append(_of_manifest(found))
            end, epoch = found.end_offset, found.segment.epoch
    return replace(shard, segments=tuple(segments))


def with_replaced(shard: CommittedShard, manifests: Collection[FoundManifest]) -> CommittedShard:
    """The shard with newer manifests where a segment's manifest was replaced after the metadata were read; they list
    the same records. `manifests` are the shard's."""
    present = {one.key for one in manifests}
    newest = newest_of_each(manifests)

    def as_now(segment: CommittedSegment) -> CommittedSegment:
        found = newest.get(segment.key)
        if (
            segment.manifest_key is None
            or segment.manifest_key in present
            or found is None
            or found.end_offset != segment.end_offset
        ):
            return segment
        return replace(segment, manifest_key=found.key, manifest_digest=None)

    return replace(shard, segments=tuple(as_now(segment) for segment in shard.segments))


def without_expired(shard: CommittedShard, present: Collection[str]) -> CommittedShard:
    """Its log starts behind the oldest segments whose manifests (`present`: keys) were taken away since."""
    segments = list(shard.segments)
    start = shard.log_start_offset
    while segments and segments[0].manifest_key is not None and segments[0].manifest_key not in present:
        start = max(start, segments.pop(0).end_offset)
    return replace(shard, log_start_offset=start, segments=tuple(segments))


def shards_of_manifests(manifests: Iterable[FoundManifest], source: str) -> list[CommittedShard]:
    """Where no metadata are known. Raises: Corrupt for a gap between segments, or two that hold the same offsets."""
    by_shard: dict[ShardKey, list[FoundManifest]] = {}
    for found in newest_of_each(manifests).values():
        if found.end_offset > found.segment.base_offset:
            by_shard.setdefault(found.segment.shard_key, []).append(found)
    shards = []
    for key, those in sorted(by_shard.items()):
        chain = _chain(those, source)
        shards.append(CommittedShard(key, "", chain[0].base_offset, chain))
    return shards


def shard_of_cut(topic: str, cut: CutShard, manifests: Iterable[FoundManifest], source: str) -> CommittedShard:
    """The records of a snapshot, whose objects stay whatever the metadata say. Raises: Corrupt where some are gone."""
    needed = [
        found
        for found in newest_of_each(manifests).values()
        if found.end_offset > found.segment.base_offset and cut.needs(found.segment, found.end_offset)
    ]
    chain = _chain(needed, source) if needed else ()
    begins = chain[0].base_offset if chain else cut.end_offset
    ends = chain[-1].end_offset if chain else cut.log_start_offset
    if cut.log_start_offset < cut.end_offset and (begins > cut.log_start_offset or ends < cut.end_offset):
        reason = (
            f"the snapshot needs offsets {cut.log_start_offset} to {cut.end_offset} of shard {cut.key.shard} of topic "
            f"{topic}, of which {begins} to {ends} are there: some of its objects were deleted manually"
        )
        raise Corrupt(reason, source=source, position=0)
    return CommittedShard(cut.key, topic, cut.log_start_offset, chain, cut.end_offset)


def _chain(manifests: Sequence[FoundManifest], source: str) -> tuple[CommittedSegment, ...]:
    ordered = sorted(manifests, key=lambda one: (one.segment.base_offset, one.segment.epoch))
    for before, after in pairwise(ordered):
        end, base = before.end_offset, after.segment.base_offset
        if end != base:
            what = "is in no segment" if end < base else "is in two segments"
            reason = (
                f"offset {min(end, base)} of shard {after.segment.shard} {what} that has a manifest ({before.key}, "
                f"{after.key}): name the metadata (meta service, or a bucket with snapshots of them), which know"
            )
            raise Corrupt(reason, source=source, position=0)
    return tuple(_of_manifest(found) for found in ordered)


def _of_manifest(found: FoundManifest) -> CommittedSegment:
    return CommittedSegment(found.segment, found.end_offset, (), found.key)


def by_shard(manifests: Iterable[FoundManifest]) -> dict[ShardKey, list[FoundManifest]]:
    found: dict[ShardKey, list[FoundManifest]] = {}
    for one in manifests:
        found.setdefault(one.segment.shard_key, []).append(one)
    return found


def topic_id_of(shards: Collection[CommittedShard]) -> UUID:
    """Of shards of one topic's name. Raises: Conflict where a deleted topic of that name has left objects, too."""
    found = {one.key.topic_id: one.topic for one in shards}
    if len(found) != 1:
        name = next(iter(found.values()), "")
        raise Conflict(
            f"the bucket holds {len(found)} topics called {name!r}, and no metadata that say which one exists: name "
            "the meta service, or wait until the deleted one is removed from the bucket"
        )
    return next(iter(found))
