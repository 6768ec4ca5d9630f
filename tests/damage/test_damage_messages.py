"""What the error says for each kind of damage: a person must know from the message alone what is wrong and where."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import pytest

from stratalog.formats.batches.record_batch import scan_valid_prefix
from stratalog.formats.bucket.bundle import BUNDLE_TRAILER_BYTES
from stratalog.formats.bucket.part import PART_HEADER_BYTES, check_part
from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES, check_identity
from stratalog.model.errors import Corrupt
from support.damage_corpus import resealed
from support.stored_samples import (
    BATCHES,
    BUNDLE,
    CHECKPOINT,
    DIGEST,
    EPOCH,
    IDENTITY,
    INDEX_BLOCK,
    JOURNAL_HEADER,
    MANIFEST,
    PART,
    SAMPLES,
    SEGMENT_FILE,
    SEGMENT_HEADER,
    SEGMENT_SAMPLE,
    TABLE,
    batch_of,
    part_of,
)

SOURCE = "a/file.of.ours"
READERS = {sample.name: sample.read for sample in (*SAMPLES, SEGMENT_SAMPLE)}
SECOND_BATCH = SEGMENT_HEADER_BYTES + len(BATCHES[0])


def put(data: bytes, at: int, form: str, *values: int, reseal: tuple[int, int] | None = None) -> bytes:
    """Overwrite a field; with `reseal` the CRC of the structure at those bytes is made to fit."""
    damaged = bytearray(data)
    struct.pack_into(form, damaged, at, *values)
    return resealed(damaged, *reseal) if reseal else bytes(damaged)


def without(data: bytes, start: int, end: int) -> bytes:
    return data[:start] + data[end:]


@dataclass(frozen=True, slots=True)
class Case:
    """A damaged `structure`: the error must name byte `position`, and hold all of `words`."""

    damage: str
    structure: str
    data: bytes
    position: int
    words: tuple[str, ...]


def whole(data: bytes) -> tuple[int, int]:
    return 0, len(data)


DIRECTORY_AT = struct.unpack_from(">q", BUNDLE, len(BUNDLE) - BUNDLE_TRAILER_BYTES + 16)[0]
TRAILER_AT = len(BUNDLE) - BUNDLE_TRAILER_BYTES
TRAILER = (TRAILER_AT, len(BUNDLE))

BEHIND_POINTS = len(INDEX_BLOCK) - 1 - len(TABLE)
"""In the index block: the table of producers follows."""

CASES = (
    # Segment header
    Case("an empty file", "segment-header", b"", 0, ("segment is cut short", "0 of at least 512 bytes")),
    Case("cut in the header", "segment-header", SEGMENT_HEADER[:100], 100, ("cut short", "100 of at least 512")),
    Case("zeros", "segment-header", bytes(512), 0, ("no segment here", "found zeros")),
    Case(
        "another kind of file", "segment-header", INDEX_BLOCK + bytes(512), 0, ("no segment here", "found index block")
    ),
    Case(
        "a foreign file", "segment-header", b"\x89PNG\r\n\x1a\n" + bytes(504), 0, ("no segment here", "magic 89504e47")
    ),
    Case(
        "a newer version",
        "segment-header",
        put(SEGMENT_HEADER, 8, ">H", 2, reseal=whole(SEGMENT_HEADER)),
        8,
        ("version 2", "this reader knows 1", "newer release"),
    ),
    Case(
        "a changed identity",
        "segment-header",
        put(SEGMENT_HEADER, 40, ">B", 1),
        12,
        ("segment has CRC", "its bytes have"),
    ),
    Case(
        "padding in use",
        "segment-header",
        put(SEGMENT_HEADER, 511, ">B", 1, reseal=whole(SEGMENT_HEADER)),
        511,
        ("padding is not zero",),
    ),
    Case(
        "a cluster id that is too long",
        "segment-header",
        put(SEGMENT_HEADER, 16, ">H", 65, reseal=whole(SEGMENT_HEADER)),
        16,
        ("cluster id is 65 bytes long", "limit is 64"),
    ),
    # Batches in a segment file
    Case(
        "a missing batch",
        "segment-file",
        without(SEGMENT_FILE, SECOND_BATCH, SECOND_BATCH + len(BATCHES[1])),
        SECOND_BATCH,
        ("base offset 1004", "expected 1003"),
    ),
    Case(
        "a batch twice",
        "segment-file",
        SEGMENT_FILE[:SECOND_BATCH] + BATCHES[0],
        SECOND_BATCH,
        ("base offset 1000", "expected 1003"),
    ),
    Case(
        "another epoch",
        "segment-file",
        SEGMENT_HEADER + batch_of(1_000, 1, epoch=EPOCH + 1),
        SEGMENT_HEADER_BYTES + 12,
        (f"epoch {EPOCH + 1}", f"the segment has {EPOCH}"),
    ),
    Case(
        "a flipped bit in a record",
        "segment-file",
        put(SEGMENT_FILE, SECOND_BATCH + 70, ">B", 0xEE),
        SECOND_BATCH + 17,
        ("batch of", "has CRC", "its bytes have"),
    ),
    Case(
        "old magic",
        "segment-file",
        put(SEGMENT_FILE, SECOND_BATCH + 16, ">B", 1),
        SECOND_BATCH + 16,
        ("magic 1, expected 2",),
    ),
    Case(
        "cut in a batch",
        "segment-file",
        SEGMENT_FILE[:-1],
        SECOND_BATCH + len(BATCHES[1]) + 8,
        ("cut short", f"claims {len(BATCHES[2])} bytes", f"{len(BATCHES[2]) - 1} are left"),
    ),
    Case(
        "cut in a batch header",
        "segment-file",
        SEGMENT_FILE[: SECOND_BATCH + 30],
        SECOND_BATCH + 30,
        ("30 of 61 bytes",),
    ),
    Case(
        "zeros after the last batch",
        "segment-file",
        SEGMENT_FILE + bytes(4096),
        len(SEGMENT_FILE),
        ("zeros where a batch should begin",),
    ),
    Case(
        "a length below a header",
        "segment-file",
        put(SEGMENT_FILE, SECOND_BATCH + 8, ">i", 48),
        SECOND_BATCH + 8,
        ("length 48", "smallest possible 49"),
    ),
    Case(
        "a length below zero",
        "segment-file",
        put(SEGMENT_FILE, SECOND_BATCH + 8, ">i", -5),
        SECOND_BATCH + 8,
        ("length -5",),
    ),
    Case(
        "a huge length",
        "segment-file",
        put(SEGMENT_FILE, SECOND_BATCH + 8, ">i", 2**31 - 1),
        SECOND_BATCH + 8,
        ("claims 2147483659 bytes",),
    ),
    # Index block
    Case(
        "a short index",
        "index-block",
        INDEX_BLOCK[:-24],
        16,
        ("claims a body of", f"{len(INDEX_BLOCK) - 48} are there"),
    ),
    Case(
        "a body size that lies",
        "index-block",
        put(INDEX_BLOCK, 16, ">q", 2**62, reseal=whole(INDEX_BLOCK)),
        16,
        (f"claims a body of {2**62} bytes",),
    ),
    Case(
        "more points than bytes",
        "index-block",
        put(INDEX_BLOCK, BEHIND_POINTS - 56, ">q", 2**40, reseal=whole(INDEX_BLOCK)),
        BEHIND_POINTS - 56,
        (f"point count claims {2**40}", f"{len(INDEX_BLOCK) - BEHIND_POINTS + 48} bytes left cannot hold them"),
    ),
    Case(
        "fewer points than bytes",
        "index-block",
        put(INDEX_BLOCK, BEHIND_POINTS - 56, ">q", 1, reseal=whole(INDEX_BLOCK)),
        BEHIND_POINTS - 23,
        (f"{len(INDEX_BLOCK) - BEHIND_POINTS + 23} bytes are left after the last field",),
    ),
    Case(
        "points that fall",
        "index-block",
        put(INDEX_BLOCK, BEHIND_POINTS - 24, ">q", 1_003, reseal=whole(INDEX_BLOCK)),
        BEHIND_POINTS - 24,
        ("point 1", "does not follow"),
    ),
    Case(
        "a point outside the segment",
        "index-block",
        put(INDEX_BLOCK, BEHIND_POINTS - 24, ">q", 1_009, reseal=whole(INDEX_BLOCK)),
        BEHIND_POINTS - 48,
        ("outside offsets 1000 to 1009",),
    ),
    # Part
    Case("a part cut in its data", "part", PART[:700], 0, (f"part claims {len(PART)} bytes", "700 are there")),
    Case(
        "a part with another batch in it",
        "part",
        put(PART, PART_HEADER_BYTES, ">q", 999),
        PART_HEADER_BYTES,
        ("base offset 999", "expected 1000"),
    ),
    Case(
        "a part whose index is gone",
        "part",
        PART[:-32] + bytes(32),
        len(PART) - 32,
        ("no part index here", "found zeros"),
    ),
    # Bundle
    Case("a bundle cut at its end", "bundle", BUNDLE[:-1], len(BUNDLE) - 41, ("no bundle trailer here",)),
    Case(
        "a trailer that points elsewhere",
        "bundle",
        put(BUNDLE, TRAILER_AT + 16, ">q", DIRECTORY_AT - 1, reseal=TRAILER),
        TRAILER_AT + 16,
        (f"directory at {DIRECTORY_AT - 1}", f"must end at {TRAILER_AT}"),
    ),
    Case(
        "a part count that lies",
        "bundle",
        put(BUNDLE, TRAILER_AT + 32, ">q", 3, reseal=TRAILER),
        DIRECTORY_AT + 24,
        ("directory has 2 parts", "trailer says 3"),
    ),
    Case("a damaged part in a bundle", "bundle", put(BUNDLE, 128 + 20, ">B", 0), 128 + 12, ("part has CRC",)),
    # The others
    Case("a cut manifest", "manifest", MANIFEST[:-10], 16, ("manifest claims a body of",)),
    Case("a cut checkpoint", "checkpoint", CHECKPOINT[:20], 20, ("checkpoint is cut short",)),
    Case(
        "an older version",
        "checkpoint",
        put(CHECKPOINT, 8, ">H", 1, reseal=whole(CHECKPOINT)),
        8,
        ("version 1", "this reader knows 2", "an older release"),
    ),
    Case("a zeroed checkpoint", "checkpoint", bytes(len(CHECKPOINT)), 0, ("no checkpoint here", "found zeros")),
    Case("a journal of zeros", "journal-header", bytes(len(JOURNAL_HEADER)), 0, ("no journal here", "found zeros")),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.structure}: {case.damage}")
def test_the_error_names_file_byte_and_reason(case: Case) -> None:
    with pytest.raises(Corrupt) as refused:
        READERS[case.structure](case.data, SOURCE)
    assert refused.value.source == SOURCE
    assert all(words in refused.value.reason for words in case.words), refused.value.reason
    assert refused.value.position == case.position, str(refused.value)
    assert str(refused.value).startswith(f"{SOURCE}: at byte {case.position}: ")


@pytest.mark.parametrize(
    ("field", "value"),
    [("cluster_id", "other"), ("topic", "orders.us"), ("shard", 4), ("epoch", 8), ("base_offset", 0)],
)
def test_a_whole_file_of_another_segment_is_refused_by_the_field_that_differs(field: str, value: object) -> None:
    with pytest.raises(Corrupt, match=f"wrong identity: {field.replace('_', ' ')} is .*expected .*another segment"):
        check_identity(replace(IDENTITY, **{field: value}), IDENTITY, source=SOURCE)


def test_a_segments_own_identity_is_taken() -> None:
    check_identity(replace(IDENTITY, created_ms=1), IDENTITY, source=SOURCE)


FIELDS_AT = 16 + 2 + len(IDENTITY.cluster_id.encode()) + 16 + 2 + len(IDENTITY.topic) + 24
"""Where a part header's own fields begin: after preamble and identity."""


@pytest.mark.parametrize(
    ("field", "what"),
    [
        (1, "part claims end offset 1010, its batches give 1009"),
        (4, "part claims batch count 4, its batches give 3"),
        (6, "part claims first timestamp"),
        (7, "part claims max timestamp"),
    ],
)
def test_a_part_header_that_says_other_than_its_batches_is_refused(field: int, what: str) -> None:
    at = FIELDS_AT + 8 * field
    value = struct.unpack_from(">q", PART, at)[0]
    with pytest.raises(Corrupt, match=what):
        check_part(put(PART, at, ">q", value + 1, reseal=(0, PART_HEADER_BYTES)), source=SOURCE)


def test_a_part_of_another_history_is_refused() -> None:
    later = part_of(BATCHES[1:], digest_before=DIGEST)
    check_part(later, source=SOURCE, expected_digest_before=DIGEST)
    with pytest.raises(Corrupt, match=f"continues from digest {DIGEST.hex()}, expected {'0' * 32}"):
        check_part(later, source=SOURCE, expected_digest_before=bytes(16))


TAIL = b"".join(BATCHES)
TAIL_END = len(BATCHES[0]) + len(BATCHES[1])


@pytest.mark.parametrize(
    ("tail", "end", "words"),
    [
        (TAIL[:-1], TAIL_END, "cut short"),
        (TAIL[: TAIL_END + 60], TAIL_END, "60 of 61 bytes"),
        (TAIL + bytes(4096), len(TAIL), "zeros where a batch should begin"),
        (TAIL[:TAIL_END] + bytes(100), TAIL_END, "zeros where a batch should begin"),
        (put(TAIL, TAIL_END + 80, ">B", 0), TAIL_END, "has CRC"),
        (TAIL[:TAIL_END] + BATCHES[0], TAIL_END, "base offset 1000, expected 1004"),
        (TAIL[:TAIL_END] + batch_of(1_004, 2, epoch=6), TAIL_END, "epoch 6, the segment has 7"),
        (b"\xff" * 200, 0, "magic 255"),
    ],
)  # fmt: skip
def test_a_torn_tail_ends_at_the_last_whole_valid_batch_and_says_why(tail: bytes, end: int, words: str) -> None:
    found = scan_valid_prefix(tail, 1_000, EPOCH, position=SEGMENT_HEADER_BYTES)
    assert found.end_position == end
    assert found.reason is not None
    assert words in found.reason
    assert found.reason.startswith("at byte ")
    assert int(found.reason.split()[2].rstrip(":")) >= SEGMENT_HEADER_BYTES + end
