"""A stream reads each committed record once, over restarts, limits and retention."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from support.pipeline_extra import NO_PIPELINE, needs_spark

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from support.growing_bucket import GrowingBucket, Stream
from support.waiting import eventually_sync

pytestmark = needs_spark


@pytest.fixture
def bucket(tmp_path: Path) -> GrowingBucket:
    return GrowingBucket(str(tmp_path / "bucket"))


@pytest.mark.fault("sink-stream-fails-query")
def test_each_record_is_read_once_over_restarts_and_failures(spark: Any, bucket: GrowingBucket, tmp_path: Path) -> None:
    bucket.grow(2)
    stream = Stream(spark, bucket, tmp_path / "checkpoint", maxBytesPerTrigger="2000")
    with pytest.raises(Exception, match="the sink is away"):
        stream.run(fail_at=40)
    assert len(stream.batches) > 1, "the limit makes several batches"
    stream.run()
    assert stream.offsets == list(range(60))
    bucket.grow()
    stream.run()
    assert stream.offsets == list(range(90))
    before = len(stream.batches)
    stream.run()
    assert stream.offsets == list(range(90)), f"nothing came, yet {stream.batches[before:]}"


def test_a_batch_has_no_more_bytes_than_it_may_and_not_less_than_it_could(
    spark: Any, bucket: GrowingBucket, tmp_path: Path
) -> None:
    bucket.grow(4)
    sizes = bucket.part_sizes()
    assert len(sizes) == 8
    limit = 2 * max(sizes.values()) + min(sizes.values()) // 2
    stream = Stream(spark, bucket, tmp_path / "checkpoint", maxBytesPerTrigger=str(limit))
    stream.run()
    assert stream.offsets == list(range(120))
    read = [[size for (base, _), size in sorted(sizes.items()) if base in batch] for batch in stream.filled]
    assert sum(map(len, read)) == 8, "chunks were not divided"
    assert [batch for batch in read if sum(batch) > limit] == []
    assert [batch for batch, after in pairwise(read) if sum(batch) + after[0] <= limit] == []
    stream = Stream(spark, bucket, tmp_path / "other", maxBytesPerTrigger="1")
    stream.run()
    assert [len(batch) for batch in stream.filled] == [15] * 8, "a chunk at least"


def test_what_is_committed_while_the_query_runs_comes_in_its_turn(
    spark: Any, bucket: GrowingBucket, tmp_path: Path
) -> None:
    bucket.grow()
    stream = Stream(spark, bucket, tmp_path / "checkpoint")
    query = stream.start({"processingTime": "100 milliseconds"})
    try:
        for end, more in ((30, 1), (60, 2), (120, 0)):
            eventually_sync(lambda end=end: len(stream.offsets) >= end or not query.isActive, timeout=60)
            assert stream.offsets == list(range(end)), query.exception()
            if more:
                bucket.grow(more)
    finally:
        query.stop()
    assert len(stream.batches) >= 3


def test_a_batch_begins_once_enough_offsets_wait(spark: Any, bucket: GrowingBucket, tmp_path: Path) -> None:
    bucket.grow()
    stream = Stream(spark, bucket, tmp_path / "checkpoint", minOffsetsPerTrigger="60", maxTriggerDelay="1h")
    query = stream.start({"processingTime": "100 milliseconds"})
    try:
        for end, more in ((30, 1), (30, 1), (90, 0)):
            eventually_sync(lambda end=end: len(stream.offsets) >= end or not query.isActive, timeout=60)
            if more:
                bucket.grow(more)
    finally:
        query.stop()
    assert [len(batch) for batch in stream.filled] == [30, 60], query.exception()
    bucket.grow()
    stream.run()
    # The batch that `stop` interrupted may come again.
    assert {*stream.offsets} == {*range(120)}, "all that is there, with availableNow"


@pytest.mark.fault("retention-deletes-records-reader")
def test_a_gap_by_retention_fails_the_stream_or_is_reported(spark: Any, bucket_url: str, tmp_path: Path) -> None:
    bucket = GrowingBucket(bucket_url)
    bucket.grow()
    stream = Stream(spark, bucket, tmp_path / "checkpoint")
    stream.run()
    bucket.grow(2)
    bucket.expire(2)
    with pytest.raises(Exception, match="offsets 30 to 60 of shard 3 of topic cold are gone"):
        stream.run()
    stream.options["onGap"] = "report"
    stream.run()
    assert stream.offsets == [*range(30), *range(60, 90)]


@pytest.mark.fault("retention-deletes-objects-stream")
@pytest.mark.parametrize("on_gap", ["fail", "report"])
def test_retention_between_the_plan_of_a_batch_and_its_tasks_is_named_and_no_part_of_the_batch_counts(
    spark: Any, bucket_url: str, tmp_path: Path, on_gap: str
) -> None:
    bucket = GrowingBucket(bucket_url)
    bucket.grow(3)
    stream = Stream(spark, bucket, tmp_path / "checkpoint", partitionBytes="1", onGap=on_gap)
    plans = iter((lambda: None, lambda: bucket.expire(2)))
    stream.before_reading = lambda: next(plans)()  # the first batch writes down where the stream begins
    words = "no manifest says where offsets .* of shard 3 of topic cold are now: retention, a deleted topic, or damage"
    with pytest.raises(Exception, match=words):
        stream.run()
    assert stream.filled == []
    stream.before_reading = lambda: None
    if on_gap == "fail":
        with pytest.raises(Exception, match="offsets 0 to 60 of shard 3 of topic cold are gone"):
            stream.run()
        stream.options["onGap"] = "report"
    stream.run()
    assert stream.filled == [list(range(60, 90))], "the batch that was planned, behind the gap"


@pytest.mark.fault("records-stream-read-expire")
def test_retention_while_a_stream_reads_on_takes_nothing_that_is_still_there(
    spark: Any, bucket_url: str, tmp_path: Path
) -> None:
    """Records expire behind the reader, batch for batch, and a node keeps sealing."""
    bucket = GrowingBucket(bucket_url)
    bucket.grow(3)
    stream = Stream(spark, bucket, tmp_path / "checkpoint", maxBytesPerTrigger="1")
    expired = 0

    def pass_by() -> None:
        nonlocal expired
        read_segments = len(stream.offsets) // 30
        if read_segments > expired:
            bucket.expire(read_segments - expired)
            expired = read_segments
            bucket.grow()

    stream.before_reading = pass_by
    stream.run()
    assert expired == 2
    assert stream.offsets == list(range(90)), "what was committed when it began"
    stream.before_reading = lambda: None
    stream.run()
    assert stream.offsets == list(range(150))


@pytest.mark.fault("stream-first-batch-delivered")
def test_where_a_stream_began_is_known_though_its_first_records_were_never_delivered(
    spark: Any, bucket: GrowingBucket, tmp_path: Path
) -> None:
    """Spark's checkpoint has the ends of batches alone, and what is oldest when a query is started again is younger."""
    bucket.grow(3)
    stream = Stream(spark, bucket, tmp_path / "checkpoint")
    with pytest.raises(Exception, match="the sink is away"):
        stream.run(fail_at=0)
    bucket.expire(2)
    with pytest.raises(Exception, match="offsets 0 to 60 of shard 3 of topic cold are gone"):
        stream.run()
    assert stream.filled == []


def test_a_stream_may_begin_with_what_comes_next(spark: Any, bucket: GrowingBucket, tmp_path: Path) -> None:
    bucket.grow()
    stream = Stream(spark, bucket, tmp_path / "checkpoint", startingOffsets="latest")
    stream.run()
    bucket.grow()
    stream.run()
    assert stream.offsets == list(range(30, 60))
