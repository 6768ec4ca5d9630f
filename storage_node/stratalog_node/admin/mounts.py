"""Mounts in the admin API: lists, creates, moves and ends them. Lives on the event loop."""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.admin_api.mounts import CreateMountRequest, EndMountRequest, MountInfo, MoveMountRequest
from stratalog.event_loop.fair_turns import FairTurns
from stratalog.machines.reading.bucket_reads import is_readable_without_nodes
from stratalog.model.commands.mount_commands import CreateMount, EndMount, MoveMount
from stratalog.model.mounts import Mount, MountMode
from stratalog.model.segment import Segment
from stratalog_node.admin.services import AdminServices
from stratalog_node.slices import Slices


class MountAdmin:
    def __init__(self, services: AdminServices, turns: FairTurns) -> None:
        self._services = services
        self._turns = turns

    async def mounts(self) -> list[MountInfo]:
        """By name. Cost: a check of each segment, in slices."""
        mounts = sorted(self._services.catalog.mounts(), key=lambda mount: (mount.node_id, mount.name))
        return await self._described(mounts)

    async def create(self, request: CreateMountRequest) -> MountInfo:
        """Raises: AlreadyExists, NotFound, InvalidRequest, Unavailable, OutcomeUnknown."""
        when = request.from_ms, request.until_ms, request.lasts_ms
        command = CreateMount(request.name, tuple(request.topics), *when, request.snapshot)
        mount = await self._services.meta.perform(command)
        return (await self._described([mount]))[0]

    async def move(self, request: MoveMountRequest) -> MountInfo:
        """Raises: NotFound, Conflict, Unavailable, OutcomeUnknown."""
        mount = await self._services.meta.perform(MoveMount(request.name, request.node_id))
        return (await self._described([mount]))[0]

    async def end(self, request: EndMountRequest) -> None:
        """Raises: Conflict, InvalidRequest, Unavailable."""
        await self._services.meta.perform(EndMount(request.name, request.force_storage_id))

    async def _described(self, mounts: Iterable[Mount]) -> list[MountInfo]:
        found = {mount.name: mount for mount in mounts}
        counts = {name: [0, 0, 0] for name in found}
        slices = Slices(self._turns)
        for key in list(self._services.catalog.shard_keys()) if found else ():
            segments = self._services.catalog.segments(key)
            await slices.did(1 + len(segments))
            may_read = self._services.catalog.reads_bucket(key.topic_id)
            for segment in segments:
                for name, mount in found.items():
                    if _is_of(segment, mount):
                        counted = counts[name]
                        counted[0] += 1
                        counted[1] += segment.seal.size_bytes if segment.seal is not None else 0
                        counted[2] += _is_only_there(segment, mount, may_read_bucket=may_read)
        return [_info(mount, *counts[name]) for name, mount in found.items()]


def _is_of(segment: Segment, mount: Mount) -> bool:
    if mount.mode is MountMode.HAND_MADE:
        ranges = next((one.ranges for one in mount.topics if one.topic_id == segment.key.topic_id), ())
        if segment.seal is None or segment.key.shard >= len(ranges):
            return False
        base_offset, end_offset = ranges[segment.key.shard]
        return base_offset < segment.seal.end_offset and segment.base_offset < end_offset
    if mount.mode is MountMode.VOLUME:
        return mount.node_id in segment.local_nodes
    return segment.seal is not None and mount.node_id in segment.seal.replicas


def _is_only_there(segment: Segment, mount: Mount, *, may_read_bucket: bool) -> bool:
    is_elsewhere = is_readable_without_nodes(segment, may_read_bucket=may_read_bucket)
    return segment.local_nodes == (mount.node_id,) and not is_elsewhere


def _info(mount: Mount, segments: int, size_bytes: int, only_there: int) -> MountInfo:
    return MountInfo(
        name=mount.name,
        mode=mount.mode,
        state=mount.state,
        node_id=mount.node_id,
        storage_id=mount.storage_id,
        rack=mount.rack,
        holder=mount.holder,
        token=mount.token,
        created_ms=mount.created_ms,
        volume=None if mount.volume is None else f"{mount.volume.host}:{mount.volume.port}",
        segments=segments,
        bytes=size_bytes,
        only_there=only_there,
        topics=[topic.as_topic(mount).name for topic in mount.topics],
        expires_ms=mount.expires_ms,
    )
