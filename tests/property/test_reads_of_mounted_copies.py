"""A piece that only a directory has is read at the node that serves it: whole batches, in order, none twice, as much as
fits into a read and a piece. A directory that is away differs from one that refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.machines.tiering.upload_events import Piece
from stratalog.model.errors import Corrupt, NotFound, Unavailable
from stratalog.model.metadata import Snapshot
from stratalog.model.mounts import MountMode
from stratalog.model.segment import Segment
from stratalog.settings.process import ProcessSettings
from stratalog.settings.topic import TopicSettings
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.copies.peer_reads import PeerRefused
from stratalog_node.tier.store.stats import TierStats
from stratalog_node.tier.uploads.encoder import Encoder
from stratalog_node.tier.uploads.mounted_copies import DirectoryAway, MountedCopies
from support.shard_rig import make_batch
from unit.machines.tiering.test_mounted_uploads import SEALED, mount

READ_BYTES = 3_000
"""The most of one read, but for what a batch needs."""


class Directory:
    """Batches of one record each, as `PeerReads` gives them."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.batches = [place(make_batch([b"v" * size]), offset) for offset, size in enumerate(sizes)]
        self.reads = 0
        self.fails: Exception | None = None
        self.fails_from = 0

    def holders(self, segment: Segment) -> tuple[Sequence[int], Sequence[int]]:
        return (), segment.local_nodes

    async def read(self, segment: Segment, nodes: Sequence[int], offset: int, max_bytes: int) -> bytes | memoryview:
        self.reads += 1
        assert tuple(nodes) == (1,) and segment.key == SEALED.key
        if self.fails is not None and offset >= self.fails_from:
            raise self.fails
        most = max(1, min(max_bytes, READ_BYTES))
        ends = list(accumulate(map(len, self.batches[offset:])))
        count = max(1, sum(end <= most for end in ends))
        return b"".join(self.batches[offset : offset + count])

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"{name} is not asked for here")


def place(batch: bytes, offset: int) -> bytes:
    return offset.to_bytes(8, "big") + batch[8:]


def copies(directory: Directory, **changes: object) -> tuple[MountedCopies, Segment]:
    catalog = Catalog(lambda overrides: TopicSettings.resolve(ProcessSettings(), overrides))
    catalog.load(Snapshot(1, (), (), (), (mount(1, 3, **changes),)))
    assert SEALED.seal is not None
    size = sum(map(len, directory.batches))
    seal = replace(SEALED.seal, end_offset=len(directory.batches), size_bytes=size)
    segment = replace(SEALED, seal=seal, end_offset=seal.end_offset, local_nodes=(1,))
    return MountedCopies(3, catalog, directory, Encoder(), TierStats()), segment  # type: ignore[arg-type]


sizes = st.lists(st.one_of(st.integers(0, 400), st.integers(2_000, 9_000)), min_size=1, max_size=30)


@given(sizes, st.integers(1, 8_000))
@settings(max_examples=100, deadline=None)
def test_pieces_of_any_size_are_the_whole_log_and_none_is_larger_than_it_may_be(
    lengths: list[int], piece_bytes: int
) -> None:
    directory = Directory(lengths)
    mounted, segment = copies(directory)

    async def read_all() -> bytes:
        found, offset, needed = b"", 0, 0
        while offset < len(lengths):
            got = await mounted.read(segment, Piece(segment.key, offset, max(piece_bytes, needed)))
            if got.needed_bytes:
                assert not got.data and needed < got.needed_bytes == len(directory.batches[offset])
                needed = got.needed_bytes
                continue
            assert got.base_offset == offset < got.end_offset and len(got.data) <= max(piece_bytes, needed)
            assert [header.base_offset for header in got.headers] == list(range(offset, got.end_offset))
            found, offset, needed = found + bytes(got.data), got.end_offset, 0
        return found

    assert asyncio.run(read_all()) == b"".join(directory.batches)
    assert mounted.stats.mounted_read_bytes == sum(map(len, directory.batches))
    mounted.encoder.close()


@pytest.mark.parametrize(
    ("fails", "told"),
    [(Unavailable("silent"), DirectoryAway), (PeerRefused("CORRUPT_MESSAGE"), PeerRefused)],
)
async def test_a_directory_that_is_silent_differs_from_one_that_refuses_a_segment(
    fails: Exception, told: type[Exception]
) -> None:
    directory = Directory([2_000] * 10)
    directory.fails, directory.fails_from = fails, 3
    mounted, segment = copies(directory)
    with pytest.raises(told, match=str(fails)):
        await mounted.read(segment, Piece(segment.key, 0, 100_000))
    assert directory.reads > 1 and mounted.stats.mounted_read_bytes == 0


async def test_what_begins_elsewhere_than_asked_for_is_not_taken() -> None:
    directory = Directory([100] * 10)
    directory.batches[4] = place(directory.batches[4], 5)
    mounted, segment = copies(directory)
    with pytest.raises(Corrupt, match="a batch at offset 5, expected 4"):
        await mounted.read(segment, Piece(segment.key, 4, 1_000))


async def test_no_node_is_asked_where_no_directory_is_read() -> None:
    directory = Directory([100])
    mounted, segment = copies(directory, volume=None)
    with pytest.raises(DirectoryAway, match="directory of node 1 is not read now"):
        await mounted.read(segment, Piece(segment.key, 0, 1_000))
    mounted, segment = copies(directory, mode=MountMode.OFFLOAD)
    assert mounted.of(segment) is None and mounted.most_unsent_bytes(segment) == 0
    with pytest.raises(NotFound, match="no copy to upload from, here or mounted"):
        await mounted.read(segment, Piece(segment.key, 0, 1_000))
    alone = replace(copies(directory)[0], peers=None)
    assert alone.of(segment) is None and directory.reads == 0
