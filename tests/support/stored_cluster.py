"""A small cluster at rest: a data directory with its meta store, and the bucket that goes with it, made without a node.

One topic, one shard, three segments:

    epoch 0  [0, 30)   sealed, on disk, complete in the bucket (a chunk and a part of a bundle, index, manifest)
    epoch 1  [30, 50)  sealed, on disk, in the bucket up to offset 40 (a part of the other bundle)
    epoch 2  [50, 60)  active, on disk only
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from stratalog.formats.batches.record_batch import parse_header
from stratalog.formats.batches.records import Record, encode_batch
from stratalog.formats.bucket.bundle import BundleHeader, BundleMember, encode_bundle
from stratalog.formats.bucket.claim import Claim, encode_claim
from stratalog.formats.bucket.manifest import Manifest, encode_manifest, manifest_digest
from stratalog.formats.bucket.object_names import ObjectNames
from stratalog.formats.bucket.part import encode_part
from stratalog.formats.disk.journal import JournalHeader, encode_journal_header
from stratalog.formats.disk.segment_file import encode_segment_header
from stratalog.formats.segments.digest import EMPTY_DIGEST, extend_digest_over, object_digest
from stratalog.formats.segments.index_block import IndexBuilder, encode_index_block
from stratalog.machines.table import records as table_records
from stratalog.machines.tiering.claims import holder_name
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Lock, NodeInfo
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
from stratalog.model.topic import Topic
from stratalog_meta.stores.rocksdb import RocksStore
from stratalog_node.disk.layout import NodeLayout

CLUSTER_ID = "c1"
TOPIC_ID = UUID("01234567-89ab-cdef-0123-456789abcdef")
TOPIC = "orders"
NODE_ID = 1
NONCE = UUID(int=7)
NOW_MS = 1_700_000_000_000
BATCH_RECORDS = 5


def identity_of(epoch: int, base_offset: int) -> SegmentIdentity:
    return SegmentIdentity(CLUSTER_ID, TOPIC_ID, TOPIC, 0, epoch, base_offset, NOW_MS)


def batches_of(epoch: int, base_offset: int, end_offset: int) -> list[bytes]:
    made = []
    for first in range(base_offset, end_offset, BATCH_RECORDS):
        records = [Record(o, NOW_MS + o, b"k%d" % o, b"v" * 40) for o in range(first, first + BATCH_RECORDS)]
        made.append(encode_batch(records, base_offset=first, epoch=epoch))
    return made


def seal_of(epoch: int, batches: list[bytes]) -> tuple[SealRecord, IndexBuilder]:
    headers = [parse_header(batch) for batch in batches]
    index = IndexBuilder(headers[0].base_offset, has_true_times=True)
    for header, batch in zip(headers, batches, strict=True):
        index.append_batch(header, batch)
    seal = SealRecord(
        epoch=epoch,
        base_offset=headers[0].base_offset,
        end_offset=headers[-1].end_offset,
        first_timestamp_ms=index.first_timestamp_ms,
        max_timestamp_ms=index.max_timestamp_ms,
        size_bytes=index.size_bytes,
        digest=extend_digest_over(EMPTY_DIGEST, b"".join(batches)),
        producers=NO_PRODUCERS,
        replicas=(NODE_ID,),
        sealed_ms=NOW_MS + 1,
        times_known=index.times_known,
    )
    return seal, index


def part_of(
    identity: SegmentIdentity, batches: list[bytes], digest_before: bytes, attempt: int = 1
) -> tuple[list[bytes], bytes]:
    headers = [parse_header(batch) for batch in batches]
    data = b"".join(batches)
    pieces, after = encode_part(
        identity, headers[0].base_offset, headers[-1].end_offset, data, headers, digest_before, attempt
    )
    return [bytes(piece) for piece in pieces], after


@dataclass
class StoredCluster:
    """Where things are, so that a test can damage them."""

    data: Path
    bucket: Path
    layout: NodeLayout
    keys: dict[str, str]
    """Object keys by what they are: chunk, bundle0, bundle1, index, manifest, claim."""

    def segment_file(self, epoch: int) -> Path:
        return self.layout.segment(segment_key(epoch))

    def index_file(self, epoch: int) -> Path:
        return self.layout.index(segment_key(epoch))

    def object(self, name: str) -> Path:
        return self.bucket / self.keys[name]


BASE_OFFSETS = {0: 0, 1: 30, 2: 50}
_ENDS = {0: 30, 1: 50, 2: 60}


def segment_key(epoch: int) -> SegmentKey:
    return SegmentKey(TOPIC_ID, 0, epoch, BASE_OFFSETS[epoch])


def store_cluster(root: Path) -> StoredCluster:
    layout = NodeLayout(root / "data" / "node")
    names = ObjectNames("", CLUSTER_ID)
    batches = {epoch: batches_of(epoch, BASE_OFFSETS[epoch], _ENDS[epoch]) for epoch in BASE_OFFSETS}
    for epoch in BASE_OFFSETS:
        path = layout.segment(segment_key(epoch))
        path.parent.mkdir(parents=True, exist_ok=True)
        header = encode_segment_header(identity_of(epoch, BASE_OFFSETS[epoch]))
        path.write_bytes(header + b"".join(batches[epoch]))
    seals = {}
    for epoch in (0, 1):
        seal, index = seal_of(epoch, batches[epoch])
        seals[epoch] = seal
        block = encode_index_block(identity_of(epoch, BASE_OFFSETS[epoch]), seal, index.freeze())
        layout.index(segment_key(epoch)).write_bytes(block)
    layout.node_file.write_text(json.dumps({"node_id": NODE_ID, "storage_id": "s", "cluster_id": CLUSTER_ID}))
    layout.journal.mkdir()
    journal = encode_journal_header(JournalHeader(CLUSTER_ID, NODE_ID, 7, NOW_MS))
    (layout.journal / "000000000007.journal").write_bytes(journal)
    keys, remote = _store_bucket(root / "bucket", names, batches, seals[0])
    asyncio.run(_store_metadata(root / "data" / "meta", seals, remote))
    return StoredCluster(root / "data", root / "bucket", layout, keys)


def _store_bucket(
    bucket: Path, names: ObjectNames, batches: dict[int, list[bytes]], seal: SealRecord
) -> tuple[dict[str, str], dict[int, RemoteCopy]]:
    objects: dict[str, bytes] = {}
    first, other = identity_of(0, 0), identity_of(1, 30)
    owner = {"node_id": NODE_ID, "lock_epoch": 1}
    chunk_pieces, digest = part_of(first, batches[0][:2], EMPTY_DIGEST)
    chunk = names.chunk(segment_key(0), 0, 10, **owner, attempt=1)
    objects[chunk] = b"".join(chunk_pieces)
    parts = [RemotePart(chunk, 0, len(objects[chunk]), 0, 10)]
    rest, _ = part_of(first, batches[0][2:], digest)
    begun, _ = part_of(other, batches[1][:2], EMPTY_DIGEST)
    bundles = []
    for number, (identity, base, end, pieces) in enumerate(((first, 10, 30, rest), (other, 30, 40, begun))):
        key = names.bundle(**owner, number=number, attempt=1)
        bundle = BundleHeader(CLUSTER_ID, NODE_ID, 1, number, 1)
        encoded, (entry,) = encode_bundle(bundle, [BundleMember(identity, base, end, pieces)])
        objects[key] = b"".join(encoded)
        bundles.append(RemotePart(key, entry.position, entry.size_bytes, base, end))
    parts.append(bundles[0])
    _, index_builder = seal_of(0, batches[0])
    index_bytes = encode_index_block(first, seal, index_builder.freeze())
    index = names.index(segment_key(0), 0, 30, **owner, attempt=1)
    objects[index] = index_bytes
    manifest_bytes = encode_manifest(
        Manifest(first, seal, tuple(parts), index, len(index_bytes), object_digest(index_bytes))
    )
    manifest = names.manifest(segment_key(0), 0, 30, **owner, attempt=1)
    objects[manifest] = manifest_bytes
    claim = names.claim(node_id=NODE_ID, lock_epoch=1)
    objects[claim] = encode_claim(Claim(CLUSTER_ID, NODE_ID, "s", 1, NONCE))
    for key, body in objects.items():
        path = bucket / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    keys = {"claim": claim, "chunk": chunk, "index": index, "manifest": manifest}
    keys |= {"bundle0": bundles[0].object_key, "bundle1": bundles[1].object_key}
    remote = {
        0: RemoteCopy(RemoteState.COMPLETE, 30, (), manifest, manifest_digest(manifest_bytes), len(manifest_bytes)),
        1: RemoteCopy(RemoteState.PARTIAL, 40, (bundles[1],)),
    }
    return keys, remote


async def _store_metadata(directory: Path, seals: dict[int, SealRecord], remote: dict[int, RemoteCopy]) -> None:
    shard = ShardKey(TOPIC_ID, 0)
    writes: list[table_records.TableWrite] = [
        table_records.PutHeader(table_records.TableHeader(CLUSTER_ID, 9, 0)),
        table_records.PutNode(table_records.NodeEntry(NodeInfo(NODE_ID, "s", "127.0.0.1", 9092), 1)),
        table_records.PutLock(Lock("tier/1", holder_name("node-1/1", NONCE), 1, NOW_MS)),
        table_records.PutTopic(Topic(TOPIC, TOPIC_ID, 1, 1, {}, NOW_MS)),
        table_records.PutShard(table_records.ShardRow(shard, 0)),
    ]
    for epoch in BASE_OFFSETS:
        seal = seals.get(epoch)
        copy = remote.get(epoch, RemoteCopy())
        key = segment_key(epoch)
        segment = Segment(
            key=key,
            state=SegmentState.SEALED if seal else SegmentState.ACTIVE,
            leader=None if seal else NODE_ID,
            replicas=(NODE_ID,),
            isr=(NODE_ID,),
            isr_version=0,
            opened_ms=NOW_MS,
            end_offset=seal.end_offset if seal else None,
            seal=seal,
            local_nodes=(NODE_ID,) if seal else (),
            remote=copy,
        )
        writes.append(table_records.PutSegmentHead(segment))
        if seal is not None:
            writes.append(table_records.PutSeal(key, seal))
        writes += [table_records.PutPart(key, part) for part in copy.parts]
    store = RocksStore(directory)
    await store.load()
    await store.write([writes])
    await store.close()
