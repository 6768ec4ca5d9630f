"""What older releases wrote says nothing about times: it is read, and nothing is concluded from its times."""

from __future__ import annotations

import struct
from functools import partial

import pytest

from stratalog.formats.batches.record_batch import parse_header
from stratalog.formats.bucket import manifest as manifests
from stratalog.formats.bucket.manifest import PACKED_VERSIONS, decode_manifest, encode_manifest
from stratalog.formats.bucket.part import PART_HEADER_BYTES, PartIndex, check_part, encode_part
from stratalog.formats.envelope import PREAMBLE_BYTES, Structure, seal_envelope, seal_fixed
from stratalog.formats.segments.index_block import SEAL_LAYOUTS, decode_index_block, encode_index_block
from stratalog.formats.segments.index_points import INDEX_INTERVAL_BYTES, IndexBuilder
from stratalog.formats.segments.seal import SealLayout, write_seal
from stratalog.model.batch import BatchHeader
from stratalog.model.errors import Corrupt
from stratalog.model.segment import TimesKnown
from support.hostile_batches import with_header_times
from support.stored_samples import IDENTITY, INDEX_BLOCK, KEYED_MANIFEST, MANIFEST, POINTS, SEAL, TABLE, batch_of

NOW_MS = 1_700_000_010_000


def large_batches(claimed_ms: int) -> list[bytes]:
    """Three, each longer than the index interval."""
    return [
        with_header_times(batch_of(1_000 + 600 * number, 600, value=bytes(200)), max_ms=claimed_ms)
        for number in range(3)
    ]


def part_of(batches: list[bytes]) -> tuple[bytes, list[BatchHeader]]:
    headers = [parse_header(batch) for batch in batches]
    pieces, _ = encode_part(
        IDENTITY, headers[0].base_offset, headers[-1].end_offset, b"".join(batches), headers, bytes(16), 1
    )
    return b"".join(pieces), headers


def as_an_older_release_wrote_it(part: bytes, headers: list[BatchHeader]) -> bytes:
    """With the times of the headers, and a part header of version 1."""
    claimed = IndexBuilder(headers[0].base_offset)
    for header in headers:
        claimed.append(header.base_offset, header.size_bytes, header.base_timestamp_ms, header.max_timestamp_ms)
    body = bytearray(part[PREAMBLE_BYTES:PART_HEADER_BYTES])
    end = len(body.rstrip(b"\0"))
    assert body[end - 1] == 2, "times_known is the last field"
    body[end - 1] = 0
    struct.pack_into(">qq", body, end - 1 - 48, claimed.first_timestamp_ms, claimed.max_timestamp_ms)
    index_at = PART_HEADER_BYTES + sum(header.size_bytes for header in headers)
    points = b"".join(struct.pack(">qqq", *point) for point in claimed)
    index = seal_envelope(Structure.PART_INDEX, struct.pack(">q", len(claimed)) + points)
    return seal_fixed(Structure.PART, bytes(body), version=1) + part[PART_HEADER_BYTES:index_at] + index


def test_a_part_has_the_times_of_its_records() -> None:
    part, _ = part_of(large_batches(-1))
    index = check_part(part, source="part")
    assert index.header.times_known is TimesKnown.ALL and index.points.has_true_times
    assert index.header.max_timestamp_ms > 0
    assert index.position_for_time(index.header.max_timestamp_ms + 1) is None


@pytest.mark.parametrize("claimed_ms", [-1, NOW_MS, NOW_MS + 10**9])
def test_a_part_of_an_older_release_is_read_and_searched_from_its_start(claimed_ms: int) -> None:
    part, headers = part_of(large_batches(claimed_ms))
    index = check_part(as_an_older_release_wrote_it(part, headers), source="part")
    assert (index.header.times_known, index.header.max_timestamp_ms) == (TimesKnown.CLAIMED, claimed_ms)
    assert len(index.points) == 2 and index.points.position(0) == headers[0].size_bytes > INDEX_INTERVAL_BYTES
    assert index.position_for_time(NOW_MS) == (0, headers[0].size_bytes)


def test_a_segment_with_one_part_of_an_older_release_is_searched_from_its_start() -> None:
    new, headers = part_of(large_batches(-1))
    old = as_an_older_release_wrote_it(new, headers)
    for parts, times_known in (((new,), TimesKnown.ALL), ((new, old), TimesKnown.CLAIMED)):
        builder = IndexBuilder(headers[0].base_offset, has_true_times=True)
        for part in parts:
            index: PartIndex = check_part(part, source="part")
            index.add_to(builder)
        assert builder.times_known is times_known


def test_an_index_block_of_an_older_release_is_read_and_searched_from_its_start() -> None:
    old = encode_index_block(IDENTITY, SEAL, POINTS, TABLE, version=2)
    block = decode_index_block(old, source="index")
    assert (block.seal.times_known, block.points.has_true_times) == (TimesKnown.CLAIMED, False)
    assert block.points == POINTS
    assert block.position_for_time(2**62) == (0, POINTS[0].position)
    assert decode_index_block(INDEX_BLOCK, source="index").position_for_time(2**62) is None


@pytest.mark.parametrize(("data", "version"), [(MANIFEST, 2), (KEYED_MANIFEST, 1)])
def test_the_seal_in_a_manifest_of_an_older_release_has_claimed_times(
    monkeypatch: pytest.MonkeyPatch, data: bytes, version: int
) -> None:
    manifest = decode_manifest(data, source="manifest")
    assert manifest.seal.times_known is TimesKnown.ALL
    monkeypatch.setattr(manifests, "write_seal", partial(write_seal, layout=SealLayout.FIRST))
    monkeypatch.setattr(
        manifests, "seal_envelope", lambda structure, body, **_: seal_envelope(structure, body, version=version)
    )
    old = decode_manifest(encode_manifest(manifest), source="manifest")
    assert old.seal.times_known is TimesKnown.CLAIMED
    assert (old.parts, old.seal.digest, old.key_runs) == (manifest.parts, manifest.seal.digest, manifest.key_runs)


def test_versions_tell_layouts_apart() -> None:
    versions = {(one, one.version) for one in PACKED_VERSIONS} | set(PACKED_VERSIONS.items())
    assert len(versions) == 4
    for structure, layouts in manifests._LAYOUTS.items():
        newest = {version: layout for version, layout in layouts.items() if layout.seal is max(SealLayout)}
        assert [layout.has_packed for layout in newest.values()] == [False, True]
        assert [*newest] == [structure.version, PACKED_VERSIONS[structure]]
    assert SEAL_LAYOUTS[Structure.INDEX_BLOCK.version] is max(SealLayout)
    newer = seal_fixed(Structure.PART, bytes(PART_HEADER_BYTES - PREAMBLE_BYTES), version=3)
    with pytest.raises(Corrupt, match="a newer release wrote it"):
        check_part(newer, source="part")
