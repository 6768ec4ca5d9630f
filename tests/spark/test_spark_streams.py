"""A stream reads each committed record once, over restarts, limits and retention."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from support.pipeline_extra import NO_PIPELINE, needs_spark

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from stratalog.objects import ObjectStore, open_store
from support.cold_data import ColdShard, batches_from
from support.cold_reading import tell

pytestmark = needs_spark


class Bucket:
    """A shard that grows by a segment of 30 offsets, in two parts."""

    def __init__(self, folder: Path) -> None:
        self.url = str(folder)
        self.shard = ColdShard(open_store(self.url))

    def grow(self, segments: int = 1) -> None:
        async def add(store: ObjectStore) -> None:
            for _ in range(segments):
                epoch, base = len(self.shard.segments), self.shard.end_offset
                await self.shard.add([batches_from(base + 15 * n, 5, epoch=epoch) for n in range(2)])

        self._do(add)

    def expire(self, segments: int) -> None:
        """The oldest ones; metadata say so."""

        async def delete(store: ObjectStore) -> None:
            gone = self.shard.segments[:segments]
            await store.delete([one.remote.manifest_key or "" for one in gone])
            self.shard.segments = self.shard.segments[segments:]
            await tell(self.shard, log_start_offset=gone[-1].end_offset or 0)

        self._do(delete)

    def _do(self, work: Callable[[ObjectStore], Awaitable[None]]) -> None:
        async def run() -> None:
            self.shard.store = open_store(self.url)
            try:
                await work(self.shard.store)
            finally:
                await self.shard.store.close()

        asyncio.run(run())


class Stream:
    """Runs of one query: each goes on from the checkpoint until all that is committed has been read."""

    def __init__(self, spark: Any, bucket: Bucket, folder: Path, **options: str) -> None:
        self.spark, self.bucket, self.folder, self.options = spark, bucket, folder, options
        self.batches: list[list[int]] = []

    def run(self, fail_at: int | None = None) -> None:
        def take(frame: Any, _: int) -> None:
            found = sorted(row.offset for row in frame.select("offset").collect())
            if fail_at is not None and fail_at in found:
                raise RuntimeError("the sink is away")
            self.batches.append(found)

        frame = self.spark.readStream.format("stratalog").options(**self.options).load(self.bucket.url)
        writer = frame.writeStream.foreachBatch(take).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.folder)).start()
        assert query.awaitTermination(120), "the query went on forever"

    @property
    def offsets(self) -> list[int]:
        return [offset for batch in self.batches for offset in batch]


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return Bucket(tmp_path / "bucket")


def test_each_record_is_read_once_over_restarts_and_failures(spark: Any, bucket: Bucket, tmp_path: Path) -> None:
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


def test_a_gap_by_retention_fails_the_stream_or_is_reported(spark: Any, bucket: Bucket, tmp_path: Path) -> None:
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


def test_a_stream_may_begin_with_what_comes_next(spark: Any, bucket: Bucket, tmp_path: Path) -> None:
    bucket.grow()
    stream = Stream(spark, bucket, tmp_path / "checkpoint", startingOffsets="latest")
    stream.run()
    bucket.grow()
    stream.run()
    assert stream.offsets == list(range(30, 60))
