"""Makes a new cluster from a consistent cut in the bucket.

The segments are copied under the new cluster's id, byte for byte but for the identity in their headers, and end where
the cut does; so the new cluster needs nothing of the old one, which may keep running. All manifests are read, and the
lengths of the objects that they name are compared with the listing, before anything is copied; then every batch is read
and checked. The records go into an empty store, the header last.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from stratalog.formats.bucket.manifest import Manifest
from stratalog.formats.bucket.object_names import ObjectNames, SegmentObject, SegmentObjectName
from stratalog.machines.leading.sealed_producers import Producers
from stratalog.machines.rebuild.shard import PlannedSegment, ShardPlan
from stratalog.machines.rebuild.table import Published, RebuildPlan, records_of
from stratalog.machines.table.locks import NOBODY
from stratalog.machines.table.records import TableHeader
from stratalog.machines.tiering.chunk_merging import last_to_stay
from stratalog.machines.tiering.part_chain import FoundPart
from stratalog.model.counting import counted
from stratalog.model.cut import Cut, CutShard
from stratalog.model.errors import AlreadyExists, Corrupt, NotFound
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Lock
from stratalog.model.mounts import data_set_name
from stratalog.objects.store import ObjectStore
from stratalog.stored.remote.manifests import ExpectedManifest, read_manifest
from stratalog.stored.remote.parts import read_part_header
from stratalog_meta.bucket.publish import DamagedPart, SegmentPublisher, Writer
from stratalog_meta.bucket.rebuild import write_records
from stratalog_meta.bucket.scan import each, holes_of
from stratalog_meta.service import FIRST_PRODUCER_ID
from stratalog_meta.stores.meta_store import MetaStore

_FIRST_EPOCH: Final = 1
_NAMED: Final = 10
"""So many faults of the bucket at most are named in an error."""
_PRODUCER_IDS: Final = 1 << 40
"""Ids of the old cluster's producers, which the log remembers, are below."""


@dataclass(frozen=True, slots=True)
class Restored:
    cut: Cut
    cluster_id: str
    segments: int
    bytes_put: int


async def restore_cut(
    store: ObjectStore,
    cut: Cut,
    target: MetaStore,
    nodes: Sequence[int],
    now_ms: int,
    step: Callable[[str], None],
    new_id: Callable[[], uuid.UUID] = uuid.uuid4,
) -> Restored:
    """Raises: AlreadyExists for a store that holds something, Corrupt where the bucket has not all of the cut."""
    if await target.load():
        raise AlreadyExists(f"{target.source} holds metadata: a snapshot is restored into an empty store")
    names, cluster_id = ObjectNames("", cut.cluster_id), str(new_id())
    publisher = SegmentPublisher(
        store, ObjectNames("", cluster_id), Writer(nodes[0], _FIRST_EPOCH), now_ms, cut.cluster_id
    )
    topics = {topic.topic_id: topic.name for topic in cut.topics}
    plans: dict[CutShard, ShardPlan] = {}
    published: dict[SegmentKey, Published] = {}
    checks = await _check_all(store, names, cut)
    done = 0

    async def copy(shard: CutShard) -> None:
        nonlocal done
        plan = plans[shard] = ShardPlan(shard.key, shard.log_start_offset)
        producers: Producers = ()
        for key, manifest in checks[shard].manifests:
            planned = await _planned(store, cut.cluster_id, key, manifest, shard)
            try:
                published[key], producers = await publisher.publish(planned, topics[shard.key.topic_id], producers)
            except DamagedPart as damaged:
                raise Corrupt(damaged.reason, source=damaged.part.object_key, position=0) from damaged
            plan.segments.append(planned)
        done += 1
        step(f"copying: {done} of {counted(len(cut.shards), 'shard')}")

    await each(cut.shards, copy)
    header = TableHeader(cluster_id, 1, FIRST_PRODUCER_ID + _PRODUCER_IDS)
    locks = [Lock(data_set_name(nodes[0]), NOBODY, _FIRST_EPOCH, 0)]
    ordered = [plans[shard] for shard in cut.shards]
    plan = RebuildPlan(header, list(cut.topics), ordered, locks, [], [], tuple(nodes))
    await write_records(target, records_of(plan, published, now_ms), lambda *_: None)
    return Restored(cut, cluster_id, len(published), publisher.bytes_put)


@dataclass(slots=True)
class _CutCheck:
    """What the bucket has of one shard of the cut."""

    manifests: list[tuple[SegmentKey, Manifest]] = field(default_factory=list)
    """In order and without a gap."""
    faults: list[str] = field(default_factory=list)
    """What is damaged or gone, for people."""


async def _check_all(store: ObjectStore, names: ObjectNames, cut: Cut) -> dict[CutShard, _CutCheck]:
    """Raises: Corrupt, which names all that the bucket lacks of the cut, before anything is copied."""
    topics = {topic.topic_id: topic.name for topic in cut.topics}
    checks: dict[CutShard, _CutCheck] = {}

    async def check(shard: CutShard) -> None:
        checks[shard] = await _check_shard(store, names, shard, f"{topics[shard.key.topic_id]}-{shard.key.shard}")

    await each(cut.shards, check)
    faults = [fault for shard in cut.shards for fault in checks[shard].faults]
    if faults:
        more = f"; and {len(faults) - _NAMED} more" if len(faults) > _NAMED else ""
        raise Corrupt(
            f"the bucket does not have all of the snapshot, {counted(len(faults), 'fault')}: "
            f"{'; '.join(faults[:_NAMED])}{more}. Put the objects back, from an older version of the bucket, or take "
            "an older snapshot; nothing was restored",
            source=names.root,
            position=0,
        )
    return checks


async def _check_shard(store: ObjectStore, names: ObjectNames, shard: CutShard, where: str) -> _CutCheck:
    ranked: dict[SegmentKey, list[tuple[tuple[bool, int, int], str]]] = {}
    sizes: dict[str, int] = {}
    async for info in store.list(names.shard_prefix(shard.key)):
        sizes[info.key] = info.size_bytes
        name = names.parse(info.key)
        if not isinstance(name, SegmentObjectName) or name.kind is not SegmentObject.MANIFEST:
            continue
        if shard.needs(name.segment, name.to_offset):
            one = (last_to_stay(name.node_id, name.lock_epoch, name.attempt), info.key)
            ranked.setdefault(name.segment, []).append(one)
    found = _CutCheck()
    at = shard.log_start_offset
    for segment in sorted(ranked, key=lambda key: key.epoch):
        if segment.base_offset > at or (found.manifests and segment.base_offset != at):
            break
        keys = [key for _, key in sorted(ranked[segment], reverse=True)]  # of one segment all are true
        manifest, why = await _whole(store, names, keys, sizes, shard.end_offset)
        found.faults += [f"{where}, segment {segment.base_offset}-{segment.epoch}: {fault}" for fault in why]
        if manifest is None:
            return found  # where it ends, and what follows it, its manifest alone tells
        found.manifests.append((segment, manifest))
        at = manifest.seal.end_offset
    if at < shard.end_offset:
        found.faults.append(f"{where}: offsets [{at}, {shard.end_offset}) are in no manifest there")
    return found


async def _whole(
    store: ObjectStore, names: ObjectNames, keys: Sequence[str], sizes: Mapping[str, int], end_offset: int
) -> tuple[Manifest | None, list[str]]:
    """The first manifest with all its parts present, else the first that can be read and what is wrong with it."""
    readable: Manifest | None = None
    faults: list[str] = []
    unread: list[str] = []
    for key in keys:
        try:
            name = names.parse(key)
            assert isinstance(name, SegmentObjectName), "it was listed by its name"
            manifest = await read_manifest(store, ExpectedManifest.of_name(names.cluster_id, name, key))
        except (Corrupt, NotFound) as error:
            unread.append(str(error))
            continue
        needed = {part.object_key for part in manifest.parts if part.base_offset < end_offset}
        holes = [hole for hole in holes_of(manifest, sizes) if hole.object_key in needed]
        if not holes:
            return manifest, []
        if readable is None:
            readable = manifest
            faults = [f"[{one.base_offset}, {one.end_offset}) in {one.object_key}: {one.why}" for one in holes]
    return readable, faults or unread


async def _planned(
    store: ObjectStore, cluster_id: str, key: SegmentKey, manifest: Manifest, shard: CutShard
) -> PlannedSegment:
    end_offset = min(manifest.seal.end_offset, shard.end_offset)
    chain: list[FoundPart] = []
    for part in manifest.parts:
        if part.base_offset >= end_offset:
            break
        header = await read_part_header(store, cluster_id, key, part)
        chain.append(FoundPart(part, header.digest_before, header.digest_after, 0, 0))
    return PlannedSegment(key, end_offset, None, None, tuple(chain))
