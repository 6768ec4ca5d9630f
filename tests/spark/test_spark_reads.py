"""Spark reads a bucket as a table: the records that were put there, and no others."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from support.pipeline_extra import NO_PIPELINE, needs_spark

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from stratalog.formats.batches.records import Record, encode_batch
from stratalog.model.segment import RemoteState
from stratalog.objects import ObjectStore, open_store
from support.cold_data import CLUSTER_ID, FIRST_TIME_MS, ColdShard, batch_at, batches_from
from support.cold_reading import put_cut, put_shard
from support.copied_objects import move_objects
from support.growing_bucket import damage, in_bucket

pytestmark = needs_spark


async def flights(store: ObjectStore) -> ColdShard:
    """Shard 3: three sealed segments of two parts, and a committed bundle; offsets 0 to 120."""
    cold = ColdShard(store)
    for epoch in range(3):
        base = 30 * epoch
        parts = [batches_from(base, 5, epoch=epoch), batches_from(base + 15, 5, epoch=epoch, codec=epoch + 2)]
        await cold.add(parts)
    parts = [batches_from(90, 5, epoch=3), batches_from(105, 5, epoch=3)]
    await cold.add(parts, state=RemoteState.PARTIAL, is_bundled=True)
    await put_shard(cold)
    return cold


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("bucket"))
    in_bucket(path, flights)
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


def test_a_key_is_looked_up_and_only_its_chunks_are_read(spark: Any, bucket_url: str) -> None:
    async def keyed(store: ObjectStore) -> ColdShard:
        cold = ColdShard(store, has_key_index=True)
        for epoch in range(3):
            base = 30 * epoch
            await cold.add([batches_from(base, 5, epoch=epoch), batches_from(base + 15, 5, epoch=epoch, codec=4)])
        await put_shard(cold)
        return cold

    in_bucket(bucket_url, keyed)
    frame = spark.read.format("stratalog").option("partitionBytes", "1").load(bucket_url)
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


@pytest.mark.fault("chunk-bundle-manifest-damaged")
def test_a_damaged_object_fails_the_query_and_is_named(spark: Any, bucket_url: str) -> None:
    async def chunks_of(store: ObjectStore) -> list[str]:
        prefix = cold.names.segment_prefix(cold.segments[0].key)
        return [info.key async for info in store.list(prefix) if info.key.endswith(".chunk")]

    cold = in_bucket(bucket_url, flights)
    frame = spark.read.format("stratalog").load(bucket_url)
    assert offsets(frame) == list(range(120))
    chunk = in_bucket(bucket_url, chunks_of)[0]
    damage(bucket_url, chunk, 700)
    with pytest.raises(Exception, match=chunk.rpartition("/")[2]):
        frame.count()


async def strange_records(store: ObjectStore) -> ColdShard:
    """Headers of all kinds, nothing where there may be nothing, no time, and times of the log."""
    cold = ColdShard(store)
    headers = (("h", b"one"), ("h", b"\xff\x00"), ("nothing", None), ("empty", b""), ("größe", b"1"))
    created = [
        Record(0, FIRST_TIME_MS, b"k", b"v", headers),
        Record(1, FIRST_TIME_MS + 1, None, None, ()),
        Record(2, FIRST_TIME_MS + 2, b"", b"", (("", b"x"),)),
    ]
    timeless = [Record(3, -1, b"k", b"v"), Record(4, -1, b"k", b"w")]
    appended = [Record(offset, FIRST_TIME_MS + offset, b"k", b"%d" % offset) for offset in (5, 6)]
    batches = [
        encode_batch(created, base_offset=0, epoch=0),
        encode_batch(timeless, base_offset=3, epoch=0),
        encode_batch(appended, base_offset=5, epoch=0, is_log_append_time=True, max_timestamp_ms=FIRST_TIME_MS + 77),
    ]
    await cold.add([batches])
    return cold


def test_headers_absent_fields_and_times_are_as_they_were_written(spark: Any, bucket_url: str) -> None:
    in_bucket(bucket_url, strange_records)
    rows = spark.read.format("stratalog").load(bucket_url).orderBy("offset").collect()
    headers = [[(one.key, None if one.value is None else bytes(one.value)) for one in row.headers] for row in rows]
    written = [("h", b"one"), ("h", b"\xff\x00"), ("nothing", None), ("empty", b""), ("größe", b"1")]
    assert headers == [written, [], [("", b"x")], [], [], [], []]
    assert [(row.key, row.value) for row in rows[:3]] == [(b"k", b"v"), (None, None), (b"", b"")]
    times = [row.timestamp and row.timestamp.replace(tzinfo=UTC).timestamp() * 1_000 - FIRST_TIME_MS for row in rows]
    assert times == [pytest.approx(0), pytest.approx(1), pytest.approx(2), None, None, *[pytest.approx(77)] * 2]
    assert [row.timestamp_type for row in rows] == [0, 0, 0, 0, 0, 1, 1]


def test_a_snapshot_is_read_by_its_name_as_it_was(spark: Any, bucket_url: str) -> None:
    async def fill(store: ObjectStore) -> None:
        cold = ColdShard(store)
        for epoch in range(3):
            await cold.add([batches_from(30 * epoch, 5, epoch=epoch), batches_from(30 * epoch + 15, 5, epoch=epoch)])
            if epoch == 1:
                await put_cut(cold, "friday", 4, 37, 1)
        await put_shard(cold, log_start_offset=60)  # its contents are no longer listed

    in_bucket(bucket_url, fill)
    read = spark.read.format("stratalog").option("bucket", bucket_url)
    assert offsets(read.load()) == list(range(60, 90))
    assert offsets(read.option("snapshot", "friday").load()) == list(range(4, 37))
    assert offsets(read.option("snapshot", "friday").load().where("offset < 10")) == list(range(4, 10))


CHUNKS = 10_000


def test_ten_thousand_small_chunks_are_read_and_each_is_counted(spark: Any, bucket_url: str) -> None:
    async def fill(store: ObjectStore) -> None:
        memory = open_store("memory:")
        cold = ColdShard(memory)
        await cold.add([[batch_at(number, 1, value_bytes=19)] for number in range(CHUNKS)])
        await put_shard(cold)
        await move_objects(memory, store, bucket_url)
        await memory.close()

    in_bucket(bucket_url, fill)
    frame = spark.read.format("stratalog").option("partitionBytes", "512k").load(bucket_url)
    assert 4 <= frame.rdd.getNumPartitions() <= 20, "one shard, many tasks, and not one for each chunk"
    told = frame.selectExpr(
        "count(*) AS rows",
        "count(DISTINCT offset) AS offsets",
        "sum(offset) AS sum",
        "sum(CAST(CAST(value AS string) AS bigint)) AS value_sum",
        "count_if(CAST(CAST(key AS string) AS bigint) = offset) AS keys",
    ).first()
    whole = CHUNKS * (CHUNKS - 1) // 2
    assert (told.rows, told.offsets, told.sum, told.value_sum, told.keys) == (CHUNKS, CHUNKS, whole, whole, CHUNKS)


def test_workers_that_read_do_not_walk_over_their_imports_after_each_task_and_the_driver_is_left_alone(
    spark: Any, bucket: str
) -> None:
    import gc

    from stratalog_pipeline.source.batch_reader import PlainReader
    from stratalog_pipeline.source.data_source import StratalogDataSource
    from stratalog_pipeline.source.options import Mode, parse_options

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
            return HeapReader(parse_options(self.options, Mode.BATCH), ("offset",))

    spark.dataSource.register(HeapSource)
    before = gc.get_freeze_count()
    told = spark.read.format("stratalog_heap").option("partitionBytes", 1).load(bucket).collect()
    assert sum(row.records for row in told) == 120
    assert min(row.frozen for row in told) > 10_000
    assert gc.get_freeze_count() == before
