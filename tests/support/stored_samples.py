"""One small, valid sample of every stored structure, with the reader that must refuse it when it is damaged."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from stratalog.formats.batches.record_batch import check_batch, parse_header, walk
from stratalog.formats.batches.records import Record, encode_batch
from stratalog.formats.bucket.bundle import BundleHeader, BundleMember, check_bundle, encode_bundle
from stratalog.formats.bucket.claim import Claim, decode_claim, encode_claim
from stratalog.formats.bucket.cut import decode_cut, encode_cut
from stratalog.formats.bucket.key_index import (
    KEY_ENTRY_BYTES,
    KEY_PAGE_BYTES,
    KeyRun,
    decode_key_overflow,
    decode_key_page,
    encode_key_overflow,
    encode_key_page,
    key_hash,
)
from stratalog.formats.bucket.manifest import Manifest, decode_manifest, encode_manifest
from stratalog.formats.bucket.meta_snapshot import (
    MetaSnapshotHead,
    MetaSnapshotId,
    decode_head,
    decode_piece,
    encode_head,
    encode_pieces,
    piece_of,
)
from stratalog.formats.bucket.part import PART_HEADER_BYTES, check_part, encode_part
from stratalog.formats.disk.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from stratalog.formats.disk.journal import (
    JournalHeader,
    decode_journal_header,
    encode_entry_header,
    encode_journal_header,
)
from stratalog.formats.disk.segment_file import decode_segment_header, encode_segment_header, walk_segment
from stratalog.formats.segments.digest import EMPTY_DIGEST, extend_digest_over, object_digest
from stratalog.formats.segments.index_block import (
    IndexBuilder,
    IndexPoint,
    IndexPoints,
    decode_index_block,
    encode_index_block,
)
from stratalog.formats.segments.producers import encode_table, tally_of
from stratalog.model.batch import BatchHeader
from stratalog.model.cut import Cut, CutShard
from stratalog.model.ids import ShardKey
from stratalog.model.producers import BatchMemo, ProducerRule, ProducerSnapshot
from stratalog.model.segment import RemotePart, SealRecord, SegmentIdentity
from stratalog.model.topic import Topic
from support.packed_chunks import packed_sample, unpack_all

TOPIC_ID = UUID("01234567-89ab-cdef-0123-456789abcdef")
BASE_OFFSET = 1_000
EPOCH = 7
JOURNAL_NUMBER = 42

IDENTITY = SegmentIdentity("cluster-Zürich", TOPIC_ID, "orders.eu", 3, EPOCH, BASE_OFFSET, 1_700_000_000_000)
PRODUCERS = (
    ProducerSnapshot(4, 0, 1_700_000_000_500, ()),
    ProducerSnapshot(9, 2, 1_700_000_000_900, (BatchMemo(0, 4, 1_000, 5), BatchMemo(5, 5, 1_005, -1))),
)
TABLE = encode_table(PRODUCERS)


def batch_of(base_offset: int, count: int, *, epoch: int = EPOCH, value: bytes = b"v" * 20, codec: int = 0) -> bytes:
    """A batch with rising offsets whose times fall: the first record has the highest."""
    records = [
        Record(base_offset + i, 1_700_000_000_000 + base_offset * 10 - i, b"k%d" % i, value) for i in range(count)
    ]
    return encode_batch(records, base_offset=base_offset, epoch=epoch, compression=codec)


BATCHES = (batch_of(1_000, 3), batch_of(1_003, 1, codec=4), batch_of(1_004, 5))
END_OFFSET = 1_009
DATA = b"".join(BATCHES)
HEADERS = tuple(parse_header(batch) for batch in BATCHES)
DIGEST = extend_digest_over(EMPTY_DIGEST, DATA)
POINTS = IndexPoints(
    (IndexPoint(1_003, len(BATCHES[0]), 1_700_000_010_000), IndexPoint(1_004, 300, 1_700_000_010_030)),
    has_true_times=True,
)


def seal_of(headers: Sequence[BatchHeader], data: bytes) -> SealRecord:
    built = IndexBuilder(headers[0].base_offset, has_true_times=True)
    for header in headers:
        built.append_batch(header, data[built.size_bytes : built.size_bytes + header.size_bytes])
    return SealRecord(
        epoch=EPOCH,
        base_offset=headers[0].base_offset,
        end_offset=headers[-1].end_offset,
        first_timestamp_ms=built.first_timestamp_ms,
        max_timestamp_ms=built.max_timestamp_ms,
        size_bytes=len(data),
        digest=extend_digest_over(EMPTY_DIGEST, data),
        producers=tally_of(PRODUCERS, TABLE, ProducerRule(5_000, 86_400_000)),
        replicas=(1, 2, 5),
        sealed_ms=1_700_000_100_000,
        times_known=built.times_known,
    )


SEAL = seal_of(HEADERS, DATA)
SEGMENT_HEADER = encode_segment_header(IDENTITY)
SEGMENT_FILE = SEGMENT_HEADER + DATA
INDEX_BLOCK = encode_index_block(IDENTITY, SEAL, POINTS, TABLE)


def part_of(batches: Sequence[bytes], digest_before: bytes = EMPTY_DIGEST, attempt: int = 1) -> bytes:
    headers = [parse_header(batch) for batch in batches]
    pieces, _ = encode_part(
        IDENTITY,
        headers[0].base_offset,
        headers[-1].end_offset,
        b"".join(batches),
        headers,
        digest_before,
        attempt,
    )
    return b"".join(pieces)


PART = part_of(BATCHES)
PART_WITH_POINTS = part_of([batch_of(1_000 + i, 1, value=bytes([i]) * 30_000) for i in range(8)])

BUNDLE_HEADER = BundleHeader(IDENTITY.cluster_id, node_id=3, lock_epoch=11, number=5, attempt=2)
_OTHER = replace(IDENTITY, shard=4, topic="x")


def bundle_of(parts: Sequence[tuple[SegmentIdentity, Sequence[bytes]]]) -> bytes:
    members = []
    for identity, batches in parts:
        headers = [parse_header(batch) for batch in batches]
        first, end, data = headers[0].base_offset, headers[-1].end_offset, b"".join(batches)
        pieces, _ = encode_part(identity, first, end, data, headers, EMPTY_DIGEST, 1)
        members.append(BundleMember(identity, first, end, pieces))
    return b"".join(encode_bundle(BUNDLE_HEADER, members)[0])


BUNDLE = bundle_of([(IDENTITY, BATCHES[:1]), (_OTHER, BATCHES[1:2])])

MANIFEST_VALUE = Manifest(
    IDENTITY,
    SEAL,
    (
        RemotePart("p/c/data/a.chunk", 0, PART_HEADER_BYTES + len(BATCHES[0]) + 32, 1_000, 1_003),
        RemotePart("p/c/bundles/b.bundle", 4_096, 2 * PART_HEADER_BYTES + len(DATA), 1_003, 1_009),
    ),
    "p/c/data/a.index",
    len(INDEX_BLOCK),
    object_digest(INDEX_BLOCK),
)
MANIFEST = encode_manifest(MANIFEST_VALUE)

PACKED_PART, PACKED_CHUNK = packed_sample(1)
"""Of one frame of batches, one of the index."""

KEY = b"k1"
KEY_ENTRIES = struct.pack(">IIIqIIIq", key_hash(KEY) & 0xFFFFFFFF, 0, 100, 512, key_hash(b"x") & 0xFFFFFFFF, 1, 90, 700)
KEY_OVERFLOW = encode_key_overflow(SEAL.digest, 0, KEY_ENTRIES)
KEY_PAGE = encode_key_page(SEAL.digest, 0, 1, KEY_ENTRIES, KEY_PAGE_BYTES, len(KEY_OVERFLOW))
KEY_RUN_VALUE = KeyRun(
    "p/c/data/a.keys",
    KEY_PAGE_BYTES + len(KEY_OVERFLOW),
    object_digest(KEY_PAGE + KEY_OVERFLOW),
    1,
    2 * len(KEY_ENTRIES) // KEY_ENTRY_BYTES,
    SEAL.base_offset,
    SEAL.end_offset,
)
KEYED_MANIFEST_VALUE = replace(MANIFEST_VALUE, key_runs=(KEY_RUN_VALUE,))
KEYED_MANIFEST = encode_manifest(KEYED_MANIFEST_VALUE)
PACKED_MANIFEST_VALUE = replace(
    KEYED_MANIFEST_VALUE,
    parts=(replace(MANIFEST_VALUE.parts[0], object_key="p/c/data/a.packed"), MANIFEST_VALUE.parts[1]),
    packed_sizes=(1_500, 0),
)
PACKED_MANIFEST = encode_manifest(PACKED_MANIFEST_VALUE)

CLAIM_VALUE = Claim(IDENTITY.cluster_id, 3, "6f1c9a0e-storage", 11, UUID(int=0x0123456789ABCDEF << 64))
CLAIM = encode_claim(CLAIM_VALUE)

META_ID = MetaSnapshotId(IDENTITY.cluster_id, 12, 3_400, UUID(int=0x0123456789ABCDEF << 32))
META_ITEMS = ((b"a", b'[1,"cluster",3400,1]'), (b"t" + TOPIC_ID.bytes, b'["orders.eu",3]'), (b"v" * 38, b"[0]" * 50))
META_PIECE = next(encode_pieces(META_ID, META_ITEMS))[0]
META_HEAD_VALUE = MetaSnapshotHead(META_ID, 1_700_000_000_000, len(META_ITEMS), (piece_of(META_PIECE),))
META_HEAD = encode_head(META_HEAD_VALUE)

CUT_VALUE = Cut(
    IDENTITY.cluster_id,
    "month-end.1",
    1_700_000_000_000,
    (Topic("orders.eu", TOPIC_ID, 4, 3, {"retention.ms": "-1", "note": "größer"}, 5, False),),
    (CutShard(ShardKey(TOPIC_ID, 3), 1_000, 1_004, 7), CutShard(ShardKey(TOPIC_ID, 2), 0, 0, 0)),
)
CUT = encode_cut(CUT_VALUE)

CHECKPOINT_VALUE = Checkpoint(
    IDENTITY.key, len(DATA), END_OFFSET, SEAL.first_timestamp_ms, SEAL.max_timestamp_ms, POINTS, PRODUCERS
)
CHECKPOINT = encode_checkpoint(CHECKPOINT_VALUE)

JOURNAL_HEADER = encode_journal_header(JournalHeader(IDENTITY.cluster_id, 3, JOURNAL_NUMBER, 1_700_000_000_000))
JOURNAL_ENTRIES = tuple(
    encode_entry_header(JOURNAL_NUMBER, IDENTITY.key, position, [payload]) + payload
    for position, payload in ((0, BATCHES[0]), (len(BATCHES[0]), BATCHES[1]))
)
JOURNAL = JOURNAL_HEADER + b"".join(JOURNAL_ENTRIES)


@dataclass(frozen=True, slots=True)
class Sample:
    """Whole bytes of one structure. `read` must raise Corrupt, naming its second argument, when they are not."""

    name: str
    data: bytes
    read: Callable[[bytes, str], object]


SAMPLES = (
    Sample("batch", BATCHES[0], lambda data, source: _known_batch(data, source)),
    Sample("segment-header", SEGMENT_HEADER, lambda data, source: decode_segment_header(data, source=source)),
    Sample("index-block", INDEX_BLOCK, lambda data, source: decode_index_block(data, source=source)),
    Sample("part", PART, lambda data, source: check_part(data, source=source)),
    Sample("bundle", BUNDLE, lambda data, source: check_bundle(data, source=source)),
    Sample("manifest", MANIFEST, lambda data, source: _manifest(data, source)),
    Sample("keyed-manifest", KEYED_MANIFEST, lambda data, source: _manifest(data, source)),
    Sample("packed-manifest", PACKED_MANIFEST, lambda data, source: _manifest(data, source)),
    Sample("packed-chunk", PACKED_CHUNK, lambda data, source: unpack_all(data, source)),
    Sample("key-page", KEY_PAGE, lambda data, source: decode_key_page(data, _run(source), key_hash(KEY), SEAL.digest)),
    Sample(
        "key-overflow",
        KEY_OVERFLOW,
        lambda data, source: decode_key_overflow(data, _run(source), key_hash(KEY), SEAL.digest, 0),
    ),
    Sample("claim", CLAIM, lambda data, source: decode_claim(data, source=source)),
    Sample("meta-snapshot", META_HEAD, lambda data, source: decode_head(data, source=source)),
    Sample("meta-piece", META_PIECE, lambda data, source: decode_piece(data, META_ID, 0, source=source)),
    Sample("cut", CUT, lambda data, source: decode_cut(data, source=source)),
    Sample("checkpoint", CHECKPOINT, lambda data, source: decode_checkpoint(data, source=source)),
    Sample("journal-header", JOURNAL_HEADER, lambda data, source: decode_journal_header(data, source=source)),
)
"""Samples in which every byte is checked: any cut, any flipped bit, any zeroed page must be refused."""

MAY_GROW = frozenset({"segment-header", "journal-header"})
"""Something may follow these, so bytes added at the end are not theirs to refuse."""

SEGMENT_SAMPLE = Sample("segment-file", SEGMENT_FILE, lambda data, source: list(walk_segment(data, source=source)))
"""A segment file may end after any batch: a cut there is a shorter log, which the seal's size and digest find."""


def _manifest(data: bytes, source: str) -> Manifest:
    return decode_manifest(data, source=source)


def _run(source: str) -> KeyRun:
    return replace(KEY_RUN_VALUE, object_key=source)


def _known_batch(data: bytes, source: str) -> BatchHeader:
    """Base offset and epoch lie outside a batch's CRC: what is around it knows them."""
    found = list(walk(data, source=source, expected_base_offset=BASE_OFFSET, epoch=EPOCH))
    if len(found) != 1:
        check_batch(data, source=source)
    return found[0][1]
