"""Checks whether a mount can be read: finds the oldest and the newest segment of a retired node's data set.

In offload mode these are segments in the object store, and the seal records, which permanently name the nodes that
proved the digest, say which were the node's. In volume mode they are segments that the node still holds, read through
the process that serves its directory. Empty segments, such as the last of a node that left, prove nothing and are
skipped.
Cost: one walk over all segments for all mounts that wait for it at the time, and only one walk at a time; the result is
remembered for as long as those two segments exist and belong to the data set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from stratalog.event_loop.task_set import TaskSet
from stratalog.formats.bucket.object_names import ObjectNames
from stratalog.machines.tiering.mounted_uploads import why_closed
from stratalog.model.errors import Unavailable
from stratalog.model.mounts import Mount, MountMode
from stratalog.model.segment import RemoteState, Segment
from stratalog.objects.store import ObjectStore
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.copies.peer_reads import PeerReads
from stratalog_node.tier.cold.cold_reader import ColdReader
from stratalog_node.tier.store.remote_copy import check_remote_copy

_SEGMENTS_PER_TURN: Final = 1_000
_SHARDS_PER_TURN: Final = 200


class DataSetProbe:
    def __init__(
        self,
        catalog: Catalog,
        store: ObjectStore | None,
        cold: ColdReader | None,
        peers: PeerReads,
        cluster_id: str,
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._cold = cold
        self._peers = peers
        self._names = ObjectNames("", cluster_id)
        self._chosen: dict[str, tuple[int, list[Segment]]] = {}
        """For each mount its token and the two segments that are read."""
        self._wanted: dict[tuple[str, int], Mount] = {}
        """Mounts whose oldest and newest segment are to be found."""
        self._walking: asyncio.Task[None] | None = None
        self._tasks = TaskSet()

    async def close(self) -> None:
        await self._tasks.cancel()

    async def __call__(self, mount: Mount) -> None:
        """Raises: Unavailable, Corrupt, NotFound."""
        if mount.mode is MountMode.VOLUME and mount.volume is None:
            raise Unavailable(why_closed(mount))
        token, chosen = self._chosen.get(mount.name, (-1, []))
        if token != mount.token or not all(self._is_of(mount, one) for one in chosen):
            chosen = await self._oldest_and_newest(mount)
        for segment in chosen:
            await (self._read_volume if mount.mode is MountMode.VOLUME else self._read_store)(mount, segment)

    def _is_of(self, mount: Mount, chosen: Segment) -> bool:
        """Whether the segment still belongs to the mount: a directory no longer serves a segment that does not list
        it."""
        now = self._catalog.segment(chosen.key)
        return now is not None and (mount.mode, mount.node_id) in _data_sets_of(now)

    async def _oldest_and_newest(self, mount: Mount) -> list[Segment]:
        """By the times of their seals."""
        at = mount.name, mount.token
        self._wanted[at] = mount
        while at in self._wanted:  # until a walk has found them
            walking = self._walking
            if walking is None or walking.done():
                walking = self._walking = self._tasks.start(self._walk(dict(self._wanted)), name="mounts-walk")
            await asyncio.shield(walking)  # over many segments it takes longer than a caller may wait
        return self._chosen[mount.name][1]

    async def _walk(self, wanted: Mapping[tuple[str, int], Mount]) -> None:
        """For all of these, whoever of them still waits."""
        found: dict[str, list[Segment]] = {mount.name: [] for mount in wanted.values()}
        names = {(mount.mode, mount.node_id): mount.name for mount in wanted.values()}
        count = 0
        for number, key in enumerate(list(self._catalog.shard_keys()), 1):
            if number % _SHARDS_PER_TURN == 0:
                await asyncio.sleep(0)
            for segment in self._catalog.segments(key):
                count += 1
                if count % _SEGMENTS_PER_TURN == 0:
                    await asyncio.sleep(0)
                for of in _data_sets_of(segment):
                    if of in names:
                        _keep_oldest_and_newest(found[names[of]], segment)
        for at, mount in wanted.items():
            self._chosen[mount.name] = mount.token, found[mount.name]
            self._wanted.pop(at, None)

    async def _read_store(self, _mount: Mount, segment: Segment) -> None:
        if self._store is None or self._cold is None:
            raise Unavailable(
                f"segment {segment.key} is in the object store, and this node was started without one: start it with "
                "--bucket"
            )
        await check_remote_copy(self._store, self._names, segment)
        assert segment.seal is not None
        if self._catalog.log_start_offset(segment.key.shard_key) < segment.seal.end_offset:
            await self._cold.read([segment], segment.seal.end_offset - 1, 1)

    async def _read_volume(self, mount: Mount, segment: Segment) -> None:
        assert segment.seal is not None
        await self._peers.probe(segment, mount.node_id, segment.seal.end_offset - 1)


def _data_sets_of(segment: Segment) -> list[tuple[MountMode, int]]:
    """The data sets that the segment belongs to."""
    if segment.seal is None or not segment.seal.size_bytes:
        return []
    found = [(MountMode.VOLUME, node_id) for node_id in segment.local_nodes]
    if segment.remote.state is RemoteState.COMPLETE:
        found += [(MountMode.OFFLOAD, node_id) for node_id in segment.seal.replicas]
    return found


def _keep_oldest_and_newest(found: list[Segment], segment: Segment) -> None:
    if len(found) < 2:
        found.append(segment)
        found.sort(key=_sealed_ms)
    elif _sealed_ms(segment) < _sealed_ms(found[0]):
        found[0] = segment
    elif _sealed_ms(segment) > _sealed_ms(found[1]):
        found[1] = segment


def _sealed_ms(segment: Segment) -> int:
    return segment.seal.sealed_ms if segment.seal is not None else 0
