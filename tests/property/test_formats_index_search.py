"""A search of the sparse index is exact, though the times in a log rise and fall."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.formats.segments import index_points
from stratalog.formats.segments.index_block import IndexBlock, IndexBuilder, IndexPoint, IndexPoints
from stratalog.model.errors import InvalidRequest
from support.stored_samples import IDENTITY, SEAL

sizes = st.one_of(st.integers(61, 3_000), st.integers(20_000, 100_000))
batches_of_a_log = st.tuples(st.integers(1, 50), sizes, st.integers(-1, 8))
# The length is drawn first: lists left to themselves are nearly always too short to get a point.
logs = st.integers(0, 40).flatmap(lambda count: st.lists(batches_of_a_log, min_size=count, max_size=count))
"""(offsets, size, max timestamp) of each batch."""
BASE = 1_000


def build(log, builder=None):
    builder = IndexBuilder(BASE, has_true_times=True) if builder is None else builder
    batches = []
    offset, position = BASE, 0
    for count, size, stamp in log:
        batches.append((offset, position, offset + count, position + size, stamp))
        builder.append(offset, size, stamp, stamp)
        offset, position = offset + count, position + size
    return builder, batches


@given(logs)
def test_points_are_an_interval_apart_and_rise(log):
    builder, batches = build(log)
    starts = {(b[0], b[1]) for b in batches}
    previous = 0
    for number in range(len(builder)):
        point = builder[number]
        assert (point.offset, point.position) in starts
        assert point.position - previous >= index_points.INDEX_INTERVAL_BYTES
        assert point.max_timestamp_ms == max([-1, *(b[4] for b in batches if b[1] < point.position)])
        previous = point.position
    if batches:
        assert batches[-1][1] - previous < index_points.INDEX_INTERVAL_BYTES


@given(logs, st.data())
def test_a_search_by_offset_gives_a_range_that_holds_the_batch(log, draw):
    builder, batches = build(log)
    if not batches:
        return
    offset = draw.draw(st.integers(BASE, batches[-1][2] - 1))
    start, end = builder.position_for_offset(offset)
    batch = next(b for b in batches if b[0] <= offset < b[2])
    assert start <= batch[1] < end
    assert start in {b[1] for b in batches}
    assert end in {b[1] for b in batches} | {builder.size_bytes}
    assert sum(1 for n in range(len(builder)) if start < builder[n].position < end) == 0


@given(logs, st.integers(-1, 9))
def test_a_search_by_time_gives_a_range_that_holds_the_first_batch_that_is_late_enough(log, asked):
    builder, batches = build(log)
    found = builder.position_for_time(asked)
    first = next((b for b in batches if b[4] >= asked), None)
    if first is None:
        assert found is None
        return
    assert found is not None
    start, end = found
    assert start <= first[1] < end
    assert all(b[4] < asked for b in batches if b[1] < start)


@given(logs, st.integers(0, 60))
def test_a_builder_that_continues_at_a_checkpoint_makes_the_same_points(log, cut):
    whole, _ = build(log)
    half, _ = build(log[:cut])
    frozen = half.freeze()
    resumed = IndexBuilder.resume(BASE, frozen, half.size_bytes, half.first_timestamp_ms, half.max_timestamp_ms)
    offset = BASE + sum(count for count, _, _ in log[:cut])
    for count, size, stamp in log[cut:]:
        resumed.append(offset, size, stamp, stamp)
        offset += count
    assert resumed.freeze() == whole.freeze()
    assert (resumed.size_bytes, resumed.max_timestamp_ms) == (whole.size_bytes, whole.max_timestamp_ms)
    assert resumed.first_timestamp_ms == whole.first_timestamp_ms
    assert half.freeze() == frozen


@given(logs, st.lists(st.integers(1, 12), min_size=1, max_size=10))
def test_the_index_of_a_segment_made_from_its_parts_is_that_of_their_stretches(log, part_lengths):
    """A stretch: the batches from one point of a part to the next."""
    from_parts, from_stretches = (IndexBuilder(BASE, has_true_times=True) for _ in range(2))
    offset = BASE
    while log:
        length = part_lengths[len(log) % len(part_lengths)]
        part, log = log[:length], log[length:]
        index = IndexBuilder(offset, has_true_times=True)
        start = offset
        for count, size, stamp in part:
            index.append(offset, size, stamp, stamp)
            offset += count
        points, first_ms, newest_ms = index.freeze(), index.first_timestamp_ms, index.max_timestamp_ms
        from_parts.append_all(start, points, index.size_bytes, first_ms, newest_ms, index.times_known)
        position = 0
        for point in points:
            from_stretches.append(start, point.position - position, first_ms, point.max_timestamp_ms)
            start, position = point.offset, point.position
        from_stretches.append(start, index.size_bytes - position, first_ms, newest_ms)
    assert list(from_parts) == list(from_stretches)
    for field in ("size_bytes", "first_timestamp_ms", "max_timestamp_ms", "next_point_at"):
        assert getattr(from_parts, field) == getattr(from_stretches, field)


@given(st.lists(st.tuples(st.integers(-1, 4), st.integers(-1, 4), st.integers(-2, 3)), max_size=6))
def test_points_are_refused_unless_each_follows_the_one_before(numbers):
    before, is_in_order = (0, 0, -1), True
    for point in numbers:
        is_in_order &= point[0] > before[0] and point[1] > before[1] and point[2] >= before[2]
        before = point
    if is_in_order:
        assert len(IndexPoints(IndexPoint(*point) for point in numbers)) == len(numbers)
    else:
        with pytest.raises(InvalidRequest, match="does not follow"):
            IndexPoints(IndexPoint(*point) for point in numbers)


@given(logs, st.integers(-1, 9), st.integers(BASE, BASE + 3_000))
def test_a_block_answers_as_the_builder_did(log, asked, offset):
    builder, batches = build(log)
    end = batches[-1][2] if batches else BASE
    seal = replace(SEAL, end_offset=end, size_bytes=builder.size_bytes, max_timestamp_ms=builder.max_timestamp_ms)
    block = IndexBlock(IDENTITY, seal, builder.freeze())
    assert block.position_for_offset(offset) == builder.position_for_offset(offset)
    assert block.position_for_time(asked) == builder.position_for_time(asked)


def test_ten_thousand_idle_builders_cost_about_a_megabyte():
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    builders = [IndexBuilder(offset) for offset in range(10_000)]
    grew = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(builders) == 10_000
    assert grew < 3 << 20


def test_points_are_plain_to_look_at():
    points = IndexPoints([IndexPoint(5, 70_000, 9), IndexPoint(8, 140_000, 9)])
    assert list(points) == [IndexPoint(5, 70_000, 9), IndexPoint(8, 140_000, 9)]
    with pytest.raises(IndexError):
        points[2]


class GrowingMeanwhile(int):
    """A number that, each time a search looks at it, lets the log grow as another thread does."""

    def __new__(cls, value, grow):
        made = super().__new__(cls, value)
        made.grow = grow
        return made

    def __lt__(self, other):
        self.grow()
        return int(self) < other


@pytest.mark.parametrize("search", ["before_offset", "before_position"])
def test_a_log_grows_while_another_thread_searches_its_index(search):
    builder, _ = build([(1, 70_000, 5)] * 8)
    count = len(builder)
    size = builder.size_bytes
    asked = GrowingMeanwhile(10 * size, lambda: builder.append(BASE + len(builder) + 2, 70_000, 5, 5))
    assert getattr(builder, search)(asked) == count - 1, "what was there when the search began"
    assert len(builder) > count
    assert [builder[number].position for number in range(len(builder))] == [
        70_000 * number for number in range(1, len(builder) + 1)
    ]
