"""Spark reads a bucket as a table: the records that were put there, and no others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from support.pipeline_extra import NO_PIPELINE, needs_spark

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from stratalog.objects import ObjectStore, open_store
from support.cold_data import CLUSTER_ID, FIRST_TIME_MS, ColdShard, batches_from
from support.cold_reading import tell
from support.s3_servers import NO_VERSITYGW, versitygw_binary, versitygw_server

pytestmark = needs_spark


def build(bucket: str, fill: Callable[[ObjectStore], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        store = open_store(bucket)
        try:
            return await fill(store)
        finally:
            await store.close()

    return asyncio.run(run())


async def flights(store: ObjectStore) -> ColdShard:
    """Shard 3: three sealed segments of two parts, and a committed bundle; offsets 0 to 120."""
    cold = ColdShard(store)
    for epoch in range(3):
        base = 30 * epoch
        parts = [batches_from(base, 5, epoch=epoch), batches_from(base + 15, 5, epoch=epoch, codec=epoch + 2)]
        await cold.add(parts)
    from stratalog.model.segment import RemoteState

    parts = [batches_from(90, 5, epoch=3), batches_from(105, 5, epoch=3)]
    await cold.add(parts, state=RemoteState.PARTIAL, is_bundled=True)
    await tell(cold)
    return cold


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("bucket"))
    build(path, flights)
    return path


def offsets(frame: Any) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


def test_every_column_of_every_committed_record_is_there(spark: Any, bucket: str) -> None:
    rows = spark.read.format("stratalog").load(bucket).orderBy("offset").collect()
    assert [row.offset for row in rows] == list(range(120))
    row = rows[40]
    assert (row.topic, row.shard, row.leader_epoch, row.timestamp_type) == ("cold", 3, 1, 0)
    assert (bytes(row.key), bytes(row.value[:20]), row.headers) == (b"40", b"%020d" % 40, [])
    assert row.timestamp.replace(tzinfo=UTC).timestamp() * 1_000 == pytest.approx(FIRST_TIME_MS + 40)


def test_a_busy_shard_is_many_partitions(spark: Any, bucket: str) -> None:
    frame = spark.read.format("stratalog").option("partitionBytes", "3000").load(bucket)
    assert frame.rdd.getNumPartitions() >= 4
    assert offsets(frame) == list(range(120))


def test_a_key_is_looked_up_and_only_its_chunks_are_read(spark: Any, tmp_path: Path) -> None:
    async def keyed(store: ObjectStore) -> ColdShard:
        cold = ColdShard(store, has_key_index=True)
        for epoch in range(3):
            base = 30 * epoch
            await cold.add([batches_from(base, 5, epoch=epoch), batches_from(base + 15, 5, epoch=epoch, codec=4)])
        await tell(cold)
        return cold

    build(str(tmp_path), keyed)
    frame = spark.read.format("stratalog").option("partitionBytes", "1").load(str(tmp_path))
    assert frame.rdd.getNumPartitions() == 6
    one = frame.where("key = CAST('40' AS binary)")
    assert (offsets(one), one.rdd.getNumPartitions()) == ([40], 1)
    two = frame.where("key in (CAST('40' AS binary), CAST('3' AS binary)) and offset < 80")
    assert (offsets(two), two.rdd.getNumPartitions()) == ([3, 40], 2)
    assert offsets(frame.where("key = CAST('nobody' AS binary)")) == []
    assert offsets(frame.where("key is null")) == []
    assert len(offsets(frame.where("key > CAST('40' AS binary)"))) == len([n for n in range(90) if str(n) > "40"])


def test_filters_leave_out_what_need_not_be_read(spark: Any, bucket: str) -> None:
    frame = spark.read.format("stratalog").option("partitionBytes", "1").load(bucket)
    few = frame.where("offset >= 40 and offset < 50 and shard = 3 and topic = 'cold'")
    assert (offsets(few), few.rdd.getNumPartitions()) == (list(range(40, 50)), 2)
    late = frame.where(frame.timestamp >= datetime.fromtimestamp((FIRST_TIME_MS + 85) / 1_000, UTC))
    assert (offsets(late), late.rdd.getNumPartitions()) == (list(range(85, 120)), 4)
    early = frame.where(frame.timestamp < datetime.fromtimestamp((FIRST_TIME_MS + 5) / 1_000, UTC))
    assert offsets(early) == list(range(5))
    assert offsets(frame.where("shard = 2")) == []


def test_options_choose_offsets_and_times(spark: Any, bucket: str) -> None:
    read = (
        spark.read.format("stratalog").option("bucket", bucket).option("topics", "cold").option("cluster", CLUSTER_ID)
    )
    assert offsets(read.option("fromOffset", "10").option("toOffset", "20").load()) == list(range(10, 20))
    from_json = read.option("fromOffset", '{"cold": {"3": 100}}').option("toOffset", '{"cold": {"3": 103}}')
    assert offsets(from_json.load()) == [100, 101, 102]
    fresh = spark.read.format("stratalog").option("bucket", bucket)
    within = fresh.option("fromTimestamp", str(FIRST_TIME_MS + 7)).option("toTimestamp", str(FIRST_TIME_MS + 9))
    assert offsets(within.load()) == [7, 8]


def test_a_schema_of_fewer_columns_is_all_that_is_decoded(spark: Any, bucket: str) -> None:
    frame = spark.read.format("stratalog").schema("value binary, offset long").load(bucket)
    assert frame.columns == ["value", "offset"]
    assert frame.count() == 120


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topics": "other"}, "holds no topic other"),
        ({"fromOffset": "-3"}, "option fromOffset"),
        ({"frmOffset": "3"}, "option frmoffset is unknown"),
        ({"snapshot": "friday"}, "no snapshot 'friday'"),
        ({"partitionBytes": "many"}, "option partitionBytes"),
    ],
)
def test_what_cannot_be_is_refused_with_words(spark: Any, bucket: str, options: dict[str, str], words: str) -> None:
    with pytest.raises(Exception, match=words):
        spark.read.format("stratalog").options(**options).load(bucket).count()


def test_a_damaged_object_fails_the_query_and_is_named(spark: Any, tmp_path: Path) -> None:
    cold = build(str(tmp_path), flights)
    key = cold.segments[0].remote.manifest_key
    assert key is not None
    chunk = next((tmp_path / key).parent.glob("*.chunk"))
    body = bytearray(chunk.read_bytes())
    body[700] ^= 1
    chunk.write_bytes(body)
    with pytest.raises(Exception, match=chunk.name):
        spark.read.format("stratalog").load(str(tmp_path)).count()


@pytest.mark.real_s3
@pytest.mark.skipif(versitygw_binary() is None, reason=NO_VERSITYGW)
def test_a_bucket_on_a_real_s3_server_is_read(spark: Any, tmp_path: Path) -> None:
    with versitygw_server(tmp_path / "s3") as server:
        build(server.url("there"), flights)
        assert offsets(spark.read.format("stratalog").load(server.url("there"))) == list(range(120))


def test_workers_that_read_do_not_walk_over_their_imports_after_each_task_and_the_driver_is_left_alone(
    spark: Any, bucket: str
) -> None:
    import gc

    from stratalog_pipeline.source.batch_reader import PlainReader
    from stratalog_pipeline.source.data_source import StratalogDataSource
    from stratalog_pipeline.source.options import parse_options

    class HeapReader(PlainReader):
        def read(self, partition: Any) -> Any:
            import gc

            for table in super().read(partition):
                yield table.num_rows, gc.get_freeze_count()

    class HeapSource(StratalogDataSource):
        @classmethod
        def name(cls) -> str:
            return "stratalog_heap"

        def schema(self) -> str:
            return "records long, frozen long"

        def reader(self, schema: Any) -> Any:
            return HeapReader(parse_options(self.options), ("offset",))

    spark.dataSource.register(HeapSource)
    before = gc.get_freeze_count()
    told = spark.read.format("stratalog_heap").option("partitionBytes", 1).load(bucket).collect()
    assert sum(row.records for row in told) == 120
    assert min(row.frozen for row in told) > 10_000
    assert gc.get_freeze_count() == before
