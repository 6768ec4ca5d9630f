"""Look-ups by time in segments that an older release sealed: each reads what earlier ones have not answered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.model.ids import SegmentKey
from stratalog.objects import ObjectStore, open_store
from stratalog_node.tier.cold import cold_times
from stratalog_node.tier.cold.cold_limits import ColdReadLimits
from stratalog_node.tier.cold.cold_reader import ColdReader
from stratalog_node.tier.cold.cold_times import TimesFound
from support.cold_data import FIRST_TIME_MS, ColdShard, batches_from
from support.hostile_batches import with_header_times

KEY = SegmentKey(UUID(int=1), 0, 0, 0)
SMALL = ColdReadLimits(
    cache_bytes=256 << 10, window_min_bytes=64 << 10, window_max_bytes=64 << 10, block_bytes=64 << 10, bytes_per_s=None
)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[ObjectStore]:
    opened = open_store(str(tmp_path / "store"))
    yield opened
    await opened.close()


@pytest.mark.fault("clients-look-last-record")
async def test_an_old_segment_is_read_whole_once(store: ObjectStore) -> None:
    """It is larger than what the reader keeps, so each lookup for a time after its records fetched all of it again."""
    shard = ColdShard(store, has_claimed_times=True, index_version=2)
    segment = await shard.add(
        [[with_header_times(batch, max_ms=-1) for batch in batches_from(0, 200, value_bytes=5_000)]]
    )
    reader = ColdReader(store, shard.names, SMALL, None)  # type: ignore[arg-type]
    try:
        assert await reader.find_by_time(segment, FIRST_TIME_MS + 10_000) is None
        fetched = reader.stats.fetched_bytes
        assert fetched > 2_000_000
        assert await reader.find_by_time(segment, FIRST_TIME_MS + 10_000) is None
        assert await reader.find_by_time(segment, FIRST_TIME_MS + 20_000) is None
        assert reader.stats.fetched_bytes == fetched
        assert await reader.find_by_time(segment, FIRST_TIME_MS + 300) == (300, FIRST_TIME_MS + 300)
        assert await reader.offset_of_max_timestamp(segment) == (599, FIRST_TIME_MS + 599)
        fetched = reader.stats.fetched_bytes
        assert await reader.offset_of_max_timestamp(segment) == (599, FIRST_TIME_MS + 599)
        assert await reader.find_by_time(segment, FIRST_TIME_MS + 600) is None
        assert reader.stats.fetched_bytes == fetched
    finally:
        await reader.close()


@given(
    times=st.lists(st.integers(0, 20), min_size=1, max_size=30),
    asked=st.lists(st.integers(-1, 22), max_size=60),
)
def test_what_is_known_is_true_and_no_answer_is_found_twice(times: list[int], asked: list[int]) -> None:
    found = TimesFound()
    for time_ms in asked:
        first = next((offset for offset, at in enumerate(times) if at >= time_ms), len(times))
        assert found.none_before(KEY, time_ms) <= first
        found.note(KEY, time_ms, first)
        assert found.none_before(KEY, time_ms) == first
        facts = found._segments[KEY]
        assert facts.times_ms == sorted(set(facts.times_ms)) and facts.offsets == sorted(set(facts.offsets))


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_times, "_MOST_SEGMENTS", 3)
    monkeypatch.setattr(cold_times, "_MOST_TIMES", 4)
    found = TimesFound()
    for epoch in range(5):
        for time_ms in range(10):
            found.note(SegmentKey(UUID(int=1), 0, epoch, 0), time_ms, time_ms + 1)
    assert len(found._segments) == 3
    assert {len(facts.times_ms) for facts in found._segments.values()} == {4}
