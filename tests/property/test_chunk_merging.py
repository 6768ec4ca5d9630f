"""Merging neighbouring parts: all stays, in order, within the target; and what was merged is never merged again."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from stratalog.formats.batches.record_batch import parse_header
from stratalog.formats.bucket.part import LEAST_OVERHEAD_BYTES, check_part, encode_part
from stratalog.formats.segments.digest import EMPTY_DIGEST
from stratalog.machines.tiering.chunk_merging import merge_groups
from stratalog.model.segment import RemotePart, SegmentIdentity
from support.cold_data import batch_at

TARGET = 64 << 10
IDENTITY = SegmentIdentity("c", UUID(int=1), "t", 0, 0, 0, 1)
SIZES = st.integers(20, 90_000)


def parts_of(groups: list[list[bytes]]) -> tuple[list[RemotePart], list[bytes]]:
    """Parts as they are stored, of batches that follow one another."""
    parts, bodies, digest = [], [], EMPTY_DIGEST
    for number, batches in enumerate(groups):
        headers = [parse_header(batch) for batch in batches]
        base, end = headers[0].base_offset, headers[-1].end_offset
        pieces, digest = encode_part(IDENTITY, base, end, b"".join(batches), headers, digest, number)
        bodies.append(b"".join(pieces))
        parts.append(RemotePart(f"{number}", 0, len(bodies[-1]), base, end))
    return parts, bodies


@given(st.lists(st.lists(SIZES, min_size=1, max_size=4), min_size=1, max_size=12))
def test_merged_parts_hold_the_same_batches_and_do_not_merge_again(sizes: list[list[int]]) -> None:
    offset = 0
    given_batches: list[list[bytes]] = []
    for part in sizes:
        given_batches.append([])
        for size in part:
            given_batches[-1].append(batch_at(offset, 1, value_bytes=size))
            offset += 1
    parts, bodies = parts_of(given_batches)
    groups = merge_groups(parts, TARGET, LEAST_OVERHEAD_BYTES)
    assert [part for group in groups for part in group] == parts
    at, merged_batches = 0, []
    for group in groups:
        merged_batches.append([batch for batches in given_batches[at : at + len(group)] for batch in batches])
        at += len(group)
        if len(group) > 1:
            assert sum(map(len, merged_batches[-1])) <= TARGET
    merged, merged_bodies = parts_of(merged_batches)
    last = check_part(merged_bodies[-1], source="merged").header.digest_after
    assert last == check_part(bodies[-1], source="before").header.digest_after, "the segment's digest stays"
    again = merge_groups(merged, TARGET, LEAST_OVERHEAD_BYTES)
    assert all(len(group) == 1 for group in again), "merging what was merged changes nothing"


def test_the_least_overhead_is_that_of_a_part_with_one_small_batch() -> None:
    batch = batch_at(0, 1)
    (part,), _ = parts_of([[batch]])
    assert part.size_bytes == len(batch) + LEAST_OVERHEAD_BYTES
