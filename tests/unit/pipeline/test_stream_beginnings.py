"""Where a stream begins is written down before anything is read: Spark's checkpoint has ends of batches alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from stratalog.model.errors import InvalidRequest, NotFound
from stratalog_pipeline.cold.cutting import GapInLog
from stratalog_pipeline.source.options import Mode, parse_options
from stratalog_pipeline.source.stream_reader import StreamReader
from support.cold_data import FIRST_TIME_MS
from support.growing_bucket import GrowingBucket


def reader_of(bucket: GrowingBucket, **options: str) -> StreamReader:
    return StreamReader(parse_options({"path": bucket.url, **options}, Mode.STREAM), ("offset",))


def read_on(reader: StreamReader, start: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """The end of the next batch, and what it has."""
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    tables = [table for one in reader.partitions(start, end) for table in reader.read(one)]
    return end, [row["offset"] for table in tables for row in table.to_pylist()]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, range(60)),
        ({"startingOffsets": "latest"}, range(30, 60)),
        ({"startingOffsets": '{"cold": {"3": 7}}'}, range(7, 60)),
        ({"startingOffsets": '{"cold": {"3": -1}}'}, range(30, 60)),
        ({"startingOffsets": '{"cold": {"3": -2}}'}, range(60)),
        ({"startingTimestamp": str(FIRST_TIME_MS + 11)}, range(11, 60)),
        ({"startingOffsetsByTimestamp": f'{{"cold": {{"3": {FIRST_TIME_MS + 29}}}}}'}, range(29, 60)),
        (
            {"startingTimestamp": str(FIRST_TIME_MS + 500), "startingOffsetsByTimestampStrategy": "latest"},
            range(30, 60),
        ),
        ({"subscribePattern": "c.ld"}, range(60)),
        ({"assign": '{"cold": [3]}'}, range(60)),
    ],
)
def test_the_first_batch_is_empty_and_the_next_begins_where_it_was_asked_for(
    tmp_path: Path, options: dict[str, str], expected: range
) -> None:
    bucket = GrowingBucket(str(tmp_path))
    bucket.grow()
    reader = reader_of(bucket, **options)
    start, found = read_on(reader, reader.initialOffset())
    assert found == []
    bucket.grow()
    _, found = read_on(reader, start)
    assert found == list(expected)
    reader.stop()


@pytest.mark.fault("spark-query-option-mode")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"startingOffsets": '{"cold": {"3": 1, "4": 1}}'},
            "option startingOffsets: there is no shard 4 of topic cold",
        ),
        ({"startingOffsets": '{"other": {"3": 1}}'}, "option startingOffsets: there is no shard 3 of topic other"),
        ({"startingOffsets": "{}"}, "option startingOffsets does not name shard 3 of topic cold"),
        ({"startingTimestamp": str(FIRST_TIME_MS + 500)}, "option startingTimestamp: no record of shard 3"),
        ({"assign": '{"cold": [9]}'}, "option assign: there is no shard 9"),
        ({"shards": "9"}, "option shards: no topic that is read has a shard 9"),
        ({"topics": "warm"}, "no topic warm"),
    ],
)
def test_what_is_not_there_is_named_when_a_query_begins_and_stops_none_that_has_begun(
    tmp_path: Path, options: dict[str, str], words: str
) -> None:
    bucket = GrowingBucket(str(tmp_path))
    bucket.grow()
    begun = reader_of(bucket)
    start, _ = read_on(begun, begun.initialOffset())
    begun.stop()
    reader = reader_of(bucket, **options)
    with pytest.raises((InvalidRequest, NotFound), match=words):
        read_on(reader, reader.initialOffset())
    if "topics" not in options:
        read_on(reader, start)
    reader.stop()


def test_a_batch_has_about_as_many_offsets_as_it_may(tmp_path: Path) -> None:
    bucket = GrowingBucket(str(tmp_path))
    bucket.grow(2)
    reader = reader_of(bucket, maxOffsetsPerTrigger="25")
    at, _ = read_on(reader, reader.initialOffset())
    sizes = []
    for _ in range(4):
        at, found = read_on(reader, at)
        sizes.append(len(found))
    assert sizes == [25, 25, 10, 0]
    reader.stop()


@pytest.mark.fault("stream-first-batch-delivered")
def test_a_query_that_repeats_its_first_batch_continues_from_where_that_one_ends(tmp_path: Path) -> None:
    """As Spark does after a failure: it asks for the beginning again, and plans the batch that it has written down."""
    bucket = GrowingBucket(str(tmp_path))
    bucket.grow(2)
    first = reader_of(bucket)
    written = first.latestOffset(first.initialOffset(), first.getDefaultReadLimit())
    first.stop()
    bucket.expire(1)
    again = reader_of(bucket)
    limit = again.getDefaultReadLimit()
    assert again.partitions(again.initialOffset(), written) == []
    with pytest.raises(GapInLog, match="offsets 0 to 30 of shard 3 of topic cold are gone"):
        again.latestOffset(written, limit)
    again.stop()


def test_a_batch_waits_for_enough_offsets(tmp_path: Path) -> None:
    bucket = GrowingBucket(str(tmp_path))
    bucket.grow()
    reader = reader_of(bucket, minOffsetsPerTrigger="60", maxTriggerDelay="1h", maxBytesPerTrigger="1g")
    start, _ = read_on(reader, reader.initialOffset())
    start, found = read_on(reader, start)
    assert found == [*range(30)], "the first one is not delayed"
    bucket.grow()
    assert read_on(reader, start) == (start, [])
    bucket.grow()
    start, found = read_on(reader, start)
    assert found == [*range(30, 90)]
    bucket.grow()
    assert read_on(reader, start) == (start, [])
    reader.prepareForTriggerAvailableNow()
    assert read_on(reader, start)[1] == [*range(90, 120)], "what is committed at the start is read, however little"


def test_a_batch_waits_no_longer_than_the_most_delay(tmp_path: Path) -> None:
    bucket = GrowingBucket(str(tmp_path))
    bucket.grow()
    reader = reader_of(bucket, minOffsetsPerTrigger="60", maxTriggerDelay="0")
    start, _ = read_on(reader, reader.initialOffset())
    start, _ = read_on(reader, start)
    bucket.grow()
    assert read_on(reader, start)[1] == [*range(30, 60)]
