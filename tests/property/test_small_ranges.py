"""Small ranges with intervals of their own: none waits longer than its interval, and sweeps follow the shortest one."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.machines.tiering.small_ranges import SmallRanges
from stratalog.machines.tiering.upload_events import UploadLimits
from stratalog.machines.tiering.upload_state import SegmentUpload
from stratalog.model.ids import SegmentKey

INTERVALS_MS = st.lists(st.integers(1, 5_000), min_size=1, max_size=40)


def _upload(number: int, interval_ms: int) -> SegmentUpload:
    upload = SegmentUpload(SegmentKey(UUID(int=1), number, 0, 0), UploadLimits())
    upload.interval_ms = interval_ms
    return upload


def _come(ranges: SmallRanges, upload: SegmentUpload, now_ms: int) -> None:
    upload.unsent_bytes, upload.waiting_since_ms = 10, now_ms
    upload.queue = ranges.queue
    ranges.queue[upload.key] = None
    ranges.came(upload)


@given(intervals_ms=INTERVALS_MS)
@settings(deadline=None)
def test_each_range_goes_at_its_interval_at_the_latest_and_sweeps_follow_the_shortest(intervals_ms: list[int]) -> None:
    """Shards that are written all the time, over ten times the longest interval."""
    ranges = SmallRanges()
    uploads = {upload.key: upload for upload in (_upload(n, ms) for n, ms in enumerate(intervals_ms))}
    for upload in uploads.values():
        _come(ranges, upload, 0)
    sweeps, now_ms, until_ms = 0, 0, min(10 * max(intervals_ms), 400 * min(intervals_ms))
    while (due_ms := ranges.next_due_ms()) is not None and due_ms <= until_ms:
        now_ms = due_ms
        taken = ranges.take_due(uploads, now_ms)
        assert taken, "it woke for nothing"
        sweeps += 1
        longest_ms = max(uploads[key].interval_ms for key in taken)
        assert all(u.interval_ms >= longest_ms for u in uploads.values() if u.key in ranges.queue)
        for key in taken:
            since_ms = uploads[key].waiting_since_ms
            assert since_ms is not None and now_ms - since_ms <= uploads[key].interval_ms
            _come(ranges, uploads[key], now_ms)
        assert ranges.size_bytes == 10 * len(ranges.queue) == 10 * len(uploads)
    # Each class of intervals sweeps at most once in the shortest interval that it can have.
    classes = {ms.bit_length() for ms in intervals_ms}
    assert sweeps <= sum(until_ms // (1 << (bits - 1)) for bits in classes)


@given(
    steps=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 300), st.booleans()), max_size=200),
    intervals_ms=st.lists(st.integers(1, 3_600_000), min_size=10, max_size=10),
)
@settings(deadline=None)
def test_what_leaves_before_it_is_due_leaves_no_wake_and_little_memory(
    steps: list[tuple[int, int, bool]], intervals_ms: list[int]
) -> None:
    ranges = SmallRanges()
    uploads = {upload.key: upload for upload in (_upload(n, ms) for n, ms in enumerate(intervals_ms))}
    by_number = list(uploads.values())
    now_ms = 0
    for number, pause_ms, leaves in steps:
        now_ms += pause_ms
        upload = by_number[number]
        if upload.key not in ranges.queue:
            _come(ranges, upload, now_ms)
        elif leaves:
            ranges.left(upload)
            del ranges.queue[upload.key]
        waiting = [uploads[key] for key in ranges.queue]
        due_ms = min(
            (u.waiting_since_ms + u.interval_ms for u in waiting if u.waiting_since_ms is not None), default=None
        )
        assert ranges.next_due_ms() == due_ms
        assert ranges.size_bytes == sum(one.waiting_bytes for one in waiting)
        assert len(ranges._deadlines) <= 2 * len(waiting) + 66
