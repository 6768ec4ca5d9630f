"""Sweeps orphans: objects that this node wrote, or one whose leavings it sweeps (`left_behind`), and that no metadata
names, because another attempt was chosen.

Judged in `stratalog.machines.tiering.orphans`. One listing of the data folder, a segment's folder at a time. A folder
that the node's catalog explains to the last object is passed over at once; the others are judged together by metadata
read after the listing, so that a commit that came meanwhile counts. Only of those a manifest is read.
Cost: O(1) per folder, no request but the listing for a clean one; one reading of metadata per thousand others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from stratalog.formats.bucket.object_names import SegmentObject, SegmentObjectName
from stratalog.machines.tiering.orphans import ListedObject, OrphanRules, SegmentFacts, Verdict, classify_folder
from stratalog.meta_api.client import MetaClient
from stratalog.model.errors import Corrupt, NotFound
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Lock
from stratalog.model.segment import RemoteState, Segment
from stratalog.objects.probe import PROBE_PREFIX
from stratalog.objects.store import ObjectStore
from stratalog.stored.remote.manifests import ExpectedManifest, read_manifest
from stratalog.telemetry.logs import logger
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.tier.store.claim import Forked
from stratalog_node.tier.store.remote_copy import is_exactly
from stratalog_node.tier.sweep.expired_writers import ExpiredWriters
from stratalog_node.tier.sweep.sweep_metadata import SweepMetadata, read_sweep_metadata
from stratalog_node.tier.uploads.uploader import NodeUploader

log = logger(__name__)

_SUSPECTS_AT_A_TIME = 1_000
_OBJECTS_AT_A_TIME = 10_000
_MANIFESTS_AT_A_TIME = 8
_FOLDERS_PER_TURN = 500

_Folder = tuple[SegmentKey, list[tuple[ListedObject, SegmentObjectName]]]


def is_manifest(object_key: str) -> bool:
    return object_key.endswith(f".{SegmentObject.MANIFEST}")


@dataclass(slots=True)
class SweepReport:
    """What a sweep found."""

    objects: int = 0
    orphans: int = 0
    waiting: int = 0
    unexplained: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    """Keys that are not ours to read; left alone."""


class OrphanSweep:
    """One sweep at a time."""

    def __init__(
        self,
        *,
        node_id: int,
        meta: MetaClient,
        catalog: Catalog,
        store: ObjectStore,
        uploader: NodeUploader,
        grace_ms: int,
        clock_ms: Callable[[], int],
        call_timeout_ms: int,
        expired_writers: ExpiredWriters,
    ) -> None:
        self._expired_writers = expired_writers
        self._call_timeout_s = call_timeout_ms / 1_000
        self._node_id = node_id
        self._meta = meta
        self._catalog = catalog
        self._store = store
        self._uploader = uploader
        self._grace_ms = grace_ms
        self._clock_ms = clock_ms

    async def run_once(self) -> SweepReport:
        """Does nothing without the write lock and its claim. Raises whatever store and meta service raise while they
        are away."""
        report = SweepReport()
        lock = await self._uploader.hold_claim()
        if lock is None:
            return report
        try:
            await self._sweep(lock, report)
        except Forked:
            await self._uploader.hold_claim()  # says so, and stops the uploads
            return report
        stats = self._uploader.stats
        stats.sweeps += 1
        stats.objects_swept += report.orphans
        stats.objects_unexplained = len(report.unexplained) + len(report.foreign)
        if report.unexplained:
            log.warning(
                "objects that metadata does not name are left alone; run `stratalog doctor`",
                objects=len(report.unexplained),
                first=report.unexplained[0],
            )
        return report

    async def _sweep(self, lock: Lock, report: SweepReport) -> None:
        suspects: list[_Folder] = []
        objects = seen = 0
        async for folder in self._folders(report, lock):
            seen += 1
            if seen % _FOLDERS_PER_TURN == 0:
                await asyncio.sleep(0)
            if self._is_clean(folder):
                continue
            suspects.append(folder)
            objects += len(folder[1])
            if len(suspects) >= _SUSPECTS_AT_A_TIME or objects >= _OBJECTS_AT_A_TIME:
                await self._judge(suspects, lock, report)
                suspects, objects = [], 0
        await self._judge(suspects, lock, report)
        await self._sweep_probes(report)

    async def _sweep_probes(self, report: SweepReport) -> None:
        """What a process left that died while it tried the store."""
        oldest_ms = self._clock_ms() - self._grace_ms
        left = [info.key async for info in self._store.list(PROBE_PREFIX) if info.modified_ms <= oldest_ms]
        if left:
            await self._store.delete(left)
            report.orphans += len(left)

    async def _folders(self, report: SweepReport, lock: Lock) -> AsyncIterator[_Folder]:
        """The listing, one segment's folder at a time (keys come in order)."""
        current: SegmentKey | None = None
        objects: list[tuple[ListedObject, SegmentObjectName]] = []
        async for info in self._store.list(self._uploader.names.data_prefix):
            report.objects += 1
            name = self._uploader.names.parse(info.key)
            if not isinstance(name, SegmentObjectName):
                report.foreign.append(info.key)
                continue
            if name.node_id == self._node_id:
                self._uploader.claim.witness(info.key, name.lock_epoch, lock.epoch, info.modified_ms)
            if name.segment != current:
                if current is not None:
                    yield current, objects
                current, objects = name.segment, []
            listed = ListedObject(
                info.key,
                name.segment,
                name.node_id,
                name.lock_epoch,
                info.modified_ms,
                name.is_part,
                name.to_offset,
                name.kind is SegmentObject.MANIFEST,
            )
            objects.append((listed, name))
        if current is not None:
            yield current, objects

    def _is_clean(self, folder: _Folder) -> bool:
        """Whether the catalog names each object of a folder: then nothing is to be asked, and nothing to be deleted."""
        key, objects = folder
        segment = self._catalog.segment(key)
        if segment is None:
            return False
        remote = segment.remote
        if remote.state is RemoteState.COMPLETE:
            return is_exactly(segment, [name for _, name in objects], [listed.key for listed, _ in objects])
        named = {part.object_key for part in remote.parts}
        return all(listed.key in named for listed, _ in objects)

    async def _rules(self, folders: Sequence[_Folder], lock: Lock) -> OrphanRules:
        """Before metadata is read: from then on nothing that another is judged for can be committed."""
        oldest_ms = self._clock_ms() - self._grace_ms
        due = {one.node_id for _, objects in folders for one, _ in objects if one.modified_ms <= oldest_ms}
        epochs = {self._node_id: lock.epoch}
        for node_id in due.intersection(self._expired_writers.writers()):
            epoch = await self._expired_writers.last_epoch(node_id)
            if epoch is not None:
                epochs[node_id] = epoch
        return OrphanRules(epochs, self._grace_ms)

    async def _judge(self, folders: Sequence[_Folder], lock: Lock, report: SweepReport) -> None:
        if not folders:
            return
        # Before metadata is read: what is let go later may be committed later, and metadata would not tell of it.
        is_protected = self._uploader.attempts.is_protected
        protected = {listed.key for _, objects in folders for listed, _ in objects if is_protected(listed.key)}
        rules = await self._rules(folders, lock)
        facts = await read_sweep_metadata(self._meta, self._call_timeout_s)
        orphans: list[str] = []
        for start in range(0, len(folders), _MANIFESTS_AT_A_TIME):
            some = folders[start : start + _MANIFESTS_AT_A_TIME]
            for (_, objects), known in zip(
                some, await asyncio.gather(*(self._segment_facts(key, facts) for key, _ in some)), strict=True
            ):
                if known is None:
                    continue
                every = [listed for listed, _ in objects]
                verdicts = classify_folder(every, known, rules, protected.__contains__, self._clock_ms())
                for listed, verdict in zip(every, verdicts, strict=True):
                    if verdict is Verdict.ORPHAN:
                        orphans.append(listed.key)
                    elif verdict is Verdict.UNEXPLAINED:
                        report.unexplained.append(listed.key)
                    elif verdict is Verdict.WAIT:
                        report.waiting += 1
        # Manifests first: none may ever name an object that is gone.
        for keys in ([key for key in orphans if is_manifest(key)], [key for key in orphans if not is_manifest(key)]):
            if keys:
                await self._store.delete(keys)
        report.orphans += len(orphans)

    async def _segment_facts(self, key: SegmentKey, facts: SweepMetadata) -> SegmentFacts | None:
        """None when the folder cannot be judged: its manifest does not read."""
        segment = facts.living(key)
        try:
            referenced = await self._referenced(segment) if segment is not None else frozenset[str]()
        except (Corrupt, NotFound) as error:
            log.error("folder is not swept, its manifest cannot be read", segment=str(key), error=str(error))
            return None
        return SegmentFacts(
            segment=segment,
            referenced=referenced,
            is_deleted=facts.is_deleted(key),
            log_start_offset=facts.log_start_offset(key),
            is_purged=facts.is_purged(key),
        )

    async def _referenced(self, segment: Segment) -> frozenset[str]:
        remote = segment.remote
        named = {part.object_key for part in remote.parts}
        if remote.manifest_key is not None and remote.manifest_digest is not None:
            expected = ExpectedManifest.of_segment(self._uploader.names.cluster_id, segment)
            manifest = await read_manifest(self._store, expected)
            named |= {remote.manifest_key, *manifest.object_sizes}
        return frozenset(named)
