"""Whatever can be written is read back as it was, and damage to it is refused."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.formats.batches.record_batch import check_batch, parse_header, stored_prefix, walk
from stratalog.formats.batches.records import Record, decode_records, encode_batch
from stratalog.formats.bucket.bundle import BundleHeader, BundleMember, check_bundle, encode_bundle
from stratalog.formats.bucket.manifest import Manifest, decode_manifest, encode_manifest, manifest_digest
from stratalog.formats.bucket.object_names import (
    BundleName,
    ClaimName,
    ObjectNames,
    SegmentObject,
    SegmentObjectName,
    index_file_name,
    parse_index_file_name,
    parse_segment_file_name,
    segment_file_name,
)
from stratalog.formats.bucket.part import PART_HEADER_BYTES, check_part, encode_part
from stratalog.formats.disk.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from stratalog.formats.disk.journal import (
    JournalHeader,
    decode_journal_header,
    encode_entry_header,
    encode_journal_header,
    scan_journal,
)
from stratalog.formats.disk.segment_file import decode_segment_header, encode_segment_header, walk_segment
from stratalog.formats.segments.digest import (
    EMPTY_DIGEST,
    extend_digest,
    extend_digest_over,
    extend_digest_past,
    extend_digest_stored,
)
from stratalog.formats.segments.index_block import decode_index_block, encode_index_block
from stratalog.model.errors import Corrupt
from stratalog.model.segment import RemotePart
from support.format_strategies import (
    batch_runs,
    cluster_ids,
    digests,
    identities,
    key_runs,
    keys,
    naturals,
    naturals32,
    object_keys,
    offsets,
    points_within,
    producers,
    records,
    seals,
    tallies,
    times,
    topic_names,
    uuids,
)


def assert_one_flipped_bit_is_refused(data: bytes, draw: st.DataObject, read: Callable[[bytes], object]) -> None:
    at = draw.draw(st.integers(0, len(data) - 1), label="byte")
    damaged = bytearray(data)
    damaged[at] ^= 1 << draw.draw(st.integers(0, 7), label="bit")
    with pytest.raises(Corrupt) as refused:
        read(bytes(damaged))
    assert refused.value.source == "it"
    cut = draw.draw(st.integers(0, len(data) - 1), label="cut")
    with pytest.raises(Corrupt):
        read(data[:cut])


@given(identities, st.data())
def test_segment_headers(identity, draw):
    data = encode_segment_header(identity)
    assert decode_segment_header(data + b"batches follow", source="it") == identity
    assert_one_flipped_bit_is_refused(data, draw, lambda damaged: decode_segment_header(damaged, source="it"))


@given(identities, st.data())
def test_index_blocks(identity, draw):
    tally, table = draw.draw(tallies())
    seal = draw.draw(seals(identity, tally))
    points = draw.draw(points_within(seal.base_offset, seal.end_offset, seal.size_bytes, seal.max_timestamp_ms))
    table = draw.draw(st.sampled_from([table, b""]))
    data = encode_index_block(identity, seal, points, table)
    block = decode_index_block(data, source="it")
    assert (block.identity, block.seal, block.points, block.table) == (identity, seal, points, table)
    assert_one_flipped_bit_is_refused(data, draw, lambda damaged: decode_index_block(damaged, source="it"))


@given(keys, st.integers(0, 2**40), st.data())
def test_checkpoints(key, count, draw):
    position = draw.draw(st.integers(1, 2**40)) if count else 0
    max_timestamp_ms = draw.draw(times)
    checkpoint = Checkpoint(
        key=key,
        position=position,
        next_offset=key.base_offset + count,
        first_timestamp_ms=draw.draw(times),
        max_timestamp_ms=max_timestamp_ms,
        points=draw.draw(points_within(key.base_offset, key.base_offset + count, position, max_timestamp_ms)),
        producers=draw.draw(producers),
    )
    data = encode_checkpoint(checkpoint)
    assert decode_checkpoint(data, source="it") == checkpoint
    assert_one_flipped_bit_is_refused(data, draw, lambda damaged: decode_checkpoint(damaged, source="it"))


@given(identities, st.data())
def test_manifests_have_one_encoding(identity, draw):
    seal = draw.draw(seals(identity))
    inner = draw.draw(st.sets(st.integers(seal.base_offset, seal.end_offset), max_size=4))
    cuts = sorted({seal.base_offset, *inner, seal.end_offset})
    parts = tuple(
        RemotePart(draw.draw(object_keys), draw.draw(st.integers(0, 2**40)), seal.size_bytes + PART_HEADER_BYTES, *ends)
        for ends in pairwise(cuts)
    )
    runs = draw.draw(st.just(()) | key_runs(cuts))
    manifest = Manifest(identity, seal, parts, draw.draw(object_keys), draw.draw(naturals), draw.draw(digests), runs)
    data = encode_manifest(manifest)
    assert decode_manifest(data, source="it") == manifest
    assert manifest_digest(encode_manifest(decode_manifest(data, source="it"))) == manifest_digest(data)
    assert_one_flipped_bit_is_refused(data, draw, lambda damaged: decode_manifest(damaged, source="it"))


@given(cluster_ids, naturals, naturals, times, st.lists(st.tuples(keys, naturals, st.binary(max_size=80)), max_size=4))
def test_journals(cluster_id, node_id, number, created_ms, written):
    header = JournalHeader(cluster_id, node_id, number, created_ms)
    data = encode_journal_header(header)
    assert decode_journal_header(data, source="it") == header
    body = b"".join(
        encode_entry_header(number, key, at, [payload[:7], memoryview(payload)[7:]]) + payload
        for key, at, payload in written
    )
    found = scan_journal(body, number, source="it")
    assert [(e.segment, e.position, bytes(e.payload)) for e in found.entries] == written
    assert (found.end_position, found.reason, found.wanted_bytes) == (len(body), None, 0)


@given(identities, digests, naturals, st.data())
def test_parts_and_segment_files(identity, digest_before, attempt, draw):
    batches = draw.draw(batch_runs(base_offset=identity.base_offset, epoch=identity.epoch))
    headers = [parse_header(batch) for batch in batches]
    data = b"".join(batches)
    end = headers[-1].end_offset
    pieces, digest_after = encode_part(identity, identity.base_offset, end, data, headers, digest_before, attempt)
    assert pieces[1] is data
    whole = b"".join(pieces)
    header = check_part(whole, source="it", expected_digest_before=digest_before).header
    assert (header.identity, header.base_offset, header.end_offset) == (identity, identity.base_offset, end)
    assert (header.attempt, header.digest_before, header.digest_after) == (attempt, digest_before, digest_after)
    assert (header.size_bytes, header.batch_count) == (len(whole), len(batches))
    assert header.max_timestamp_ms == max(-1, *(h.max_timestamp_ms for h in headers))
    assert_one_flipped_bit_is_refused(whole, draw, lambda damaged: check_part(damaged, source="it"))

    found = list(walk_segment(encode_segment_header(identity) + data, source="it"))
    assert [h for _, h in found] == headers


@given(identities, st.data())
def test_bundles(identity, draw):
    header = BundleHeader(identity.cluster_id, *(draw.draw(naturals) for _ in range(4)))
    members, expected = [], []
    for _ in range(draw.draw(st.integers(0, 3))):
        batches = draw.draw(batch_runs(base_offset=identity.base_offset, epoch=identity.epoch, max_batches=2))
        headers = [parse_header(batch) for batch in batches]
        end = headers[-1].end_offset
        pieces, _ = encode_part(identity, identity.base_offset, end, b"".join(batches), headers, EMPTY_DIGEST, 1)
        members.append(BundleMember(identity, identity.base_offset, end, pieces))
        expected.append(b"".join(pieces))
    pieces, entries = encode_bundle(header, members)
    whole = b"".join(pieces)
    assert check_bundle(whole, source="it") == (header, entries)
    assert [whole[e.position : e.position + e.size_bytes] for e in entries] == expected
    assert_one_flipped_bit_is_refused(whole, draw, lambda damaged: check_bundle(damaged, source="it"))


@given(st.lists(records, min_size=1, max_size=6), st.integers(0, 4), offsets, st.data())
def test_batches(inside, codec, base_offset, draw):
    batch = encode_batch(inside, base_offset=base_offset, epoch=draw.draw(naturals32), compression=codec)
    expected = [Record(base_offset + i, *record[1:]) for i, record in enumerate(inside)]
    header = check_batch(memoryview(batch), source="it")
    assert decode_records(batch) == expected
    assert header.end_offset == base_offset + len(inside)

    moved_to, epoch = draw.draw(offsets), draw.draw(naturals32)
    stored = stored_prefix(moved_to, len(batch), epoch) + batch[16:]
    moved = check_batch(stored, source="it")
    assert moved == header._replace(base_offset=moved_to, epoch=epoch)
    assert_one_flipped_bit_is_refused(
        stored,
        draw,
        lambda damaged: (
            list(walk(damaged, source="it", expected_base_offset=moved_to, epoch=epoch))
            or check_batch(b"", source="it")
        ),
    )


@given(st.data())
def test_the_digest_is_the_same_however_the_batches_are_grouped(draw):
    batches = draw.draw(batch_runs(base_offset=5, epoch=1, max_batches=8))
    cut = draw.draw(st.integers(0, len(batches)))
    at_once = extend_digest_over(EMPTY_DIGEST, b"".join(batches))
    in_two = extend_digest_over(extend_digest_over(EMPTY_DIGEST, b"".join(batches[:cut])), b"".join(batches[cut:]))
    by_headers = extend_digest(EMPTY_DIGEST, [memoryview(batch)[:61] for batch in batches])
    whole, in_looks, at = b"".join(batches), EMPTY_DIGEST, 0
    while at < len(whole):
        in_looks, behind = extend_digest_past(in_looks, whole[at : at + draw.draw(st.integers(61, 500))])
        at += behind
    assert (in_looks, at) == (at_once, len(whole))
    one_by_one = EMPTY_DIGEST
    for batch in batches:
        one_by_one = extend_digest_stored(one_by_one, batch[:16], b"\xff" * 16 + batch[16:])
    assert at_once == in_two == by_headers == one_by_one
    if len(batches) > 1:
        assert extend_digest(EMPTY_DIGEST, reversed(batches)) != at_once


prefixes = st.sampled_from(["", "a", "deep/er/prefix", "/slashes/"])


@given(prefixes, keys, topic_names, st.data())
def test_object_names(prefix, key, cluster_id, draw):
    names = ObjectNames(prefix, cluster_id)
    first = draw.draw(st.integers(key.base_offset, 2**63 - 1))
    number = st.integers(0, 10**18)
    name = SegmentObjectName(
        draw.draw(st.sampled_from(SegmentObject)),
        key,
        first,
        draw.draw(st.integers(first, 2**63 - 1)),
        draw.draw(number),
        draw.draw(number),
        draw.draw(number),
    )
    built = names.build(name)
    assert names.parse(built) == name
    assert built.startswith(names.segment_prefix(key))
    assert names.segment_prefix(key).startswith(names.shard_prefix(key.shard_key))
    assert names.shard_prefix(key.shard_key).startswith(names.topic_prefix(key.topic_id))
    bundle = BundleName(draw.draw(number), draw.draw(number), draw.draw(st.integers(0, 10**12 - 1)), draw.draw(number))
    assert names.parse(names.build(bundle)) == bundle
    claim = ClaimName(draw.draw(number), draw.draw(number))
    assert names.parse(names.build(claim)) == claim
    assert ObjectNames("other", cluster_id).parse(built) is None


@given(st.text(max_size=60))
def test_no_text_is_mistaken_for_a_name_that_reads_back_otherwise(text):
    names = ObjectNames("p", "c")
    key = names.root + text
    parsed = names.parse(key)
    assert parsed is None or names.build(parsed) == key
    found = parse_segment_file_name(text)
    assert found is None or segment_file_name(*found) == text


@given(offsets, naturals32, uuids)
def test_file_names(base_offset, epoch, topic_id):
    assert parse_segment_file_name(segment_file_name(base_offset, epoch)) == (base_offset, epoch)
    assert parse_index_file_name(index_file_name(base_offset, epoch)) == (base_offset, epoch)
    assert parse_segment_file_name(index_file_name(base_offset, epoch)) is None
    assert parse_segment_file_name(f"{topic_id}") is None
