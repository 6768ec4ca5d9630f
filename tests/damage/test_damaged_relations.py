"""Fields that are each possible but do not fit together, under a right CRC: what a wrong program would write."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stratalog.formats.bucket.bundle import BUNDLE_TRAILER_BYTES
from stratalog.formats.bucket.part import PART_HEADER_BYTES, check_part, decode_part_header
from stratalog.formats.disk.checkpoint import encode_checkpoint
from stratalog.formats.segments.index_block import IndexPoint, IndexPoints, encode_index_block
from stratalog.model.errors import Corrupt, InvalidRequest
from stratalog.model.producers import BatchMemo, ProducerSnapshot
from support.damage_corpus import resealed
from support.grammar_page import GrammarPage
from support.stored_samples import (
    BUNDLE,
    CHECKPOINT,
    CHECKPOINT_VALUE,
    IDENTITY,
    INDEX_BLOCK,
    JOURNAL_HEADER,
    MANIFEST,
    PART_WITH_POINTS,
    POINTS,
    SAMPLES,
    SEAL,
    SEGMENT_HEADER,
    TABLE,
)

PAGE = GrammarPage((Path(__file__).resolve().parents[2] / "docs" / "formats.md").read_text(encoding="utf-8"))
READERS = {sample.name: sample.read for sample in SAMPLES}
RULES = {
    "segment_header": ("segment-header", SEGMENT_HEADER),
    "index_block": ("index-block", INDEX_BLOCK),
    "manifest": ("manifest", MANIFEST),
    "checkpoint": ("checkpoint", CHECKPOINT),
    "journal_header": ("journal-header", JOURNAL_HEADER),
}


def lie(rule: str, data: bytes, field: str, nth: int, value: int) -> bytes:
    """`data` with another number in the nth `field`, found by the page's grammar; the CRC is made again."""
    damaged = PAGE.read(rule, data).lie(field, value, nth)
    return resealed(bytearray(damaged), 0, len(damaged))


@pytest.mark.parametrize(
    ("rule", "field", "nth", "value", "words"),
    [
        ("segment_header", "zero", 0, 1, "segment has 1 where zero belongs"),
        ("segment_header", "shard", 0, -1, "shard is -1, below 0"),
        ("segment_header", "base_offset", 0, -7, "base offset is -7, below 0"),
        ("index_block", "epoch", 1, 8, "the seal is of epoch 8 and base offset 1000, the identity says 7 and 1000"),
        ("index_block", "base_offset", 1, 5, "the seal is of epoch 7 and base offset 5"),
        ("index_block", "end_offset", 0, 999, "the seal ends at offset 999, before its base 1000"),
        ("index_block", "end_offset", 0, 1_000, "the seal claims .* bytes for 0 offsets"),
        ("index_block", "size_bytes", 0, 0, "the seal claims 0 bytes for 9 offsets"),
        ("index_block", "max_timestamp_ms", 0, 5, "a point names time .*, the log ends at 5"),
        ("index_block", "max_timestamp_ms", 2, 5, "point 1 .* does not follow"),
        ("index_block", "replicas", 0, 2**60, "replica count claims"),
        ("index_block", "memos", 0, 6, "a table of producers with digest .*, the seal says"),
        ("index_block", "producer_count", 0, -1, "producer count is -1, below 0"),
        ("index_block", "producer_count", 0, 0, "no producers, and something is said of them"),
        ("index_block", "expiration_ms", 0, -1, "expiration of producers is -1, below 0"),
        ("index_block", "tables", 0, 2, "2 tables of producers: there is one or none"),
        ("index_block", "tables", 0, 0, "bytes are left after the last field"),
        ("manifest", "producer_limit", 0, -1, "most producers is -1, below 0"),
        ("checkpoint", "memos", 0, 6, "producer 4 claims 6 batches, at most 5 are kept"),
        ("checkpoint", "producer_id", 1, 4, "producer 4 follows producer 4: ids must rise"),
        ("checkpoint", "producer_id", 1, 3, "producer 3 follows producer 4: ids must rise"),
        ("checkpoint", "position", 0, 0, "position 0 and next offset 1009 do not fit base offset 1000"),
        ("checkpoint", "next_offset", 0, 999, "next offset 999 do not fit base offset 1000"),
        ("checkpoint", "position", 0, 300, "outside offsets 1000 to 1009 and 300 bytes"),
        ("checkpoint", "next_offset", 0, 1_004, "outside offsets 1000 to 1004"),
        ("checkpoint", "max_timestamp_ms", 0, 5, "a point names time .*, the log ends at 5"),
        ("manifest", "total_bytes", 0, 1, "the manifest claims 1"),
        ("manifest", "from_offset", 1, 1_004, "part 1 begins at offset 1004, expected 1003"),
        ("manifest", "to_offset", 1, 1_010, "the parts end at offset 1010, the seal at 1009"),
        ("manifest", "parts", 0, 2**58, "part count claims"),
        ("journal_header", "number", 0, -1, "journal number is -1, below 0"),
    ],
)
def test_fields_that_do_not_fit_together_are_refused(rule: str, field: str, nth: int, value: int, words: str) -> None:
    name, data = RULES[rule]
    with pytest.raises(Corrupt, match=words) as refused:
        READERS[name](lie(rule, data, field, nth, value), "some/file")
    assert refused.value.source == "some/file"
    assert 0 <= refused.value.position <= len(data)


@pytest.mark.parametrize(
    ("field", "nth", "value", "words"),
    [
        ("position", 1, 129, "part 1 is put at 129 with .* bytes, expected at"),
        ("size_bytes", 1, 10, "part 1 is put at .* with 10 bytes"),
        ("size_bytes", 1, 5_000, "parts end at .*, the directory begins at"),
        ("to_offset", 0, 1_000, "part 0 claims offsets 1000 to 1000"),
        ("from_offset", 0, 999, "part 0 claims offsets 999 to 1003"),
        ("shard", 0, 9, "part is not the one the directory names"),
        ("to_offset", 1, 1_005, "part is not the one the directory names"),
    ],
)
def test_a_bundle_directory_that_does_not_fit_its_parts_is_refused(
    field: str, nth: int, value: int, words: str
) -> None:
    start = PAGE.read("bundle_trailer", BUNDLE[-BUNDLE_TRAILER_BYTES:]).count("directory_position")
    directory = lie("bundle_directory", BUNDLE[start:-BUNDLE_TRAILER_BYTES], field, nth, value)
    with pytest.raises(Corrupt, match=words):
        READERS["bundle"](BUNDLE[:start] + directory + BUNDLE[-BUNDLE_TRAILER_BYTES:], "b")


@pytest.mark.parametrize(
    ("field", "nth", "value", "words"),
    [
        ("offset", 0, 1_004, "part index is not that of the part's batches"),
        ("position", 0, 61, "part index is not that of the part's batches"),
        ("max_timestamp_ms", 0, 7, "part index is not that of the part's batches"),
        ("offset", 1, 1_008, "outside offsets 1000 to 1008"),
    ],
)
def test_a_part_index_that_does_not_fit_the_batches_is_refused(field: str, nth: int, value: int, words: str) -> None:
    at = decode_part_header(PART_WITH_POINTS, source="p").index_position
    index = lie("part_index", PART_WITH_POINTS[at:], field, nth, value)
    with pytest.raises(Corrupt, match=words) as refused:
        check_part(PART_WITH_POINTS[:at] + index, source="p", position=10_000)
    assert refused.value.position >= 10_000 + at


def test_a_part_header_of_offsets_below_its_segment_is_refused() -> None:
    header = lie("part_header", PART_WITH_POINTS[:PART_HEADER_BYTES], "from_offset", 0, 999)
    with pytest.raises(Corrupt, match="part claims offsets 999 to 1008 of a segment that begins at 1000"):
        check_part(header + PART_WITH_POINTS[PART_HEADER_BYTES:], source="p")


def test_what_does_not_fit_together_is_not_written_either() -> None:
    with pytest.raises(InvalidRequest, match="the seal is of epoch 8"):
        encode_index_block(IDENTITY, replace(SEAL, epoch=8), POINTS)
    with pytest.raises(InvalidRequest, match="outside offsets 1000 to 1004"):
        encode_index_block(IDENTITY, replace(SEAL, end_offset=1_004), POINTS)
    with pytest.raises(InvalidRequest, match="a table of producers with digest"):
        encode_index_block(IDENTITY, SEAL, POINTS, TABLE[:-1])
    with pytest.raises(InvalidRequest, match="position 0 and next offset 1009"):
        encode_checkpoint(replace(CHECKPOINT_VALUE, position=0))
    with pytest.raises(InvalidRequest, match=r"point 1 .* does not follow"):
        IndexPoints((IndexPoint(5, 10, 0), IndexPoint(5, 11, 0)))
    producer = ProducerSnapshot(1, 0, 0, ())
    with pytest.raises(InvalidRequest, match="producer 1 is below 0 or listed twice"):
        encode_checkpoint(replace(CHECKPOINT_VALUE, producers=(producer, producer)))
    many = producer._replace(batches=(BatchMemo(0, 0, 0, 0),) * 6)
    with pytest.raises(InvalidRequest, match="has 6 batches: at most 5 are kept"):
        encode_checkpoint(replace(CHECKPOINT_VALUE, producers=(many,)))
