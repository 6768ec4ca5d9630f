"""Makes a new cluster of a consistent cut, from the bucket alone.

The segments are copied under the new cluster's id, byte for byte but for the identity in their headers, and end where
the cut does; so the new cluster rests on nothing of the old one, which may live on. Every batch is read and checked.
The records go into an empty store, the header last.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from stratalog.formats.manifest import Manifest, decode_manifest
from stratalog.formats.object_names import ObjectNames, SegmentObject, SegmentObjectName
from stratalog.formats.part import PART_HEADER_BYTES, decode_part_header
from stratalog.machines.chunk_merging import last_to_stay
from stratalog.machines.part_chain import FoundPart
from stratalog.machines.rebuilt_shard import PlannedSegment, ShardPlan
from stratalog.machines.rebuilt_table import Published, RebuildPlan, records_of
from stratalog.machines.sealed_producers import Producers
from stratalog.machines.table_locks import NOBODY
from stratalog.machines.table_records import TableHeader
from stratalog.model.counting import counted
from stratalog.model.cut import Cut, CutShard
from stratalog.model.errors import AlreadyExists, Corrupt
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Lock
from stratalog.model.mounts import data_set_name
from stratalog.objects.store import ObjectStore
from stratalog_meta.bucket.publish import DamagedPart, SegmentPublisher, Writer
from stratalog_meta.bucket.rebuild import write_records
from stratalog_meta.bucket.scan import each
from stratalog_meta.service import FIRST_PRODUCER_ID
from stratalog_meta.stores.meta_store import MetaStore

_FIRST_EPOCH: Final = 1
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
    publisher = SegmentPublisher(store, ObjectNames("", cluster_id), Writer(nodes[0], _FIRST_EPOCH), now_ms)
    topics = {topic.topic_id: topic.name for topic in cut.topics}
    plans: dict[CutShard, ShardPlan] = {}
    published: dict[SegmentKey, Published] = {}
    done = 0

    async def copy(shard: CutShard) -> None:
        nonlocal done
        plan = plans[shard] = ShardPlan(shard.key, shard.log_start_offset)
        producers: Producers = ()
        for key, manifest in await _manifests(store, names, shard):
            planned = await _planned(store, key, manifest, shard)
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


async def _manifests(store: ObjectStore, names: ObjectNames, shard: CutShard) -> list[tuple[SegmentKey, Manifest]]:
    """Of the segments that the cut needs, in order and without a gap."""
    ranked: dict[SegmentKey, tuple[tuple[bool, int, int], str]] = {}
    async for info in store.list(names.shard_prefix(shard.key)):
        name = names.parse(info.key)
        if not isinstance(name, SegmentObjectName) or name.kind is not SegmentObject.MANIFEST:
            continue
        if shard.needs(name.segment, name.to_offset):
            one = (last_to_stay(name.node_id, name.lock_epoch, name.attempt), info.key)
            ranked[name.segment] = max(one, ranked.get(name.segment, one))  # of one segment all are true
    found: list[tuple[SegmentKey, Manifest]] = []
    at = shard.log_start_offset
    for segment in sorted(ranked, key=lambda key: key.epoch):
        _, source = ranked[segment]
        manifest = decode_manifest(await store.get(source), source=source)
        if segment.base_offset > at or (found and segment.base_offset != at):
            break
        found.append((segment, manifest))
        at = manifest.seal.end_offset
    if at < shard.end_offset:
        where = names.shard_prefix(shard.key)
        raise Corrupt(f"the snapshot needs offset {at}, which no manifest there has", source=where, position=0)
    return found


async def _planned(store: ObjectStore, key: SegmentKey, manifest: Manifest, shard: CutShard) -> PlannedSegment:
    end_offset = min(manifest.seal.end_offset, shard.end_offset)
    chain: list[FoundPart] = []
    for part in manifest.parts:
        if part.base_offset >= end_offset:
            break
        head = await store.get_range(part.object_key, part.position, part.position + PART_HEADER_BYTES)
        header = decode_part_header(head, source=part.object_key, position=part.position)
        chain.append(FoundPart(part, header.digest_before, header.digest_after, 0, 0))
    return PlannedSegment(key, end_offset, None, None, tuple(chain))
