"""Mounts as the fields of a stored value (see `encoding`)."""

from __future__ import annotations

from typing import Any, TypeAlias
from uuid import UUID

from stratalog.model.mounts import Mount, MountedTopic, MountMode, MountState, OffsetRange, Volume

Json: TypeAlias = Any  # what json.loads makes; checked by use, a surprise becomes Corrupt in `decode`


def mount_fields(mount: Mount) -> tuple[object, ...]:
    """In their order; more are only ever added at the end."""
    held = (mount.token, mount.holder, mount.holder_epoch)
    topics = [(topic.topic_id.hex, topic.name, topic.ranges) for topic in mount.topics]
    volume = None if mount.volume is None else (mount.volume.host, mount.volume.port, mount.volume.start_id)
    of_node = (mount.mode, mount.node_id, mount.storage_id, mount.rack)
    return (*of_node, mount.state, *held, mount.created_ms, volume, topics, mount.expires_ms, mount.is_doubted)


def read_mount(name: str, fields: Json) -> Mount:
    mode, node_id, storage_id, rack, state, token, holder, holder_epoch, created_ms = fields[:9]
    volume = Volume(*fields[9]) if len(fields) > 9 and fields[9] is not None else None
    topics = tuple(
        MountedTopic(UUID(hex=topic_id), topic, tuple([OffsetRange(*one) for one in ranges]))
        for topic_id, topic, ranges in (fields[10] if len(fields) > 10 else ())
    )
    return Mount(
        name,
        MountMode(mode),
        node_id,
        storage_id,
        MountState(state),
        token,
        created_ms,
        rack,
        holder,
        holder_epoch,
        volume,
        topics,
        fields[11] if len(fields) > 11 else 0,
        fields[12] if len(fields) > 12 else False,
    )
