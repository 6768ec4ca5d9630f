"""Segments in an object store as an uploader leaves them: chunks, bundles, index, manifest; and what they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID, uuid4

from stratalog.formats.batches.record_batch import parse_header, walk
from stratalog.formats.batches.records import Record, encode_batch
from stratalog.formats.bucket.bundle import BundleHeader, BundleMember, encode_bundle
from stratalog.formats.bucket.key_index import KeyRun, key_hash
from stratalog.formats.bucket.manifest import Manifest, encode_manifest, manifest_digest
from stratalog.formats.bucket.object_names import ObjectNames
from stratalog.formats.bucket.part import PART_HEADER_BYTES, decode_part_header, encode_part
from stratalog.formats.envelope import Structure
from stratalog.formats.segments.digest import EMPTY_DIGEST, object_digest
from stratalog.formats.segments.index_block import IndexBuilder, encode_index_block
from stratalog.model.ids import SegmentKey
from stratalog.model.producers import NO_PRODUCERS
from stratalog.model.segment import (
    RemoteCopy,
    RemotePart,
    RemoteState,
    SealRecord,
    Segment,
    SegmentIdentity,
    SegmentState,
)
from stratalog.objects import ObjectStore

CLUSTER_ID = "cold-test"
FIRST_TIME_MS = 1_700_000_000_000


def batch_at(
    base_offset: int,
    count: int,
    *,
    epoch: int = 0,
    value_bytes: int = 100,
    times_ms: Sequence[int] | None = None,
    codec: int = 0,
) -> bytes:
    """A batch whose values differ by offset; times rise by one each offset unless they are given."""
    records = [
        Record(
            base_offset + number,
            FIRST_TIME_MS + base_offset + number if times_ms is None else times_ms[number],
            b"%d" % (base_offset + number),
            (b"%020d" % (base_offset + number)) * (value_bytes // 20 + 1),
        )
        for number in range(count)
    ]
    return encode_batch(records, base_offset=base_offset, epoch=epoch, compression=codec)


def batches_from(
    base_offset: int, how_many: int, *, records: int = 3, epoch: int = 0, value_bytes: int = 100, codec: int = 0
) -> list[bytes]:
    return [
        batch_at(base_offset + number * records, records, epoch=epoch, value_bytes=value_bytes, codec=codec)
        for number in range(how_many)
    ]


def end_of(batches: Sequence[bytes]) -> int:
    return parse_header(batches[-1]).end_offset


_BUNDLE_ATTEMPT = 1


@dataclass(slots=True)
class ColdShard:
    """One shard's cold data in a store. Segments are added oldest first; `batches` is everything, in order."""

    store: ObjectStore
    names: ObjectNames = field(default_factory=lambda: ObjectNames("", CLUSTER_ID))
    topic_id: UUID = field(default_factory=uuid4)
    shard: int = 3
    segments: list[Segment] = field(default_factory=list)
    batches: list[bytes] = field(default_factory=list)
    attempts: int = 0
    has_key_index: bool = False
    """Of the segments that are added from now on."""
    has_claimed_times: bool = False
    """Of these: seal and index have the times that headers claim, as older releases made them."""
    index_version: int = Structure.INDEX_BLOCK.version
    """Of these."""
    key_run_parts: int = 1 << 20
    """How many parts one run of a key index covers."""
    indexed_keys: Sequence[bytes] | None = None
    """A key index has these alone, as a wrong writer would make it."""

    @property
    def end_offset(self) -> int:
        return end_of(self.batches) if self.batches else 0

    async def add(
        self,
        parts: Sequence[Sequence[bytes]],
        *,
        state: RemoteState = RemoteState.COMPLETE,
        is_bundled: bool = False,
    ) -> Segment:
        """Put a segment made of these parts of batches. PARTIAL ones are still ACTIVE."""
        key = SegmentKey(self.topic_id, self.shard, len(self.segments), self.end_offset)
        identity = SegmentIdentity(
            self.names.cluster_id, key.topic_id, "cold", key.shard, key.epoch, key.base_offset, FIRST_TIME_MS
        )
        remote_parts, digest = await self.put_parts(identity, parts, is_bundled=is_bundled)
        end_offset = remote_parts[-1].end_offset
        segment = Segment(
            key=key,
            state=SegmentState.ACTIVE,
            leader=1,
            replicas=(1,),
            isr=(1,),
            isr_version=0,
            opened_ms=FIRST_TIME_MS,
            remote=RemoteCopy(RemoteState.PARTIAL, end_offset, tuple(remote_parts)),
        )
        if state is RemoteState.COMPLETE:
            segment = await self._complete(segment, identity, [b for part in parts for b in part], digest)
        self.segments.append(segment)
        self.batches += [batch for part in parts for batch in part]
        return segment

    async def put_parts(
        self, identity: SegmentIdentity, parts: Sequence[Sequence[bytes]], *, is_bundled: bool = False
    ) -> tuple[list[RemotePart], bytes]:
        """The parts' objects, under new names; returns where they lie, and the digest at the end."""
        digest = EMPTY_DIGEST
        placed: list[RemotePart] = []
        members: list[BundleMember] = []
        for batches in parts:
            headers = [parse_header(batch) for batch in batches]
            base_offset, end_offset = headers[0].base_offset, headers[-1].end_offset
            self.attempts += 1
            attempt = _BUNDLE_ATTEMPT if is_bundled else self.attempts
            pieces, digest = encode_part(identity, base_offset, end_offset, b"".join(batches), headers, digest, attempt)
            if is_bundled:
                members.append(BundleMember(identity, base_offset, end_offset, pieces))
                continue
            key = self.names.chunk(
                identity.key, base_offset, end_offset, node_id=1, lock_epoch=1, attempt=self.attempts
            )
            await self.store.put(key, pieces)
            placed.append(RemotePart(key, 0, sum(map(len, pieces)), base_offset, end_offset))
        if members:
            self.attempts += 1
            header = BundleHeader(self.names.cluster_id, 1, 1, self.attempts, _BUNDLE_ATTEMPT)
            body, entries = encode_bundle(header, members)
            key = self.names.bundle(node_id=1, lock_epoch=1, number=self.attempts, attempt=_BUNDLE_ATTEMPT)
            await self.store.put(key, body)
            placed = [RemotePart(key, e.position, e.size_bytes, e.base_offset, e.end_offset) for e in entries]
        return placed, digest

    async def _complete(
        self, segment: Segment, identity: SegmentIdentity, batches: Sequence[bytes], digest: bytes
    ) -> Segment:
        index = IndexBuilder(segment.base_offset, has_true_times=not self.has_claimed_times)
        for batch in batches:
            index.append_batch(parse_header(batch), batch)
        seal = SealRecord(
            epoch=segment.epoch,
            base_offset=segment.base_offset,
            end_offset=end_of(batches),
            first_timestamp_ms=index.first_timestamp_ms,
            max_timestamp_ms=index.max_timestamp_ms,
            size_bytes=sum(map(len, batches)),
            digest=digest,
            producers=NO_PRODUCERS,
            replicas=(1,),
            sealed_ms=FIRST_TIME_MS + 1,
            times_known=index.times_known,
        )
        index_bytes = encode_index_block(identity, seal, index.freeze(), version=self.index_version)
        self.attempts += 1
        where = {"node_id": 1, "lock_epoch": 1, "attempt": self.attempts}
        index_key = self.names.index(segment.key, seal.base_offset, seal.end_offset, **where)
        await self.store.put(index_key, [index_bytes])
        parts = tuple(segment.remote.parts)
        runs = await self._key_runs(segment.key, seal, parts, where) if self.has_key_index else ()
        manifest = encode_manifest(
            Manifest(identity, seal, parts, index_key, len(index_bytes), object_digest(index_bytes), runs)
        )
        manifest_key = self.names.manifest(segment.key, seal.base_offset, seal.end_offset, **where)
        await self.store.put(manifest_key, [manifest])
        return replace(
            segment,
            state=SegmentState.SEALED,
            leader=None,
            end_offset=seal.end_offset,
            seal=seal,
            remote=RemoteCopy(
                RemoteState.COMPLETE, seal.end_offset, (), manifest_key, manifest_digest(manifest), len(manifest)
            ),
        )

    async def _key_runs(
        self, key: SegmentKey, seal: SealRecord, parts: Sequence[RemotePart], where: dict[str, int]
    ) -> tuple[KeyRun, ...]:
        from stratalog.formats.batches.batch_headers import BatchHeaders  # needs numpy
        from stratalog.formats.bucket.key_runs import KeyEntries, KeysFound, find_keys

        entries, runs, from_offset = KeyEntries(), list[KeyRun](), seal.base_offset
        for number, part in enumerate(parts):
            body = await self.store.get_range(part.object_key, part.position, part.position + part.size_bytes)
            header = decode_part_header(body, source="part just put")
            data = body[PART_HEADER_BYTES : header.index_position]
            positions = [0, *(at + batch.size_bytes for at, batch in walk(data, source="part just put"))]
            for group, keys in find_keys(data, BatchHeaders(data, positions), source="part just put"):
                if self.indexed_keys is not None:
                    kept = [int(one) in set(map(key_hash, self.indexed_keys)) for one in keys.hashes]
                    keys = KeysFound(keys.hashes[kept], keys.batch[kept])
                entries.add(keys, number, group.positions + PART_HEADER_BYTES, group.ends - group.positions)
            if (number + 1) % self.key_run_parts and number + 1 < len(parts):
                continue
            count = entries.count
            pages, buckets = entries.take_run(seal.digest)
            body = b"".join(pages)
            name = self.names.keys(key, from_offset, part.end_offset, **where)
            await self.store.put(name, [body])
            runs.append(KeyRun(name, len(body), object_digest(body), buckets, count, from_offset, part.end_offset))
            from_offset = part.end_offset
        return tuple(runs)

    async def expire(self, how_many: int) -> None:
        """What retention does to the oldest segments: their objects go. They stay in `segments`."""
        for segment in self.segments[:how_many]:
            keys = [info.key async for info in self.store.list(self.names.segment_prefix(segment.key))]
            await self.store.delete(keys)

    async def move(self, segment: Segment, parts: Sequence[Sequence[bytes]], *, is_bundled: bool = False) -> Segment:
        """What compaction does to a PARTIAL segment: its batches in new objects, the old ones deleted."""
        identity = SegmentIdentity(
            self.names.cluster_id, self.topic_id, "cold", self.shard, segment.epoch, segment.base_offset, FIRST_TIME_MS
        )
        placed, _ = await self.put_parts(identity, parts, is_bundled=is_bundled)
        moved = replace(segment, remote=replace(segment.remote, parts=tuple(placed)))
        await self.store.delete(sorted({part.object_key for part in segment.remote.parts}))
        self.segments[self.segments.index(segment)] = moved
        return moved
