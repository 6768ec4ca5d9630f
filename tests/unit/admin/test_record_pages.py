"""What a node tells the cluster UI: looks at records that stay small, and the course of its throughput."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

import pytest

from stratalog.admin_api.node_views import RecordStart, ShownRange
from stratalog.formats.batches.records import Record
from stratalog.model.ids import ShardKey
from stratalog_node.admin.node_views import _RecordReader
from stratalog_node.measures.history import History, Sums
from support.shard_rig import make_batch


class OneShard:
    """A shard whose log is these batches, each as (base offset, number of records, bytes of a value)."""

    key = ShardKey(UUID(int=1), 0)

    def __init__(self, *batches: tuple[int, int, int], start: int = 0) -> None:
        self.log_start_offset = start
        self._batches = [
            (
                base,
                base + count,
                make_batch([f"{base + at}:".encode().ljust(size, b"v") for at in range(count)], base_offset=base),
            )
            for base, count, size in batches
        ]
        self.high_watermark = self._batches[-1][1]
        self.read_bytes = 0

    async def read(self, offset: int, max_bytes: int) -> list[bytes]:
        found: list[bytes] = []
        for _, end, data in self._batches:
            if end > offset and (not found or sum(map(len, found)) + len(data) <= max_bytes):
                found.append(data)
        self.read_bytes += sum(map(len, found))
        return found


async def read_page(
    shard: OneShard, start: RecordStart, at: int = 0, limit: int = 10
) -> tuple[list[Record], ShownRange]:
    return await _RecordReader(cast(Any, shard), limit).run(start, at)


async def test_a_page_begins_where_requested_and_says_where_the_next_one_begins() -> None:
    shard = OneShard((100, 50, 8), start=100)
    found, shown = await read_page(shard, RecordStart.OFFSET, 110)
    assert [one.offset for one in found] == list(range(110, 120)) and shown.next_offset == 120
    found, _ = await read_page(shard, RecordStart.OLDEST)
    assert [one.offset for one in found] == list(range(100, 110))
    found, shown = await read_page(shard, RecordStart.OFFSET, 145)
    assert [one.offset for one in found] == list(range(145, 150))
    assert shown.next_offset == shown.high_watermark == 150


async def test_the_newest_are_found_over_batches_and_behind_offsets_without_records() -> None:
    many = OneShard(*((base, 3, 8) for base in range(0, 60, 3)))
    found, shown = await read_page(many, RecordStart.NEWEST)
    assert [one.offset for one in found] == list(range(50, 60)) and shown.why_not is None
    sparse = OneShard((0, 20, 8), (300, 1, 8))
    found, _ = await read_page(sparse, RecordStart.NEWEST, limit=5)
    assert [one.offset for one in found] == [16, 17, 18, 19, 300]


@pytest.mark.fault("look-newest-records-shard")
async def test_the_newest_of_large_records_are_the_last_ones_and_the_page_stays_bounded() -> None:
    shard = OneShard(*((base, 1, 900_000) for base in range(40)))
    found, shown = await read_page(shard, RecordStart.NEWEST, limit=40)
    assert found[-1].offset == 39 and shown.next_offset == 40
    assert shard.read_bytes < 20 << 20, "not all 36 MB"


@pytest.mark.fault("look-newest-records-shard")
async def test_a_batch_that_is_too_large_to_open_is_said() -> None:
    shard = OneShard((0, 1, 8))
    shard._batches = [(0, 1, make_batch([bytes(20 << 20)], base_offset=0, compression=1))]
    found, shown = await read_page(shard, RecordStart.OLDEST)
    assert found == [] and shown.why_not is not None


async def test_a_sample_that_cannot_be_taken_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratalog_node.measures.history._PERIOD_S", 0)
    asked = 0

    async def take_sample() -> Sums:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise OSError("gone")
        if asked == 5:
            raise KeyboardInterrupt
        return Sums(asked, 0, 0, 0)

    history = History(take_sample, lambda: 7)
    with pytest.raises(KeyboardInterrupt):
        await history.run()
    assert [one.sums.appended_bytes for one in history.samples] == [2, 3, 4]
