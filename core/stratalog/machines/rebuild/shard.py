"""What a rebuild makes of one shard: the segments that a snapshot of the metadata knows, and what lies in the bucket.

The log goes from its start to the last offset that the bucket holds, without a gap: a segment is taken whole by its
manifest, or put together from a chain of parts (`part_chain`), and what is nowhere but was known to be there is named
(`lost`), and filled with batches without records. What the bucket has not whole and a retired directory has stays as
its seal record says, with what the bucket has of it. A new ACTIVE segment, of an epoch that was never used, comes
behind.

Pure. Source: docs/backup.md section 3, docs/formats.md section 13.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from stratalog.machines.tiering.part_chain import FoundPart, choose_chain
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.segment import RemoteState, SealRecord, Segment

EMPTY_DIGEST: Final = bytes(16)
"""Of no batch (docs/formats.md section 4)."""


@dataclass(frozen=True, slots=True)
class FoundManifest:
    """A manifest object; `seal` is None until it is read: its name has the end."""

    key: str
    end_offset: int
    lock_epoch: int
    attempt: int
    seal: SealRecord | None = None
    digest: bytes = b""
    size_bytes: int = 0
    """Of the whole copy: parts, index, manifest."""
    is_whole: bool = True
    """All that it names is there. One that lacks something counts where no chain of parts reaches the end."""


@dataclass(frozen=True, slots=True)
class FoundSegment:
    """What lies in the bucket of one segment."""

    key: SegmentKey
    manifests: tuple[FoundManifest, ...] = ()
    parts: tuple[FoundPart, ...] = ()


@dataclass(frozen=True, slots=True)
class LostRange:
    """Offsets `[base_offset, end_offset)` that were known to exist and are nowhere in the bucket."""

    segment: SegmentKey
    base_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class PlannedSegment:
    """A segment of the rebuilt log: complete by its manifest, else to be completed of these parts."""

    key: SegmentKey
    end_offset: int
    known: Segment | None = None
    """As the snapshot has it."""
    manifest: FoundManifest | None = None
    chain: tuple[FoundPart, ...] = ()
    volumes: tuple[int, ...] = ()
    """All of it is in the retired directories of these nodes, and not in the bucket."""

    @property
    def chain_end(self) -> int:
        """Up to here the parts reach; what follows is filled."""
        return self.chain[-1].part.end_offset if self.chain else self.key.base_offset


@dataclass(slots=True)
class ShardPlan:
    key: ShardKey
    log_start_offset: int
    segments: list[PlannedSegment] = field(default_factory=list)
    lost: list[LostRange] = field(default_factory=list)
    gone: list[SegmentKey] = field(default_factory=list)
    """Complete in the snapshot, and nothing of them is in the bucket any more: deleted since by retention, which may
    have taken them, from the oldest on."""
    unused: list[SegmentKey] = field(default_factory=list)
    """In the bucket, and no part of the log: left over by retention, or at odds with what is known."""

    @property
    def end_offset(self) -> int:
        return self.segments[-1].end_offset if self.segments else self.log_start_offset

    @property
    def next_epoch(self) -> int:
        return self.segments[-1].key.epoch + 1 if self.segments else self._epoch_of_nothing()

    def _epoch_of_nothing(self) -> int:
        return max((key.epoch + 1 for key in (*self.gone, *self.unused)), default=0)

    @property
    def to_publish(self) -> list[PlannedSegment]:
        return [segment for segment in self.segments if segment.manifest is None and not segment.volumes]

    @property
    def in_volumes(self) -> list[PlannedSegment]:
        return [segment for segment in self.segments if segment.volumes]


def plan_shard(
    key: ShardKey,
    log_start_offset: int,
    known: Iterable[Segment],
    found: Collection[FoundSegment],
    volumes: Collection[int] = (),
    may_have_expired: Callable[[SealRecord], bool] = lambda _: True,
) -> ShardPlan:
    """`known` are the shard's living segments in the snapshot, oldest first; none if the shard is new. `volumes`: the
    nodes whose retired directories still exist. `may_have_expired`: whether the topic's retention may have deleted a
    segment since the snapshot; if it may not, a segment without any remains is lost."""
    plan = ShardPlan(key, log_start_offset)
    by_epoch = {segment.epoch: segment for segment in known}
    by_key = {segment.key: segment for segment in found}
    used: set[SegmentKey] = set()
    _drop_gone(plan, by_epoch, by_key, may_have_expired)
    if by_epoch:
        first = by_epoch[min(by_epoch)]
        epoch, base = first.epoch, first.base_offset
    elif plan.gone:
        epoch, base = plan.gone[-1].epoch + 1, plan.log_start_offset
    else:
        oldest = min((one for one in found), key=lambda one: one.key.epoch, default=None)
        if oldest is None:
            return plan
        epoch, base = oldest.key.epoch, oldest.key.base_offset
        plan.log_start_offset = max(log_start_offset, base)
    while True:
        segment = by_epoch.get(epoch)
        here = by_key.get(SegmentKey(key.topic_id, key.shard, epoch, base))
        later = _later(found, epoch, base if segment is None or segment.end_offset is None else segment.end_offset)
        if segment is None and here is None and later is None:
            break
        planned = _plan_segment(SegmentKey(key.topic_id, key.shard, epoch, base), segment, here, later, volumes)
        used.add(planned.key)
        plan.segments.append(planned)
        lost_from = max(planned.chain_end, plan.log_start_offset)
        if planned.manifest is None and not planned.volumes and lost_from < planned.end_offset:
            plan.lost.append(LostRange(planned.key, lost_from, planned.end_offset))
        epoch, base = epoch + 1, planned.end_offset
    plan.unused += sorted(by_key.keys() - used)
    _reach_log_start(plan)
    return plan


def _reach_log_start(plan: ShardPlan) -> None:
    """Records were deleted beyond the end of the bucket's data: the log continues after them."""
    if plan.segments and plan.end_offset < plan.log_start_offset:
        last = plan.segments[-1]
        if last.manifest is None and not last.volumes:
            plan.segments[-1] = replace(last, end_offset=plan.log_start_offset)
        else:
            key = SegmentKey(plan.key.topic_id, plan.key.shard, last.key.epoch + 1, last.end_offset)
            plan.segments.append(PlannedSegment(key, plan.log_start_offset))


def _drop_gone(
    plan: ShardPlan,
    by_epoch: dict[int, Segment],
    by_key: dict[SegmentKey, FoundSegment],
    may_have_expired: Callable[[SealRecord], bool],
) -> None:
    """The oldest ones that retention has taken away since the snapshot."""
    for epoch in sorted(by_epoch):
        segment = by_epoch[epoch]
        if segment.remote.state is not RemoteState.COMPLETE or segment.key in by_key or segment.end_offset is None:
            return
        is_below = segment.end_offset <= plan.log_start_offset
        if segment.seal is not None and not is_below and not may_have_expired(segment.seal):
            return
        if segment.end_offset > segment.base_offset or segment.remote.manifest_key is not None:
            plan.gone.append(segment.key)
            plan.log_start_offset = max(plan.log_start_offset, segment.end_offset)
            del by_epoch[epoch]


def _later(found: Collection[FoundSegment], epoch: int, end_offset: int) -> FoundSegment | None:
    """The next segment that has anything in the bucket, if it can follow."""
    able = [one for one in found if one.key.epoch > epoch and one.key.base_offset >= end_offset and _begins(one)]
    return min(able, key=lambda one: one.key.epoch, default=None)


def _begins(one: FoundSegment) -> bool:
    begins = any(part.part.base_offset == one.key.base_offset for part in one.parts)
    return bool(one.manifests) or begins


def _plan_segment(
    key: SegmentKey,
    known: Segment | None,
    here: FoundSegment | None,
    later: FoundSegment | None,
    volumes: Collection[int],
) -> PlannedSegment:
    end_offset = None if known is None else known.end_offset
    manifest = _manifest(known, here, end_offset, later)
    parts = () if here is None else here.parts
    if manifest is not None:
        chain = () if manifest.is_whole else choose_chain(key.base_offset, EMPTY_DIGEST, parts, manifest.end_offset)
        if not chain or chain[-1].part.end_offset < manifest.end_offset:
            return PlannedSegment(key, manifest.end_offset, known, manifest)
        return PlannedSegment(key, manifest.end_offset, known, None, chain)
    limit = end_offset if end_offset is not None else None if later is None else later.key.base_offset
    chain = choose_chain(key.base_offset, EMPTY_DIGEST, parts, limit)
    reached = chain[-1].part.end_offset if chain else key.base_offset
    if known is not None and known.seal is not None and reached < known.seal.end_offset:
        holders = tuple(node_id for node_id in known.local_nodes if node_id in volumes)
        if holders:
            return PlannedSegment(key, known.seal.end_offset, known, None, chain, holders)
    if end_offset is None:
        end_offset = later.key.base_offset if later is not None and later.key.epoch == key.epoch + 1 else reached
    return PlannedSegment(key, end_offset, known, None, chain)


def _manifest(
    known: Segment | None, here: FoundSegment | None, end_offset: int | None, later: FoundSegment | None
) -> FoundManifest | None:
    """The one that the metadata named, else the newest that agrees with what is known."""
    able = [
        one
        for one in (() if here is None else here.manifests)
        if (end_offset is None or one.end_offset == end_offset)
        and (known is None or known.seal is None or one.seal is None or one.seal.digest == known.seal.digest)
    ]
    named = None if known is None else known.remote.manifest_key
    return max(able, key=lambda one: (one.key == named, one.lock_epoch, one.attempt), default=None)
