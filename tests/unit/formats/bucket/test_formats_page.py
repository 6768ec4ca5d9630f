"""docs/formats.md and the code say the same: constants, magics, and the bytes, read by the page's own grammar."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stratalog.formats import envelope, fields, identity
from stratalog.formats.bucket import bundle, key_index, manifest, packed_chunk, part
from stratalog.formats.bucket.cut import decode_cut
from stratalog.formats.disk import journal, segment_file
from stratalog.formats.envelope import Structure
from stratalog.formats.segments import index_points, producers
from stratalog.model.batch import BATCH_HEADER_BYTES
from support.grammar_page import GrammarPage
from support.stored_samples import (
    BATCHES,
    BUNDLE,
    CHECKPOINT,
    CLAIM,
    CLAIM_VALUE,
    CUT,
    CUT_VALUE,
    DATA,
    DIGEST,
    END_OFFSET,
    IDENTITY,
    INDEX_BLOCK,
    JOURNAL_ENTRIES,
    JOURNAL_HEADER,
    JOURNAL_NUMBER,
    KEY,
    KEY_OVERFLOW,
    KEY_PAGE,
    KEY_RUN_VALUE,
    KEYED_MANIFEST,
    MANIFEST,
    MANIFEST_VALUE,
    META_HEAD,
    META_ITEMS,
    META_PIECE,
    PACKED_CHUNK,
    PART,
    PART_WITH_POINTS,
    SEAL,
    SEGMENT_HEADER,
)

TEXT = (Path(__file__).resolve().parents[4] / "docs" / "formats.md").read_text(encoding="utf-8")
PAGE = GrammarPage(TEXT)
PACK_HEADER_VALUE = packed_chunk.decode_pack_header(PACKED_CHUNK[: packed_chunk.PACK_HEADER_BYTES], source="p")
CONSTANTS = {
    "PREAMBLE_BYTES": envelope.PREAMBLE_BYTES,
    "ENVELOPE_BYTES": envelope.ENVELOPE_BYTES,
    "BATCH_HEADER_BYTES": BATCH_HEADER_BYTES,
    "SEGMENT_HEADER_BYTES": segment_file.SEGMENT_HEADER_BYTES,
    "POINT_BYTES": index_points.POINT_BYTES,
    "INDEX_INTERVAL_BYTES": index_points.INDEX_INTERVAL_BYTES,
    "PART_HEADER_BYTES": part.PART_HEADER_BYTES,
    "BUNDLE_HEADER_BYTES": bundle.BUNDLE_HEADER_BYTES,
    "BUNDLE_TRAILER_BYTES": bundle.BUNDLE_TRAILER_BYTES,
    "JOURNAL_HEADER_BYTES": journal.JOURNAL_HEADER_BYTES,
    "JOURNAL_ENTRY_HEADER_BYTES": journal.JOURNAL_ENTRY_HEADER_BYTES,
    "DIGEST_BYTES": fields.DIGEST_BYTES,
    "MAX_TOPIC_BYTES": identity.MAX_TOPIC_BYTES,
    "MAX_CLUSTER_ID_BYTES": identity.MAX_CLUSTER_ID_BYTES,
    "MAX_OBJECT_KEY_BYTES": manifest.MAX_OBJECT_KEY_BYTES,
    "KEY_PAGE_BYTES": key_index.KEY_PAGE_BYTES,
    "KEY_ENTRY_BYTES": key_index.KEY_ENTRY_BYTES,
    "KEY_PAGE_ENTRIES": key_index.KEY_PAGE_ENTRIES,
    "MAX_KEY_RUN_ENTRIES": key_index.MAX_KEY_RUN_ENTRIES,
    "PACK_HEADER_BYTES": packed_chunk.PACK_HEADER_BYTES,
    "PACK_ENTRY_BYTES": packed_chunk.PACK_ENTRY_BYTES,
    "PACK_FRAME_BYTES": packed_chunk.PACK_FRAME_BYTES,
    "MAX_PACK_FRAME_BYTES": packed_chunk.MAX_PACK_FRAME_BYTES,
    "MAX_PACK_TABLE_BYTES": packed_chunk.MAX_PACK_TABLE_BYTES,
    "MAX_PACK_DICTIONARY_BYTES": packed_chunk.MAX_PACK_DICTIONARY_BYTES,
    "MAX_PACKED_PART_BYTES": packed_chunk.MAX_PACKED_PART_BYTES,
}


def test_the_pages_sizes_are_the_codes_constants() -> None:
    assert {name: PAGE.tables.get(name) for name in CONSTANTS} == CONSTANTS


def test_the_pages_magics_are_the_codes() -> None:
    magics = re.findall(r"^\| `(SLOG\w{4})` \| (\d+) \| ([a-z ]+) \|", TEXT, re.MULTILINE)
    expected = {(s.value.decode(), str(s.version)) for s in Structure}
    assert {(magic, version) for magic, version, _ in magics} == expected
    assert len(magics) == len(Structure)


@pytest.mark.parametrize(
    ("rule", "size"),
    [
        ("preamble", envelope.PREAMBLE_BYTES),
        ("key", 32),
        ("point", index_points.POINT_BYTES),
        ("memo", producers.MEMO_BYTES),
        ("bundle_trailer", bundle.BUNDLE_TRAILER_BYTES),
        ("entry_header", journal.JOURNAL_ENTRY_HEADER_BYTES),
        ("key_entry", key_index.KEY_ENTRY_BYTES),
        ("pack_frame", packed_chunk.PACK_ENTRY_BYTES),
    ],
)
def test_the_fields_of_a_fixed_structure_add_up_to_its_size(rule: str, size: int) -> None:
    assert PAGE.fixed_size(rule) == size
    claim = re.search(rf"^{rule} *:=[^\[]*(?:\n +[^\[\n]*)*\[(\d+) bytes\]", TEXT, re.MULTILINE)
    assert claim is not None
    assert int(claim[1]) == size


def test_a_batch_header_is_read_by_the_page() -> None:
    body = PAGE.rules["batch"].split("records\n")[0].rsplit("records", 1)[0]
    page = GrammarPage("")
    page.rules = {"header": body}
    reading = page.read("header", BATCHES[0][:BATCH_HEADER_BYTES])
    assert reading.values("base_offset") == [1_000]
    assert reading.values("length") == [len(BATCHES[0]) - 12]
    assert reading.values("record_count") == [3]


@pytest.mark.parametrize(
    ("rule", "data"),
    [
        ("segment_header", SEGMENT_HEADER),
        ("index_block", INDEX_BLOCK),
        ("part_header", PART[: part.PART_HEADER_BYTES]),
        ("part_index", PART_WITH_POINTS[part.decode_part_header(PART_WITH_POINTS, source="p").index_position :]),
        ("bundle_header", BUNDLE[: bundle.BUNDLE_HEADER_BYTES]),
        ("bundle_trailer", BUNDLE[-bundle.BUNDLE_TRAILER_BYTES :]),
        ("manifest", MANIFEST),
        ("keyed_manifest", KEYED_MANIFEST),
        ("pack_header", PACKED_CHUNK[: packed_chunk.PACK_HEADER_BYTES]),
        ("pack_table", PACKED_CHUNK[packed_chunk.PACK_HEADER_BYTES : PACK_HEADER_VALUE.frames_position]),
        ("key_page", KEY_PAGE),
        ("key_overflow", KEY_OVERFLOW),
        ("claim", CLAIM),
        ("meta_snapshot", META_HEAD),
        ("meta_piece", META_PIECE),
        ("cut", CUT),
        ("checkpoint", CHECKPOINT),
        ("journal_header", JOURNAL_HEADER),
        ("entry_header", JOURNAL_ENTRIES[0][: journal.JOURNAL_ENTRY_HEADER_BYTES]),
    ],
)
def test_the_pages_grammar_reads_what_the_code_wrote_to_the_last_byte(rule: str, data: bytes) -> None:
    PAGE.read(rule, data)


def test_the_pages_grammar_reads_a_bundles_directory() -> None:
    trailer = bundle.decode_bundle_trailer(BUNDLE[-bundle.BUNDLE_TRAILER_BYTES :], source="b", object_size=len(BUNDLE))
    data = BUNDLE[trailer.directory_position : -bundle.BUNDLE_TRAILER_BYTES]
    reading = PAGE.read("bundle_directory", data)
    assert reading.values("position")[0] == bundle.BUNDLE_HEADER_BYTES
    assert reading.values("topic") == ["orders.eu", "x"]


def test_fields_are_where_the_page_says() -> None:
    checkpoint = PAGE.read("checkpoint", CHECKPOINT)
    assert checkpoint.values("next_offset") == [END_OFFSET]
    assert checkpoint.values("producer_id") == [4, 9]
    header = PAGE.read("part_header", PART[: part.PART_HEADER_BYTES])
    assert header.values("data_size") == [len(DATA)]
    assert header.values("digest_after") == [DIGEST]
    found = PAGE.read("manifest", MANIFEST)
    assert found.values("cluster_id") == [IDENTITY.cluster_id]
    assert found.values("node_id") == list(SEAL.replicas)
    assert found.values("object_key") == [p.object_key for p in MANIFEST_VALUE.parts]
    assert found.values("total_bytes") == [MANIFEST_VALUE.total_bytes]
    keyed = PAGE.read("keyed_manifest", KEYED_MANIFEST)
    assert keyed.values("run_key") == [KEY_RUN_VALUE.object_key]
    assert keyed.values("run_to") == [SEAL.end_offset]
    page = PAGE.read("key_page", KEY_PAGE)
    assert page.values("overflow_size") == [len(KEY_OVERFLOW)]
    assert page.values("tail") == [key_index.tail_of(key_index.key_hash(key)) for key in (KEY, b"x")]
    claim = PAGE.read("claim", CLAIM)
    assert claim.values("nonce") == [CLAIM_VALUE.nonce]
    assert claim.values("lock_epoch") == [CLAIM_VALUE.lock_epoch]
    cut = PAGE.read("cut", CUT)
    assert cut.values("end_offset") == [shard.end_offset for shard in CUT_VALUE.shards]
    assert decode_cut(CUT, source="cut") == CUT_VALUE
    assert PAGE.read("meta_snapshot", META_HEAD).values("records") == [len(META_ITEMS)]
    entry = PAGE.read("entry_header", JOURNAL_ENTRIES[1][: journal.JOURNAL_ENTRY_HEADER_BYTES])
    assert entry.values("number") == [JOURNAL_NUMBER]
    assert entry.values("position") == [len(BATCHES[0])]
