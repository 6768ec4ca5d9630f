"""What a batch reads for each option that says where it begins and ends, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from stratalog.model.errors import InvalidRequest, NotFound
from stratalog_pipeline.cold.cutting import GapInLog
from stratalog_pipeline.source.options import Mode, parse_options
from stratalog_pipeline.source.planning import plan, tables
from support.cold_data import FIRST_TIME_MS
from support.growing_bucket import GrowingBucket


def at(offset: int) -> str:
    """The time of a record."""
    return str(FIRST_TIME_MS + offset)


def read(bucket: GrowingBucket, **given: str) -> list[int]:
    options = parse_options({"path": bucket.url, **given}, Mode.BATCH)
    cluster_id, works = plan(options, options.asked)
    found = [table for ranges in works for table in tables(options, cluster_id, ranges, ("offset",), options.asked)]
    return [row["offset"] for table in found for row in table.to_pylist()]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, range(60)),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, range(60)),
        ({"startingOffsets": '{"cold": {"3": 5}}', "endingOffsets": '{"cold": {"3": 50}}'}, range(5, 50)),
        ({"startingOffsets": '{"cold": {"3": -2}}', "endingOffsets": '{"cold": {"3": -1}}'}, range(60)),
        ({"startingTimestamp": at(7), "endingTimestamp": at(9)}, range(7, 9)),
        ({"endingTimestamp": at(1_000)}, range(60)),
        ({"startingTimestamp": at(1_000), "startingOffsetsByTimestampStrategy": "latest"}, range(0)),
        ({"endingOffsetsByTimestamp": f'{{"cold": {{"3": {at(31)}}}}}'}, range(31)),
        ({"fromOffset": "5", "toOffset": "8"}, range(5, 8)),
        ({"fromOffset": '{"cold": {"3": 5}}', "toTimestamp": at(8)}, range(5, 8)),
        ({"subscribe": "cold"}, range(60)),
        ({"subscribePattern": "co.*"}, range(60)),
        ({"subscribePattern": "co"}, range(0)),
        ({"assign": '{"cold": [3]}'}, range(60)),
        ({"shards": "3"}, range(60)),
    ],
)
def test_a_batch_begins_and_ends_where_it_was_asked_to(
    tmp_path: Path, options: dict[str, str], expected: range
) -> None:
    bucket = GrowingBucket(str(tmp_path))
    bucket.grow(2)
    assert read(bucket, **options) == list(expected)


@pytest.mark.fault("spark-query-option-mode")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffsets": '{"cold": {"2": 1}}'}, "option startingOffsets: there is no shard 2 of topic cold"),
        ({"endingOffsets": '{"warm": {"3": 1}}'}, "option endingOffsets: there is no shard 3 of topic warm"),
        ({"endingOffsets": "{}"}, "option endingOffsets does not name shard 3"),
        ({"fromOffset": '{"cold": {"4": 1}}'}, "option fromOffset: there is no shard 4"),
        ({"toOffset": '{"warm": {"3": 1}}'}, "option toOffset: there is no shard 3 of topic warm"),
        ({"startingTimestamp": at(1_000)}, "option startingTimestamp: no record"),
        ({"shards": "3,8"}, "option shards: no topic that is read has a shard 8"),
    ],
)
def test_what_is_not_there_is_named(tmp_path: Path, options: dict[str, str], words: str) -> None:
    bucket = GrowingBucket(str(tmp_path))
    bucket.grow()
    with pytest.raises((InvalidRequest, NotFound), match=words):
        read(bucket, **options)


def test_offsets_that_are_gone_fail_a_batch_unless_it_may_lose_data(tmp_path: Path) -> None:
    bucket = GrowingBucket(str(tmp_path))
    bucket.grow(2)
    bucket.expire(1)
    from_there = {"startingOffsets": '{"cold": {"3": 5}}', "shards": "3"}
    with pytest.raises(GapInLog, match="offsets 5 to 30"):
        read(bucket, **from_there)
    assert read(bucket, **from_there, failOnDataLoss="false") == list(range(30, 60))
    assert read(bucket, assign='{"cold": [3]}', startingOffsets='{"cold": {"3": -2}}') == list(range(30, 60))
