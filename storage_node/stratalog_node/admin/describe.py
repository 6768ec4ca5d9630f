"""Topics, shards and segments as the admin API shows them. Plain reads of what is in memory; no file, no request.

What is summed up over many segments is a coroutine and goes in `Slices`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Final

from stratalog.admin_api.models import SegmentInfo, SettingInForce, ShardInfo, Tier, TierBytes, TopicInfo
from stratalog.model.segment import RemoteState, Segment, SegmentState
from stratalog.model.topic import Topic
from stratalog.settings.describe import SettingSource, describe_topic
from stratalog.settings.process import ProcessSettings
from stratalog_node.admin.services import AdminServices
from stratalog_node.check.remote_segment import place_of
from stratalog_node.shards.copies.shard_view import ShardView
from stratalog_node.slices import Slices

MAX_PLACES: Final = 100
"""Parts whose places a list of segments names, of each segment."""
_SOURCES = {SettingSource.TOPIC: "topic", SettingSource.PROCESS: "process", SettingSource.DEFAULT: "default"}


def end_of(view: ShardView, segment: Segment) -> int:
    """The end of a segment; for the active one, of what is committed."""
    return segment.end_offset if segment.end_offset is not None else max(view.high_watermark, segment.base_offset)


def local_bytes(view: ShardView, segment: Segment) -> int:
    if not view.has_local(segment.key):
        return 0
    if segment.seal is not None:
        return segment.seal.size_bytes
    return view.size_below_high_watermark(segment.key, segment.base_offset)


def holders_of(segment: Segment) -> tuple[int, ...]:
    """Nodes that have a copy: that proved it, once it is sealed; before that, all its replicas."""
    return segment.local_nodes if segment.seal is not None else segment.replicas


def tier_of(services: AdminServices, view: ShardView, segment: Segment) -> Tier:
    """A partial remote copy counts only for what is in it: the segment is then `local` or `both`."""
    is_local, is_cold = view.has_local(segment.key), segment.remote.state is not RemoteState.NONE
    if is_local:
        return Tier.BOTH if is_cold else Tier.LOCAL
    if is_cold:
        return Tier.COLD
    return Tier.ELSEWHERE if any(node != services.node_id for node in holders_of(segment)) else Tier.NONE


def is_out_of_reach(services: AdminServices, view: ShardView, segment: Segment) -> bool:
    """Its data is only in an object store, and this node was started without one."""
    return services.store is None and tier_of(services, view, segment) is Tier.COLD and cold_bytes(segment) > 0


@dataclass(slots=True)
class ShardSums:
    """The sums over all segments of one shard, or of several."""

    segments: int = 0
    local: int = 0
    cold: int = 0
    commit_offset: int = -1
    """Highest of them."""

    @property
    def bytes(self) -> TierBytes:
        return TierBytes(local=self.local, cold=self.cold)

    async def add(self, view: ShardView, slices: Slices) -> None:
        await slices.did()
        for segment in tuple(view.segments):
            self.segments += 1
            self.local += local_bytes(view, segment)
            self.cold += cold_bytes(segment)
            self.commit_offset = max(self.commit_offset, segment.remote.commit_offset)
            await slices.did()


def cold_bytes(segment: Segment) -> int:
    """Bytes of batches in the object store: exact for a complete copy, with part headers while it is partial."""
    remote = segment.remote
    if remote.state is RemoteState.COMPLETE and segment.seal is not None:
        return segment.seal.size_bytes
    return remote.size_bytes if remote.parts else 0


def unsent_bytes(view: ShardView, segment: Segment) -> int:
    """Committed bytes of a segment that are not in the object store yet."""
    if segment.remote.state is RemoteState.COMPLETE or not view.has_local(segment.key):
        return 0
    return view.size_below_high_watermark(segment.key, max(segment.base_offset, segment.remote.commit_offset))


async def topic_info(services: AdminServices, topic: Topic, slices: Slices) -> TopicInfo:
    sums = ShardSums()
    for view in services.views(topic):
        await sums.add(view, slices)
    return TopicInfo(
        name=topic.name,
        topic_id=str(topic.topic_id),
        shards=topic.shard_count,
        replication_factor=topic.replication_factor,
        is_internal=topic.is_internal,
        created_ms=topic.created_ms,
        settings=dict(topic.settings),
        segments=sums.segments,
        bytes=sums.bytes,
    )


async def shard_info(view: ShardView, node_id: int, slices: Slices) -> ShardInfo:
    sums = ShardSums()
    await sums.add(view, slices)
    segments = view.segments
    active = segments[-1] if segments and segments[-1].state is SegmentState.ACTIVE else None
    is_elsewhere = active is not None and active.leader not in (None, node_id)
    return ShardInfo(
        shard=view.key.shard,
        log_start_offset=view.log_start_offset,
        high_watermark=None if is_elsewhere else view.high_watermark,
        last_stable_offset=None if is_elsewhere else view.last_stable_offset,
        commit_offset=sums.commit_offset,
        leader=active.leader if active else None,
        isr=list(active.isr) if active else [],
        epoch=segments[-1].epoch if segments else -1,
        segments=sums.segments,
        bytes=sums.bytes,
    )


def segment_info(services: AdminServices, view: ShardView, segment: Segment) -> SegmentInfo:
    seal = segment.seal
    places = places_of(services, view, segment, MAX_PLACES)
    return SegmentInfo(
        topic=view.topic.name,
        shard=view.key.shard,
        epoch=segment.epoch,
        state=segment.state.value,
        base_offset=segment.base_offset,
        end_offset=end_of(view, segment),
        size_bytes=seal.size_bytes if seal else local_bytes(view, segment),
        first_timestamp_ms=seal.first_timestamp_ms if seal else -1,
        max_timestamp_ms=seal.max_timestamp_ms if seal else -1,
        tier=tier_of(services, view, segment),
        remote_state=segment.remote.state.value,
        commit_offset=segment.remote.commit_offset,
        leader=segment.leader,
        replicas=list(segment.replicas),
        isr=list(segment.isr) if seal is None else [],
        local_nodes=list(segment.local_nodes),
        digest=seal.digest.hex() if seal else None,
        places=places,
        more_places=max(0, len(segment.remote.parts) - MAX_PLACES) if services.store is not None else 0,
        node_id=services.node_id,
    )


def places_of(services: AdminServices, view: ShardView, segment: Segment, most_parts: int | None = None) -> list[str]:
    """Its file, its manifest, and the objects of its first `most_parts` parts (a quiet segment has thousands)."""
    places = []
    if view.has_local(segment.key):
        places.append(str(services.layout.segment(segment.key)))
    if services.store is not None:
        if segment.remote.manifest_key is not None:
            places.append(f"{services.store.url}/{segment.remote.manifest_key}")
        parts = islice(segment.remote.parts, most_parts)
        places += [f"{services.store.url}/{place_of(part)}" for part in parts]
    return places


def settings_in_force(settings: ProcessSettings, topic: Topic) -> list[SettingInForce]:
    return [
        SettingInForce.model_validate(
            {
                "key": value.key,
                "value": value.value,
                "source": _SOURCES[value.source],
                "description": value.description,
            }
        )
        for value in describe_topic(settings, topic.settings)
    ]
