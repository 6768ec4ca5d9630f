"""A meta service over HTTP that knows what a `ColdShard` put into a bucket, for the job that merges chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stratalog.formats.bucket.manifest import Manifest, decode_manifest
from stratalog.formats.bucket.object_names import ObjectNames
from stratalog.model.commands.table_commands import CommitParts, CompleteRemote, RollSegment, SealSegment
from stratalog.model.metadata import PartCommit
from stratalog.model.segment import Segment
from stratalog.objects import ObjectStore, open_store
from stratalog_pipeline.jobs.repair.compact import Compacted, CompactOptions, compact
from stratalog_pipeline.jobs.repair.verify import Verified, verify
from stratalog_pipeline.jobs.runners import Runner, one_by_one
from support.cold_data import ColdShard
from support.copied_objects import move_objects
from support.meta_worlds import MetaWorld, running

TARGET_BYTES = 64 << 10


@dataclass(slots=True)
class CompactWorld:
    """One topic of one shard, whose segments are complete in a bucket."""

    world: MetaWorld
    store: ObjectStore
    bucket: str
    cold: ColdShard
    active: Segment
    shown: list[tuple[str, int, int]] = field(default_factory=list)

    @property
    def meta_url(self) -> str:
        assert self.world.url is not None, "it is reached over HTTP"
        return self.world.url

    async def add(self, parts: Sequence[Sequence[bytes]]) -> Segment:
        """A segment of these parts, sealed and complete."""
        client, lock = self.world.client, await self.world.lock()
        put = await self.cold.add(parts)
        assert put.key == self.active.key and put.seal is not None and put.end_offset is not None
        await move_objects(self.cold.store, self.store, self.bucket)
        body = await self.store.get(put.remote.manifest_key or "")
        manifest = decode_manifest(body, source="just put")
        self.active = await client.perform(RollSegment(put.key, put.end_offset))
        await client.perform(SealSegment(put.key, put.seal))
        # Parts give way to the manifest: for the metadata they may as well have been one.
        whole = replace(manifest.parts[0], end_offset=put.end_offset)
        await client.perform(CommitParts(lock, (PartCommit(put.key, -1, whole),)))
        remote, size_bytes = put.remote, manifest.copy_bytes + len(body)
        assert remote.manifest_key is not None and remote.manifest_digest is not None
        return await client.perform(
            CompleteRemote(lock, put.key, remote.manifest_key, remote.manifest_digest, size_bytes)
        )

    async def segments(self) -> list[Segment]:
        """As the metadata know them now, without the active one."""
        return list((await self.world.client.snapshot()).shards[0].segments[:-1])

    async def manifests(self) -> list[Manifest]:
        keys = [segment.remote.manifest_key or "" for segment in await self.segments()]
        return [decode_manifest(await self.store.get(key), source=key) for key in keys]

    async def compact(self, run: Runner = one_by_one, **changes: Any) -> Compacted:
        wanted = {"target_bytes": TARGET_BYTES, "lease_ms": 2_000} | changes
        options = CompactOptions(self.bucket, self.meta_url, **wanted)
        return await asyncio.to_thread(compact, options, run, lambda *step: self.shown.append(step))

    async def verify(self) -> Verified:
        return await asyncio.to_thread(verify, self.bucket, one_by_one, meta_url=self.meta_url)

    async def delete_what_metadata_do_not_name(self, *, but_manifests: bool = False) -> list[str]:
        """As the nodes do once the grace has passed: manifests first."""
        named: set[str] = set()
        for segment, manifest in zip(await self.segments(), await self.manifests(), strict=True):
            named |= {segment.remote.manifest_key or "", *manifest.object_sizes}
        there = [info.key async for info in self.store.list(self.cold.names.data_prefix)]
        gone = sorted(key for key in set(there) - named if not (but_manifests and key.endswith(".manifest")))
        for are_first in (True, False):
            await self.store.delete([key for key in gone if key.endswith(".manifest") is are_first])
        return gone


@asynccontextmanager
async def compact_world(store: ObjectStore, bucket: str, folder: Path, **cold: Any) -> AsyncIterator[CompactWorld]:
    async with running("http/memory", folder) as world:
        active = await world.ready_topic("cold")
        names = ObjectNames("", await world.client.read_cluster_id())
        memory = open_store("memory:")
        shard = ColdShard(memory, names, active.key.topic_id, 0, **cold)
        try:
            yield CompactWorld(world, store, bucket, shard, active)
        finally:
            await memory.close()
