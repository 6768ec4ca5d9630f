"""Where a stream begins is written down before anything is read: Spark's checkpoint has ends of batches alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from stratalog_pipeline.cold.cutting import GapInLog
from stratalog_pipeline.source.options import parse_options
from stratalog_pipeline.source.stream_reader import StreamReader
from support.growing_bucket import GrowingBucket


def reader_of(bucket: GrowingBucket, **options: str) -> StreamReader:
    return StreamReader(parse_options({"path": bucket.url, **options}), ("offset",))


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_the_first_batch_is_empty_and_the_next_begins_there(tmp_path: Path, starting: str) -> None:
    bucket = GrowingBucket(str(tmp_path))
    bucket.grow()
    reader = reader_of(bucket, startingOffsets=starting)
    start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    bucket.grow()
    assert reader.latestOffset(start, limit) == start
    assert reader.partitions(start, start) == []
    end = reader.latestOffset(start, limit)
    (partition,) = reader.partitions(start, end)
    found = [row["offset"] for table in reader.read(partition) for row in table.to_pylist()]
    assert found == list(range(0 if starting == "earliest" else 30, 60))
    reader.stop()


def test_a_query_that_repeats_its_first_batch_goes_on_from_where_that_one_ends(tmp_path: Path) -> None:
    """As Spark does after a failure: it asks for the beginning anew, and plans the batch that it has written down."""
    bucket = GrowingBucket(str(tmp_path))
    bucket.grow(2)
    first = reader_of(bucket)
    written = first.initialOffset()
    first.stop()
    bucket.expire(1)
    again = reader_of(bucket)
    limit = again.getDefaultReadLimit()
    assert (beginning := again.initialOffset()) != written
    assert again.partitions(beginning, written) == []
    with pytest.raises(GapInLog, match="offsets 0 to 30 of shard 3 of topic cold are gone"):
        again.latestOffset(written, limit)
    again.stop()
