"""Makes a complete copy of a segment out of parts that lie in the bucket: the parts that are its own stay, those in
bundles come home, what is nowhere is filled with batches without records; then the index, then the manifest.

Every byte that goes into the copy is read and checked. One part is in memory at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from stratalog.formats.batches.record_batch import walk
from stratalog.formats.batches.records import encode_empty_batches
from stratalog.formats.bucket.manifest import Manifest, encode_manifest, manifest_digest
from stratalog.formats.bucket.object_names import ObjectNames
from stratalog.formats.bucket.part import (
    PART_HEADER_BYTES,
    PartIndex,
    encode_part,
    index_of_encoded,
)
from stratalog.formats.fields import Buffer
from stratalog.formats.segments.digest import EMPTY_DIGEST, object_digest
from stratalog.formats.segments.index_block import encode_index_block
from stratalog.formats.segments.index_points import IndexBuilder
from stratalog.formats.segments.producers import encode_table, tally_of
from stratalog.machines.leading.producer_table import ProducerTable
from stratalog.machines.leading.sealed_producers import Producers, sealed_table
from stratalog.machines.rebuild.shard import PlannedSegment
from stratalog.machines.rebuild.table import Published
from stratalog.machines.tiering.part_chain import FoundPart
from stratalog.model.batch import BatchHeader
from stratalog.model.errors import Corrupt, NotFound
from stratalog.model.ids import SegmentKey
from stratalog.model.producers import NO_PRODUCERS, ProducerRule
from stratalog.model.segment import RemotePart, SealRecord, SegmentIdentity, TimesKnown
from stratalog.objects.store import ObjectStore
from stratalog.stored.remote.parts import check_whole_part, read_packed_sizes
from stratalog.stored.snapshots import put_whole


class _Build(Protocol):
    def __call__(
        self, segment: SegmentKey, from_offset: int, to_offset: int, *, node_id: int, lock_epoch: int, attempt: int
    ) -> str: ...


_RULE: Final = ProducerRule(limit=100_000, expiration_ms=7 * 86_400_000)
"""Of tables of producers that no seal speaks of yet: the most that any shard may be set to remember."""


class DamagedPart(Exception):
    """A part of a chain is not whole: another chain is to be found without it."""

    def __init__(self, part: RemotePart, reason: str) -> None:
        super().__init__(f"{part.object_key}: {reason}")
        self.part = part
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Writer:
    """The writer in the names of objects: a node, in an epoch of its write lock that no other writer has."""

    node_id: int
    lock_epoch: int


@dataclass(slots=True)
class _Copy:
    """What was taken in so far."""

    identity: SegmentIdentity
    builder: IndexBuilder
    producers: ProducerTable
    parts: list[RemotePart] = field(default_factory=list)
    digest: bytes = EMPTY_DIGEST
    end_offset: int = 0

    def add_part(self, part: RemotePart, index: PartIndex, headers: Iterable[BatchHeader], now_ms: int) -> None:
        index.add_to(self.builder)
        for header in headers:
            self.producers.replay(header, now_ms)
        self.parts.append(part)
        self.digest, self.end_offset = index.header.digest_after, part.end_offset


class SegmentPublisher:
    def __init__(
        self, store: ObjectStore, names: ObjectNames, writer: Writer, now_ms: int, source_cluster_id: str
    ) -> None:
        """`source_cluster_id`: of the cluster whose parts are taken; `names` are those of the copies."""
        self._source_cluster_id = source_cluster_id
        self._store = store
        self._names = names
        self._writer = writer
        self._now_ms = now_ms
        self._attempt = 0
        self.bytes_read = 0
        self.bytes_put = 0

    async def publish(
        self, planned: PlannedSegment, topic: str, producers_before: Producers
    ) -> tuple[Published, Producers]:
        """`producers_before` are those at the segment's base; those at its end come with what was published. Raises:
        DamagedPart; what the store raises."""
        key = planned.key
        opened_ms = self._now_ms if planned.known is None else planned.known.opened_ms
        identity = SegmentIdentity(
            self._names.cluster_id, key.topic_id, topic, key.shard, key.epoch, key.base_offset, opened_ms
        )
        found_producers = ProducerTable((), _RULE.limit)
        copy = _Copy(
            identity, IndexBuilder(key.base_offset, has_true_times=True), found_producers, end_offset=key.base_offset
        )
        for found in planned.chain:
            await self._take_part(copy, found, planned.end_offset)
        if copy.end_offset < planned.end_offset:
            data = encode_empty_batches(copy.end_offset, planned.end_offset, epoch=key.epoch)
            await self._put_part(copy, planned.end_offset, data, _headers(data, copy, "what fills the gap"))
        return await self._finish(copy, planned, producers_before)

    async def _take_part(self, copy: _Copy, found: FoundPart, end_offset: int) -> None:
        """All of it, or, where the segment is to end inside, the batches that end by then."""
        part = found.part
        try:
            body = await self._store.get_range(part.object_key, part.position, part.position + part.size_bytes)
            self.bytes_read += len(body)
            source = part.object_key
            index = await asyncio.to_thread(
                check_whole_part, body, self._source_cluster_id, copy.identity.key, part, digest_before=copy.digest
            )
        except (Corrupt, NotFound) as error:
            raise DamagedPart(part, str(error)) from error
        header = index.header
        data = memoryview(body)[PART_HEADER_BYTES : header.index_position]
        if not copy.parts:
            copy.identity = replace(copy.identity, created_ms=header.identity.created_ms)
        headers = _headers(data, copy, source)
        if part.end_offset > end_offset:
            headers = [one for one in headers if one.end_offset <= end_offset]
            data = data[: sum(one.size_bytes for one in headers)]
            if not headers or headers[-1].end_offset != end_offset:
                raise DamagedPart(part, f"no batch of it ends at offset {end_offset}")
            await self._put_part(copy, end_offset, data, headers)
            return
        if part.object_key.startswith(self._names.segment_prefix(copy.identity.key)):
            copy.add_part(part, index, headers, self._now_ms)
        else:
            await self._put_part(copy, part.end_offset, data, headers)

    async def _put_part(self, copy: _Copy, end_offset: int, data: Buffer, headers: list[BatchHeader]) -> None:
        base_offset = copy.end_offset
        attempt = self._next_attempt()
        buffers, _ = await asyncio.to_thread(
            encode_part, copy.identity, base_offset, end_offset, data, headers, copy.digest, attempt
        )
        index = index_of_encoded(buffers)
        body = b"".join(buffers)
        name = self._names.chunk(copy.identity.key, base_offset, end_offset, **self._attempt_fields(attempt))
        await self._put(name, body)
        copy.add_part(RemotePart(name, 0, len(body), base_offset, end_offset), index, headers, self._now_ms)

    async def _finish(
        self, copy: _Copy, planned: PlannedSegment, producers_before: Producers
    ) -> tuple[Published, Producers]:
        key, known = copy.identity.key, planned.known
        rule = _RULE
        if known is not None and known.seal is not None and known.seal.producers.count:
            rule = known.seal.producers.rule
        producers = sealed_table(
            producers_before,
            copy.producers.snapshot(),
            base_offset=key.base_offset,
            opened_ms=0 if known is None else known.opened_ms,
            rule=rule,
        )
        table = encode_table(producers)
        # Where the snapshot's seal speaks of another table, which is nowhere, this one is the truth from now on.
        seal = replace(self._seal(copy, planned), producers=tally_of(producers, table, rule))
        block = encode_index_block(copy.identity, seal, copy.builder.freeze(), table)
        index_key = self._name_of(self._names.index, key, seal.end_offset)
        await self._put(index_key, block)
        manifest = Manifest(
            copy.identity,
            seal,
            tuple(copy.parts),
            index_key,
            len(block),
            object_digest(block),
            packed_sizes=await read_packed_sizes(self._store, copy.parts),
        )
        body = encode_manifest(manifest)
        manifest_key = self._name_of(self._names.manifest, key, seal.end_offset)
        await self._put(manifest_key, body)
        size_bytes = manifest.copy_bytes + len(body)
        return Published(seal, manifest_key, manifest_digest(body), size_bytes), producers

    def _seal(self, copy: _Copy, planned: PlannedSegment) -> SealRecord:
        """The one that the snapshot has, where that is the truth about these bytes; its times, too, unless they are
        only claimed and the records have been looked at now."""
        known = None if planned.known is None else planned.known.seal
        builder = copy.builder
        if known is not None and (known.end_offset, known.digest) == (copy.end_offset, copy.digest):
            if known.times_known is not TimesKnown.CLAIMED or not builder.has_true_times:
                return known
            return replace(
                known,
                first_timestamp_ms=builder.first_timestamp_ms,
                max_timestamp_ms=builder.max_timestamp_ms,
                times_known=builder.times_known,
            )
        return SealRecord(
            epoch=copy.identity.epoch,
            base_offset=copy.identity.base_offset,
            end_offset=copy.end_offset,
            first_timestamp_ms=copy.builder.first_timestamp_ms,
            max_timestamp_ms=copy.builder.max_timestamp_ms,
            size_bytes=copy.builder.size_bytes,
            digest=copy.digest,
            producers=NO_PRODUCERS,
            replicas=(),
            sealed_ms=self._now_ms,
            times_known=copy.builder.times_known,
        )

    def _next_attempt(self) -> int:
        self._attempt += 1
        return self._attempt

    def _attempt_fields(self, attempt: int) -> dict[str, int]:
        return {"node_id": self._writer.node_id, "lock_epoch": self._writer.lock_epoch, "attempt": attempt}

    def _name_of(self, build: _Build, key: SegmentKey, end_offset: int) -> str:
        return build(key, key.base_offset, end_offset, **self._attempt_fields(self._next_attempt()))

    async def _put(self, key: str, body: bytes) -> None:
        await put_whole(self._store, key, body)
        self.bytes_put += len(body)


def _headers(data: Buffer, copy: _Copy, source: str) -> list[BatchHeader]:
    """Of batches that were checked."""
    epoch, base = copy.identity.epoch, copy.end_offset
    return [header for _, header in walk(data, source=source, verify=False, expected_base_offset=base, epoch=epoch)]
