"""What parts, bundles, manifests and names refuse to be made of, and what a reader with ranged GETs can do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog.formats.batches.record_batch import parse_header
from stratalog.formats.bucket.bundle import (
    BUNDLE_TRAILER_BYTES,
    check_bundle,
    decode_bundle_directory,
    decode_bundle_header,
    decode_bundle_trailer,
)
from stratalog.formats.bucket.manifest import encode_manifest, manifest_digest
from stratalog.formats.bucket.object_names import ObjectNames, SegmentObject, SegmentObjectName
from stratalog.formats.bucket.part import (
    PART_HEADER_BYTES,
    check_part,
    decode_part_header,
    decode_part_index,
    encode_part,
)
from stratalog.formats.disk.segment_file import encode_segment_header
from stratalog.formats.envelope import Structure, identify
from stratalog.formats.segments.digest import EMPTY_DIGEST, object_digest
from stratalog.model.errors import InvalidRequest
from stratalog.model.segment import RemotePart
from support.stored_samples import (
    BATCHES,
    BUNDLE,
    BUNDLE_HEADER,
    CHECKPOINT,
    CLAIM,
    DATA,
    HEADERS,
    IDENTITY,
    INDEX_BLOCK,
    JOURNAL,
    MANIFEST,
    MANIFEST_VALUE,
    PART,
    PART_WITH_POINTS,
    SEGMENT_FILE,
    TOPIC_ID,
)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (SEGMENT_FILE, Structure.SEGMENT),
        (INDEX_BLOCK, Structure.INDEX_BLOCK),
        (PART, Structure.PART),
        (BUNDLE, Structure.BUNDLE),
        (MANIFEST, Structure.MANIFEST),
        (CLAIM, Structure.CLAIM),
        (CHECKPOINT, Structure.CHECKPOINT),
        (JOURNAL, Structure.JOURNAL),
        (DATA, None),
        (b"", None),
        (b"SLOG", None),
    ],
)
def test_the_first_bytes_alone_tell_what_a_file_is(data: bytes, kind: Structure | None) -> None:
    assert identify(data[:8]) is kind


def test_a_chain_of_parts_ends_in_the_seals_digest() -> None:
    digest = EMPTY_DIGEST
    for batch, header in zip(BATCHES, HEADERS, strict=True):
        pieces, after = encode_part(IDENTITY, header.base_offset, header.end_offset, batch, [header], digest, 1)
        check_part(b"".join(pieces), source="x", expected_digest_before=digest)
        digest = after
    assert digest == decode_part_header(PART, source="x").digest_after


@pytest.mark.parametrize(
    ("first", "end", "data", "headers", "words"),
    [
        (1_000, 1_010, DATA, HEADERS, "end at 1009"),
        (1_000, 1_009, DATA[:-1], HEADERS, "bytes was given"),
        (999, 1_009, DATA, HEADERS, "batch at offset 1000 where 999 was expected"),
        (1_000, 1_009, DATA, (HEADERS[0], HEADERS[2]), "batch at offset 1004 where 1003 was expected"),
        (1_000, 1_000, b"", (), "was given 0 batches"),
    ],
)
def test_a_part_that_would_not_hold_what_it_claims_is_not_made(first, end, data, headers, words) -> None:
    with pytest.raises(InvalidRequest, match=words):
        encode_part(IDENTITY, first, end, data, headers, EMPTY_DIGEST, 1)


def test_a_parts_index_is_read_without_its_data() -> None:
    header = decode_part_header(PART_WITH_POINTS[:PART_HEADER_BYTES], source="x")
    index = decode_part_index(PART_WITH_POINTS[header.index_position :], header, source="x")
    assert len(index.points) == 2
    start, end = index.position_for_offset(1_004)
    batch = PART_WITH_POINTS[PART_HEADER_BYTES + start : PART_HEADER_BYTES + end]
    assert parse_header(batch).base_offset == 1_003
    assert index.position_for_time(header.max_timestamp_ms + 1) is None
    assert index.position_for_time(0) == (0, index.points[0].position)


def test_a_bundle_is_read_by_its_tail_its_directory_and_one_part() -> None:
    trailer = decode_bundle_trailer(BUNDLE[-BUNDLE_TRAILER_BYTES:], source="b", object_size=len(BUNDLE))
    at = trailer.directory_position
    entries = decode_bundle_directory(BUNDLE[at : at + trailer.directory_size_bytes], trailer, source="b")
    assert [(e.identity.shard, e.base_offset, e.end_offset) for e in entries] == [(3, 1_000, 1_003), (4, 1_003, 1_004)]
    for entry in entries:
        part = BUNDLE[entry.position : entry.position + entry.size_bytes]
        assert check_part(part, source="b", position=entry.position).header.identity == entry.identity
    assert decode_bundle_header(BUNDLE, source="b") == BUNDLE_HEADER
    assert check_bundle(BUNDLE, source="b") == (BUNDLE_HEADER, entries)


def manifest_with(*parts: tuple[int, int], size_bytes: int = 10_000) -> bytes:
    return encode_manifest(
        replace(MANIFEST_VALUE, parts=tuple(RemotePart("k", 0, size_bytes, first, end) for first, end in parts))
    )


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([(1_001, 1_009)], "part 0 begins at offset 1001, expected 1000"),
        ([(1_000, 1_003), (1_004, 1_009)], "part 1 begins at offset 1004, expected 1003"),
        ([(1_000, 1_005), (1_003, 1_009)], "part 1 begins at offset 1003, expected 1005"),
        ([(1_000, 1_000), (1_000, 1_009)], "part 0 ends at offset 1000, not above its base"),
        ([(1_000, 1_008)], "the parts end at offset 1008, the seal at 1009"),
        ([], "the parts end at offset 1000, the seal at 1009"),
    ],
)
def test_a_manifest_with_a_gap_or_an_overlap_is_not_made(parts: list[tuple[int, int]], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        manifest_with(*parts)


def test_a_manifest_whose_parts_cannot_hold_the_seals_bytes_is_not_made() -> None:
    with pytest.raises(InvalidRequest, match="seal and part headers need"):
        manifest_with((1_000, 1_009), size_bytes=600)


def test_a_manifest_of_another_segments_seal_is_not_made() -> None:
    with pytest.raises(InvalidRequest, match="the seal is of epoch 7"):
        encode_manifest(replace(MANIFEST_VALUE, identity=replace(IDENTITY, epoch=8)))


def test_equal_manifests_have_equal_digests() -> None:
    assert manifest_digest(encode_manifest(MANIFEST_VALUE)) == manifest_digest(MANIFEST) == object_digest(MANIFEST)


def test_the_longest_names_fit_into_every_header() -> None:
    longest = replace(IDENTITY, cluster_id="c" * 64, topic="t" * 249)
    assert len(encode_segment_header(longest)) == 512
    pieces, _ = encode_part(longest, 1_000, 1_009, DATA, HEADERS, EMPTY_DIGEST, 2**63 - 1)
    check_part(b"".join(pieces), source="x")
    with pytest.raises(InvalidRequest, match="topic name is 250 bytes long: the limit is 249"):
        encode_segment_header(replace(IDENTITY, topic="t" * 250))


NAMES = ObjectNames("some/prefix", "abc")


def test_names_look_as_the_design_says() -> None:
    segment = IDENTITY.key
    common = (
        f"some/prefix/abc/data/{TOPIC_ID}/3/00000000000000001000-7/00000000000000001000-00000000000000001009.3.11.2"
    )
    who = {"node_id": 3, "lock_epoch": 11, "attempt": 2}
    assert NAMES.chunk(segment, 1_000, 1_009, **who) == f"{common}.chunk"
    assert NAMES.index(segment, 1_000, 1_009, **who) == f"{common}.index"
    assert NAMES.manifest(segment, 1_000, 1_009, **who) == f"{common}.manifest"
    assert NAMES.claim(node_id=3, lock_epoch=11) == "some/prefix/abc/claims/3/11.claim"
    assert NAMES.bundle(number=5, **who) == "some/prefix/abc/bundles/3/11/000000000005.2.bundle"
    assert NAMES.parse(f"{common}.chunk") == SegmentObjectName(SegmentObject.CHUNK, segment, 1_000, 1_009, 3, 11, 2)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "some/prefix/abc/",
        "some/prefix/abc/readme.txt",
        "some/prefix/abcd/bundles/3/11/000000000005.2.bundle",
        "some/prefix/abc/claims/3/011.claim",
        "some/prefix/abc/claims/3/11.claim.tmp",
        "some/prefix/abc/bundles/03/11/000000000005.2.bundle",
        "some/prefix/abc/bundles/3/11/5.2.bundle",
        "some/prefix/abc/bundles/3/11/000000000005.2.bundle.tmp",
        "some/prefix/abc/bundles/3/11/000000000005.2.bundle\n",
        f"some/prefix/abc/data/{str(TOPIC_ID).upper()}/3/00000000000000001000-7/00000000000000001000-00000000000000001009.3.11.2.chunk",
        f"some/prefix/abc/data/{TOPIC_ID}/3/00000000000000001000-7/00000000000000000999-00000000000000001009.3.11.2.chunk",
        f"some/prefix/abc/data/{TOPIC_ID}/3/00000000000000001000-7/00000000000000001009-00000000000000001008.3.11.2.chunk",
        f"some/prefix/abc/data/{TOPIC_ID}/3/00000000000000001000-7/00000000000000001000-99999999999999999999.3.11.2.chunk",
    ],
)
def test_a_foreign_key_belongs_to_no_one(key: str) -> None:
    assert NAMES.parse(key) is None


def test_a_number_that_no_name_can_hold_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no object key can be made"):
        NAMES.bundle(node_id=-1, lock_epoch=0, number=0, attempt=0)
    with pytest.raises(InvalidRequest, match="no object key can be made"):
        NAMES.bundle(node_id=1, lock_epoch=0, number=10**12, attempt=0)
    with pytest.raises(InvalidRequest, match="cluster id 'a/b'"):
        ObjectNames("p", "a/b")
