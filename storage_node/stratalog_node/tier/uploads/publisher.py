"""Completes a segment's remote copy: checks the chain of its parts, writes the index, the key index if the topic has
one, then the manifest, reads back, completes.

Requires: the segment is SEALED and committed to its end, and no part lies in a bundle.
Order (design section 5): index and manifest never point at missing data; the meta service is updated last. After a
crash anywhere, some attempts are left that nothing names; the next process publishes again (F31).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack

from stratalog.formats.bucket.manifest import Manifest, encode_manifest, manifest_digest
from stratalog.formats.bucket.part import PartIndex
from stratalog.formats.segments.digest import EMPTY_DIGEST, object_digest
from stratalog.formats.segments.index_block import encode_index_block
from stratalog.formats.segments.index_points import IndexBuilder
from stratalog.machines.tiering.upload_events import Gone, Moved, PieceOutcome, Publish, Unreadable, UploadLimits
from stratalog.meta_api.client import MetaClient
from stratalog.model.commands.table_commands import CompleteRemote
from stratalog.model.errors import Conflict, Corrupt, NotFound, StratalogError
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Lock
from stratalog.model.segment import RemotePart, RemoteState, SealRecord, Segment, SegmentIdentity, SegmentState
from stratalog.objects.store import ObjectStore
from stratalog.stored.remote.manifests import ExpectedManifest, read_manifest
from stratalog.stored.remote.parts import read_packed_sizes
from stratalog.telemetry.logs import logger
from stratalog_node.tier.store.stats import TierStats
from stratalog_node.tier.uploads.attempts import Attempts
from stratalog_node.tier.uploads.committer import Committer
from stratalog_node.tier.uploads.key_indexer import KeyIndexer
from stratalog_node.tier.uploads.puts import PutRefused, put
from stratalog_node.tier.uploads.segment_records import SegmentRecords
from stratalog_node.tier.uploads.source import PieceReader

_READS_AT_A_TIME = 8

log = logger(__name__)


class Publisher:
    """Raises PutDoubtful, PutRefused, MetaAway, Fenced."""

    def __init__(
        self,
        *,
        store: ObjectStore,
        meta: MetaClient,
        reader: PieceReader,
        committer: Committer,
        attempts: Attempts,
        known: SegmentRecords,
        limits: UploadLimits,
        stats: TierStats,
        table_of: Callable[[Segment], Awaitable[bytes]],
        keys: KeyIndexer,
    ) -> None:
        """`table_of`: the producer table at the end of a sealed segment; raises StratalogError while it is not
        available."""
        self._store = store
        self._meta = meta
        self._reader = reader
        self._committer = committer
        self._attempts = attempts
        self._known = known
        self._limits = limits
        self._stats = stats
        self._table_of = table_of
        self._keys = keys

    async def publish(self, lock: Lock, effect: Publish) -> tuple[PieceOutcome, ...]:
        key = effect.key
        segment, identity = self._known.get(key), self._known.identity(key)
        if segment is None or identity is None or segment.seal is None:
            return (Gone(key),)
        seal = segment.seal
        try:
            indexes = await self._indexes(key, effect.parts)
        except (Corrupt, NotFound) as error:
            return (Unreadable(key, str(error), is_final=False),)
        except StratalogError as error:
            raise PutRefused(str(error)) from error
        fault = chain_fault(effect.parts, indexes, seal)
        if fault is not None:
            reason = f"segment {key} is not completed: {fault}; run `stratalog verify` on both tiers"
            return (Unreadable(key, reason, is_final=True),)
        try:
            table = await self._table_of(segment)
        except StratalogError as error:
            return (Unreadable(key, str(error), is_final=False),)
        block = encode_index_block(identity, seal, segment_points(key, indexes), table)
        return await self._write(lock, segment, identity, seal, effect.parts, block)

    async def _indexes(self, key: SegmentKey, parts: Sequence[RemotePart]) -> list[PartIndex]:
        indexes: list[PartIndex] = []
        for start in range(0, len(parts), _READS_AT_A_TIME):
            some = parts[start : start + _READS_AT_A_TIME]
            indexes += await asyncio.gather(*(self._reader.index(key, part) for part in some))
        return indexes

    async def _write(
        self,
        lock: Lock,
        segment: Segment,
        identity: SegmentIdentity,
        seal: SealRecord,
        parts: Sequence[RemotePart],
        block: bytes,
    ) -> tuple[PieceOutcome, ...]:
        key = segment.key
        attempt = self._attempts.next_attempt()
        index_key = self._attempts.index(key, seal.end_offset, lock.epoch)
        manifest_key = self._attempts.manifest(key, seal.end_offset, lock.epoch, attempt)
        with ExitStack() as in_flight:
            in_flight.enter_context(self._attempts.in_flight(index_key, manifest_key))
            await put(self._store, index_key, [block], self._limits.put_timeout_ms)
            try:
                runs = await self._keys.put_runs(segment, seal, parts, lock.epoch, attempt, in_flight)
            except (Corrupt, NotFound) as error:
                return (Unreadable(key, str(error), is_final=False),)
            except StratalogError as error:
                raise PutRefused(str(error)) from error
            try:
                sizes = await read_packed_sizes(self._store, parts)
            except NotFound as error:
                return (Unreadable(key, str(error), is_final=False),)
            except StratalogError as error:
                raise PutRefused(str(error)) from error
            manifest = Manifest(identity, seal, tuple(parts), index_key, len(block), object_digest(block), runs, sizes)
            body = encode_manifest(manifest)
            digest = manifest_digest(body)
            expected = ExpectedManifest(identity.cluster_id, key, manifest_key, seal.end_offset, digest, seal)
            await put(self._store, manifest_key, [body], self._limits.put_timeout_ms)
            try:
                async with asyncio.timeout(self._limits.put_timeout_ms / 1_000):
                    await read_manifest(self._store, expected)
            except TimeoutError as error:
                raise PutRefused(f"manifest {manifest_key} was not read back in time") from error
            except (Corrupt, NotFound) as error:
                return (Unreadable(key, f"segment {key} is not completed: {error}", is_final=False),)
            except StratalogError as error:
                raise PutRefused(str(error)) from error
            size_bytes = manifest.copy_bytes + len(body)
            try:
                await self._committer.insist(
                    lambda: self._meta.perform(
                        CompleteRemote(
                            lock, key, manifest_key=manifest_key, manifest_digest=digest, size_bytes=size_bytes
                        )
                    )
                )
            except (Conflict, NotFound) as refusal:
                return (await self._why_refused(key, str(refusal)),)
        self._stats.segments_completed += 1
        log.debug("segment complete in the object store", segment=str(key), parts=len(parts), bytes=size_bytes)
        return (Gone(key),)

    async def _why_refused(self, key: SegmentKey, refusal: str) -> PieceOutcome:
        """The completion was refused: metadata says why."""
        now = (await self._committer.read_segments([key])).get(key)
        if now is None or now.state is SegmentState.DELETED or now.remote.state is RemoteState.COMPLETE:
            return Gone(key)
        known = self._known.get(key)
        if known is not None and now.remote.parts == known.remote.parts:
            return Unreadable(key, f"the meta service refuses to complete the segment: {refusal}", is_final=False)
        self._known.put(now)
        return Moved(key, max(now.remote.commit_offset, key.base_offset), now.remote.parts, 0, is_ours=False)


def chain_fault(parts: Sequence[RemotePart], indexes: Sequence[PartIndex], seal: SealRecord) -> str | None:
    """Why these parts are not the sealed segment; None when they are, byte for byte (rule 10)."""
    digest, offset, size_bytes = EMPTY_DIGEST, seal.base_offset, 0
    for part, index in zip(parts, indexes, strict=True):
        header = index.header
        if header.base_offset != offset:
            return f"part {part.object_key} begins at offset {header.base_offset}, expected {offset}"
        if header.digest_before != digest:
            return (
                f"part {part.object_key} continues from digest {header.digest_before.hex()}, the parts before it end "
                f"with {digest.hex()}"
            )
        digest, offset = header.digest_after, header.end_offset
        size_bytes += header.data_size_bytes
    found = (offset, size_bytes, digest.hex())
    wanted = (seal.end_offset, seal.size_bytes, seal.digest.hex())
    if found != wanted:
        return f"its parts give end offset, bytes and digest {found}, the seal record says {wanted}"
    return None


def segment_points(key: SegmentKey, indexes: Sequence[PartIndex]) -> IndexBuilder:
    """The segment's index from its parts' ones: batches come in groups, from one part's point to the next. Its times
    are true if those of all parts are: an older release may have uploaded some."""
    builder = IndexBuilder(key.base_offset, has_true_times=True)
    for index in indexes:
        index.add_to(builder)
    return builder
