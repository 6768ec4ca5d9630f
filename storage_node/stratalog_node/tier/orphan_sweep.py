"""Sweeps orphans: objects of this node's segments that no metadata names, because another attempt was chosen.

Judged in `stratalog.machines.orphans`. One listing of the data folder, a segment's folder at a time; metadata is read
after each thousand folders, so that a commit that came meanwhile counts. A complete segment's manifest is read once per
process life.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from uuid import UUID

from stratalog.formats.object_names import SegmentObjectName
from stratalog.machines.orphans import ListedObject, OrphanRules, SegmentFacts, Verdict, judge
from stratalog.meta_api.client import MetaClient
from stratalog.model.errors import Corrupt, NotFound
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.segment import RemoteState, Segment
from stratalog.objects.probe import PROBE_PREFIX
from stratalog.objects.store import ObjectStore
from stratalog.telemetry.logs import logger
from stratalog_node.tier.remote_copy import read_manifest
from stratalog_node.tier.uploader import TierWriter

log = logger(__name__)

_FOLDERS_AT_A_TIME = 1_000


@dataclass(slots=True)
class SweepReport:
    """What a sweep found."""

    objects: int = 0
    orphans: int = 0
    waiting: int = 0
    unexplained: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    """Keys that are not ours to read; left alone."""


@dataclass(slots=True)
class _Metadata:
    """One reading of metadata."""

    segments: dict[SegmentKey, Segment]
    deleted: set[SegmentKey]
    log_starts: dict[ShardKey, int]


class OrphanSweep:
    """`purged_topics` and `purged_segments`: what this process has purged, for late attempts of it."""

    def __init__(
        self,
        *,
        node_id: int,
        meta: MetaClient,
        store: ObjectStore,
        writer: TierWriter,
        grace_ms: int,
        clock_ms: Callable[[], int],
        call_timeout_ms: int,
    ) -> None:
        self._call_timeout_s = call_timeout_ms / 1_000
        self._node_id = node_id
        self._meta = meta
        self._store = store
        self._writer = writer
        self._grace_ms = grace_ms
        self._clock_ms = clock_ms
        self._clean: dict[SegmentKey, str] = {}
        self.purged_topics: set[UUID] = set()
        self.purged_segments: set[SegmentKey] = set()

    async def run_once(self) -> SweepReport:
        """Raises whatever store and meta service raise while they are away."""
        report = SweepReport()
        lock = self._writer.lock.current
        if lock is None:
            return report
        rules = OrphanRules(self._node_id, lock.epoch, self._grace_ms)
        folders: list[tuple[SegmentKey, list[ListedObject]]] = []
        async for folder in self._folders(report):
            folders.append(folder)
            if len(folders) == _FOLDERS_AT_A_TIME:
                await self._sweep(folders, rules, report)
                folders.clear()
        await self._sweep(folders, rules, report)
        await self._sweep_probes(report)
        stats = self._writer.stats
        stats.sweeps += 1
        stats.objects_swept += report.orphans
        stats.objects_unexplained = len(report.unexplained) + len(report.foreign)
        if report.unexplained:
            log.warning(
                "objects of segments that metadata does not tell of are left alone; run `stratalog doctor`",
                objects=len(report.unexplained),
                first=report.unexplained[0],
            )
        return report

    async def _sweep_probes(self, report: SweepReport) -> None:
        """What a process left that died while it tried the store."""
        oldest_ms = self._clock_ms() - self._grace_ms
        left = [info.key async for info in self._store.list(PROBE_PREFIX) if info.modified_ms <= oldest_ms]
        if left:
            await self._store.delete(left)
            report.orphans += len(left)

    async def _folders(self, report: SweepReport) -> AsyncIterator[tuple[SegmentKey, list[ListedObject]]]:
        """The listing, one segment's folder at a time (keys come in order)."""
        current: SegmentKey | None = None
        objects: list[ListedObject] = []
        async for info in self._store.list(self._writer.names.data_prefix):
            report.objects += 1
            name = self._writer.names.parse(info.key)
            if not isinstance(name, SegmentObjectName):
                report.foreign.append(info.key)
                continue
            if name.segment != current:
                if current is not None:
                    yield current, objects
                current, objects = name.segment, []
            objects.append(ListedObject(info.key, name.segment, name.node_id, name.lock_epoch, info.modified_ms))
        if current is not None:
            yield current, objects

    async def _sweep(
        self, folders: list[tuple[SegmentKey, list[ListedObject]]], rules: OrphanRules, report: SweepReport
    ) -> None:
        if not folders:
            return
        # Before metadata is read: what is let go later may be committed later, and metadata would not tell of it.
        is_protected = self._writer.attempts.is_protected
        protected = {listed.key for _, objects in folders for listed in objects if is_protected(listed.key)}
        metadata = await self._read_metadata()
        orphans: list[str] = []
        for key, objects in folders:
            segment = metadata.segments.get(key)
            if segment is not None and self._clean.get(key) == (segment.remote.manifest_key or ""):
                continue
            try:
                facts = await self._facts(key, segment, metadata)
            except (Corrupt, NotFound) as error:
                log.error("folder is not swept, its manifest does not read", segment=str(key), error=str(error))
                continue
            is_clean = segment is not None and segment.remote.state is RemoteState.COMPLETE
            for listed in objects:
                verdict = judge(listed, facts, rules, protected.__contains__, self._clock_ms())
                if verdict is Verdict.ORPHAN:
                    orphans.append(listed.key)
                elif verdict is Verdict.UNEXPLAINED:
                    report.unexplained.append(listed.key)
                elif verdict is Verdict.WAIT:
                    report.waiting += 1
                    is_clean = False
            if is_clean and segment is not None and segment.remote.manifest_key is not None:
                self._clean[key] = segment.remote.manifest_key
        if orphans:
            await self._store.delete(orphans)
            report.orphans += len(orphans)

    async def _read_metadata(self) -> _Metadata:
        async with asyncio.timeout(self._call_timeout_s):
            deleted = {segment.key for segment in await self._meta.deleted_segments()}
            snapshot = await self._meta.snapshot()
        return _Metadata(
            {segment.key: segment for shard in snapshot.shards for segment in shard.segments},
            deleted,
            {shard.key: shard.log_start_offset for shard in snapshot.shards},
        )

    async def _facts(self, key: SegmentKey, segment: Segment | None, metadata: _Metadata) -> SegmentFacts:
        return SegmentFacts(
            referenced=await self._referenced(segment) if segment is not None else None,
            is_deleted=key in metadata.deleted,
            log_start_offset=metadata.log_starts.get(key.shard_key),
            is_purged=key.topic_id in self.purged_topics or key in self.purged_segments,
        )

    async def _referenced(self, segment: Segment) -> frozenset[str]:
        remote = segment.remote
        named = {part.object_key for part in remote.parts}
        if remote.manifest_key is not None and remote.manifest_digest is not None:
            manifest = await read_manifest(self._store, remote.manifest_key, remote.manifest_digest)
            named |= {part.object_key for part in manifest.parts}
            named |= {remote.manifest_key, manifest.index_key}
        return frozenset(named)
