"""Answers where one offset is: which tier, which file or object, at which byte, and why a read would go there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from stratalog.admin_api.models import Location, Tier
from stratalog.admin_api.next_steps import GIVE_BUCKET
from stratalog.formats.batches.record_batch import parse_header, walk
from stratalog.formats.bucket.part import PART_HEADER_BYTES
from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.formats.segments.index_block import decode_index_block
from stratalog.machines.reading.read_sources import ReadSource, provers, sources
from stratalog.machines.restart.missing_copy import judge_missing
from stratalog.model.batch import BATCH_HEADER_BYTES, BatchHeader
from stratalog.model.errors import Corrupt, NotFound, StratalogError
from stratalog.model.segment import RemotePart, RemoteState, Segment
from stratalog.objects.store import ObjectStore
from stratalog.settings.choices import ReadPolicy, RemoteCompression
from stratalog.settings.topic import TopicSettings
from stratalog.stored.remote.manifests import ExpectedManifest, read_manifest
from stratalog.stored.remote.parts import read_part_index
from stratalog_node.admin.describe import end_of, holders_of, places_of
from stratalog_node.admin.services import AdminServices
from stratalog_node.disk.inspection import inspect_file, read_small_file
from stratalog_node.shards.copies.shard_view import ShardView

_WHY_POLICY = {
    ReadPolicy.DISABLE: "remote.read.policy=Disable: reads never go to the object store",
    ReadPolicy.NOT_IN_DISK: "remote.read.policy=NotInDisk: what is on disk is read from disk",
    ReadPolicy.NOT_IN_MEMORY: "remote.read.policy=NotInMemory: sealed data goes through the object store unless cached",
    ReadPolicy.FORCE: "remote.read.policy=Force: whatever is in the object store is read from there",
}


async def locate(services: AdminServices, topic_name: str, shard: int, offset: int) -> Location:
    """Raises: NotFound for an unknown topic or shard. An offset that cannot be read is an answer, with the reason."""
    topic = services.topic(topic_name)
    view = services.shard(topic, shard)
    led = services.catalog.leader_of(view.key)
    leader = led[0] if led is not None else None
    answer = Location(
        topic=topic.name,
        shard=shard,
        offset=offset,
        is_readable=False,
        tier=Tier.NONE,
        why=[],
        node_id=services.node_id,
        leader=leader,
    )
    if offset < view.log_start_offset:
        return _unreadable(
            answer, f"below the log start offset {view.log_start_offset}: retention or DeleteRecords took it"
        )
    if offset >= view.high_watermark:
        if leader is not None and leader != services.node_id:
            return _unreadable(answer, f"node {leader} leads the shard and knows where it ends: ask it with --admin")
        return _unreadable(
            answer, f"at or above the high watermark {view.high_watermark}: not written, or not committed yet"
        )
    segment = _segment_of(view, offset)
    if segment is None:
        return _unreadable(answer, "no segment holds it: metadata is being changed, ask again")
    settings = services.catalog.topic_settings(topic.topic_id)
    policy, storage_class = settings.remote_read_policy, settings.remote_storage_class.asked_for
    answer = answer.model_copy(
        update={
            "state": segment.state.value,
            "epoch": segment.epoch,
            "segment_base_offset": segment.base_offset,
            "holders": list(holders_of(segment)),
        }
    )
    is_cold = offset < segment.remote.commit_offset or segment.remote.state is RemoteState.COMPLETE
    is_local = view.has_local(segment.key) and await _has_file(services, view, segment)
    why = [_WHY_POLICY[policy]]
    if is_local:
        why.append("the segment has a local copy")
    else:
        may_read = policy is not ReadPolicy.DISABLE
        has_store = services.store is not None
        why.append(judge_missing(segment, services.node_id, has_store=has_store, may_read=may_read).what)
    if is_cold:
        why.append(f"the object store holds everything below offset {_durable_end(segment)} of this segment")
        if storage_class:
            why.append(f"remote.storage.class={storage_class}: chunks are uploaded in that storage class")
        if settings.remote_compression is not RemoteCompression.NONE:
            why.append(f"remote.compression={settings.remote_compression.value}: chunks are uploaded compressed")
        if services.store is None:
            why.append(f"this node was started without an object store: {GIVE_BUCKET}")
    elif services.store is None:
        why.append("this node has no object store")
    else:
        why.append(f"not yet in the object store{_waits_for(segment, settings)}")
    wants_cold = policy is ReadPolicy.FORCE or (policy is ReadPolicy.NOT_IN_MEMORY and segment.seal is not None)
    if is_local and not (is_cold and wants_cold):
        return await _local(services, view, segment, answer, why)
    order = _elsewhere(services, segment, policy, is_in_store=is_cold)
    if not order:
        return _unreadable(answer, *why)
    if order[0] is not ReadSource.STORE or services.store is None:
        why.append(f"a read here goes to {order[0].value}")
        return answer.model_copy(update={"is_readable": True, "tier": Tier.ELSEWHERE, "why": why})
    return await _cold(services.store, services, view, segment, answer, why)


def _waits_for(segment: Segment, settings: TopicSettings) -> str:
    if segment.is_direct or segment.seal is not None or not settings.remote_storage_enable:
        return ""
    return f" (remote.upload.interval.ms={settings.remote_upload_interval_ms}: the longest that it waits to go there)"


def _elsewhere(
    services: AdminServices, segment: Segment, policy: ReadPolicy, *, is_in_store: bool
) -> Sequence[ReadSource]:
    """The sources that this node would use for data that it has no copy of."""

    def rack_of(node_id: int) -> str | None:
        node = services.catalog.node(node_id)
        return node.rack if node is not None else None

    near, far = provers(segment, services.node_id, rack_of(services.node_id), rack_of)
    return sources(
        policy.value,
        has_near=any(map(services.catalog.is_alive, near)),
        has_far=any(map(services.catalog.is_alive, far)),
        is_in_store=is_in_store and services.store is not None,
    )


async def _has_file(services: AdminServices, view: ShardView, segment: Segment) -> bool:
    """The first append makes an active segment's file."""
    path = services.layout.segment(segment.key)
    return end_of(view, segment) == segment.base_offset or await asyncio.to_thread(path.exists)


def _unreadable(answer: Location, *why: str) -> Location:
    return answer.model_copy(update={"why": list(why)})


def _durable_end(segment: Segment) -> int:
    return (
        segment.end_offset
        if segment.end_offset is not None and segment.remote.manifest_key
        else segment.remote.commit_offset
    )


def _segment_of(view: ShardView, offset: int) -> Segment | None:
    for segment in reversed(view.segments):
        if segment.base_offset <= offset < end_of(view, segment):
            return segment
    return None


def _with_batch(header: BatchHeader) -> dict[str, object]:
    return {
        "is_readable": True,
        "batch_base_offset": header.base_offset,
        "batch_end_offset": header.end_offset,
        "batch_size_bytes": header.size_bytes,
        "record_count": header.record_count,
    }


async def _local(
    services: AdminServices, view: ShardView, segment: Segment, answer: Location, why: list[str]
) -> Location:
    place = str(services.layout.segment(segment.key))
    found: dict[str, object] = {"tier": Tier.LOCAL, "place": place, "why": why}
    found["also_at"] = [other for other in places_of(services, view, segment) if other != place]
    # What is in memory of the index leads close to the batch; both calls see the same high watermark.
    whole = view.size_below_high_watermark(segment.key, segment.base_offset)
    near = whole - view.size_below_high_watermark(segment.key, answer.offset)
    try:
        position, header = await asyncio.to_thread(_batch_in_file, services, segment, near, answer.offset)
    except StratalogError as error:
        return answer.model_copy(update=found | {"why": [*why, f"looking it up in the file failed: {error}"]})
    return answer.model_copy(update=found | _with_batch(header) | {"position": position})


def _batch_in_file(services: AdminServices, segment: Segment, near: int, offset: int) -> tuple[int, BatchHeader]:
    """Blocking: from a batch boundary on, hop from header to header. Positions in the file."""
    if segment.seal is not None:
        with suppress(NotFound, Corrupt):
            path = services.layout.index(segment.key)
            block = decode_index_block(read_small_file(path), source=str(path))
            near = max(near, block.position_for_offset(offset)[0])
    with inspect_file(services.layout.segment(segment.key)) as file:
        position = SEGMENT_HEADER_BYTES + near
        while position < file.size_bytes:
            data = file.read(position, BATCH_HEADER_BYTES)
            header = parse_header(data) if len(data) == BATCH_HEADER_BYTES else None
            if header is None or header.size_bytes < BATCH_HEADER_BYTES:
                raise Corrupt("no batch header here", source=file.name, position=position)
            if header.end_offset > offset:
                return position, header
            position += header.size_bytes
        raise Corrupt(f"the file ends before offset {offset}", source=file.name, position=position)


async def _cold(
    store: ObjectStore,
    services: AdminServices,
    view: ShardView,
    segment: Segment,
    answer: Location,
    why: list[str],
) -> Location:
    found: dict[str, object] = {"tier": Tier.COLD, "why": why}
    try:
        part = await _part_of(store, services.cluster_id, segment, answer.offset)
        position, header = await _batch_in_part(store, services.cluster_id, segment, part, answer.offset)
    except StratalogError as error:
        return answer.model_copy(update=found | {"why": [*why, f"looking it up in the object store failed: {error}"]})
    found |= _with_batch(header) | {"place": f"{store.url}/{part.object_key}", "position": position}
    found["also_at"] = [str(services.layout.segment(segment.key))] if view.has_local(segment.key) else []
    return answer.model_copy(update=found)


async def _part_of(store: ObjectStore, cluster_id: str, segment: Segment, offset: int) -> RemotePart:
    parts = segment.remote.parts
    source = str(segment.key)
    if segment.remote.manifest_key is not None:
        source = segment.remote.manifest_key
        parts = (await read_manifest(store, ExpectedManifest.of_segment(cluster_id, segment))).parts
    for part in parts:
        if part.base_offset <= offset < part.end_offset:
            return part
    raise Corrupt(f"no part holds offset {offset}", source=source, position=0)


async def _batch_in_part(
    store: ObjectStore, cluster_id: str, segment: Segment, part: RemotePart, offset: int
) -> tuple[int, BatchHeader]:
    """Header, index, then only the stretch of batches that the index names: three small requests."""
    key, start = part.object_key, part.position
    index = await read_part_index(store, cluster_id, segment.key, part)
    low, high = index.position_for_offset(offset)
    first = start + PART_HEADER_BYTES + low
    data = await store.get_range(key, first, start + PART_HEADER_BYTES + high)
    for position, batch in walk(data, source=key, position=first, epoch=segment.epoch):
        if batch.end_offset > offset:
            return first + position, batch
    raise Corrupt(f"the index leads to no batch with offset {offset}", source=key, position=first)
