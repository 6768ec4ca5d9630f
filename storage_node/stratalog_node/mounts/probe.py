"""Whether what is mounted can be read: the oldest and the newest segment of a retired node's data set.

Which segments these are their seal records say: they name who proved the digest, for good.
"""

from __future__ import annotations

import asyncio
from typing import Final

from stratalog.formats.object_names import ObjectNames
from stratalog.model.errors import Unavailable
from stratalog.model.mounts import Mount
from stratalog.model.segment import RemoteState, Segment
from stratalog.objects.store import ObjectStore
from stratalog_node.shards.catalog import Catalog
from stratalog_node.tier.cold_reader import ColdReader
from stratalog_node.tier.remote_copy import check_remote_copy

_SHARDS_PER_TURN: Final = 200


class DataSetProbe:
    def __init__(self, catalog: Catalog, store: ObjectStore | None, cold: ColdReader | None, cluster_id: str) -> None:
        self._catalog = catalog
        self._store = store
        self._cold = cold
        self._names = ObjectNames("", cluster_id)

    async def __call__(self, mount: Mount) -> None:
        """Raises: Unavailable, Corrupt, NotFound."""
        for segment in await self._oldest_and_newest(mount.node_id):
            await self._read(segment)

    async def _oldest_and_newest(self, node_id: int) -> list[Segment]:
        """Of what is in the object store, by the times of their seals."""
        found: list[Segment] = []
        for number, key in enumerate(list(self._catalog.shard_keys()), 1):
            if number % _SHARDS_PER_TURN == 0:
                await asyncio.sleep(0)
            for segment in self._catalog.segments(key):
                seal = segment.seal
                if seal is None or node_id not in seal.replicas or segment.remote.state is not RemoteState.COMPLETE:
                    continue
                if len(found) < 2:
                    found.append(segment)
                    found.sort(key=_sealed_ms)
                elif seal.sealed_ms < _sealed_ms(found[0]):
                    found[0] = segment
                elif seal.sealed_ms > _sealed_ms(found[1]):
                    found[1] = segment
        return found

    async def _read(self, segment: Segment) -> None:
        if self._store is None or self._cold is None:
            raise Unavailable(
                f"segment {segment.key} lies in the object store, and this node was started without one: start it with "
                "--bucket"
            )
        await check_remote_copy(self._store, self._names, segment)
        assert segment.seal is not None
        if segment.seal.size_bytes and self._catalog.log_start_offset(segment.key.shard_key) < segment.seal.end_offset:
            await self._cold.read([segment], segment.seal.end_offset - 1, 1)


def _sealed_ms(segment: Segment) -> int:
    return segment.seal.sealed_ms if segment.seal is not None else 0
