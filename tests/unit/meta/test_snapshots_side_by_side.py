"""Ten nodes that start at the same time ask for the same snapshot: what they have in common is encoded once."""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest
from uuid import UUID

import pytest

from stratalog.meta_api.streams import EncodedShards, SnapshotReader, snapshot_slices
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Snapshot
from stratalog.model.segment import Segment, SegmentState
from stratalog.model.topic import Shard

TOPIC = UUID(int=7)


def shard(number: int, segments: int = 300) -> Shard:
    """Too large for one line."""
    keys = [SegmentKey(TOPIC, number, epoch, epoch * 10) for epoch in range(segments)]
    listed = tuple(Segment(key, SegmentState.SEALING, 1, (1,), (1,), 0, 0, key.base_offset + 10) for key in keys)
    return Shard(ShardKey(TOPIC, number), 0, listed)


def read(pieces: list[bytes]) -> Snapshot:
    reader = SnapshotReader()
    for line in b"".join(pieces).splitlines():
        reader.add(line)
    return reader.finish()


@pytest.mark.fault("ten-nodes-start-large")
def test_readers_side_by_side_share_each_line_and_so_do_neighbouring_versions() -> None:
    encoded = EncodedShards()
    first = Snapshot(1, (), tuple(shard(number) for number in range(20)), ())
    moved = replace(first.shards[3], log_start_offset=5)
    second = Snapshot(2, (), (*first.shards[:3], moved, *first.shards[4:]), ())
    asked = [first, first, second, first]
    told = list(zip_longest(*(snapshot_slices(snapshot, encoded) for snapshot in asked), fillvalue=b""))
    assert [read([pieces[at] for pieces in told]) for at in range(4)] == asked
    assert encoded.lines_encoded == 2 * 20 + 2


@pytest.mark.fault("ten-nodes-start-large")
def test_what_is_kept_for_them_is_bounded_and_a_late_reader_gets_the_same() -> None:
    encoded = EncodedShards(max_bytes=200_000)
    snapshot = Snapshot(1, (), tuple(shard(number) for number in range(20)), ())
    for _ in range(2):
        for piece in snapshot_slices(snapshot, encoded):
            assert encoded.size_bytes <= 200_000 and len(piece) < 200_000
    assert encoded.lines_encoded == 2 * 2 * 20, "nothing of it was left from the reader before"
    assert read(list(snapshot_slices(snapshot, encoded))) == snapshot
