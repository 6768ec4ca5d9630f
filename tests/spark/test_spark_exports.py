"""Jobs by Spark's tasks: an export into another Kafka keeps order, files hold each record once, a check sees all."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.pipeline_extra import NO_PIPELINE, needs_spark

pytest.importorskip("fastavro", reason=NO_PIPELINE)

import pyarrow.parquet as pq

from stratalog.formats.batches.records import Record, encode_batch
from stratalog.model.errors import InvalidRequest
from stratalog.objects import ObjectStore, open_store
from stratalog_pipeline.jobs.export.export import ExportOptions, Shape, export
from stratalog_pipeline.jobs.repair.verify import verify
from stratalog_pipeline.jobs.runners import on_spark
from support.cold_data import FIRST_TIME_MS, ColdShard
from support.cold_reading import put_shard
from support.node_process import NodeProcess
from support.topics import create_topic, read

pytestmark = needs_spark

PIECES, RECORDS, KEYS = 40, 25, 7


def build(bucket: str, fill: Callable[[ObjectStore], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        store = open_store(bucket)
        try:
            return await fill(store)
        finally:
            await store.close()

    return asyncio.run(run())


def keyed_batch(base: int) -> bytes:
    """Each eighth record has no key."""
    records = [
        Record(at, FIRST_TIME_MS + at, b"key-%d" % (at % KEYS) if at % 8 else None, b"%d" % at)
        for at in range(base, base + RECORDS)
    ]
    return encode_batch(records, base_offset=base, epoch=0)


async def many_pieces(store: ObjectStore) -> None:
    """Shard 3 of a topic of four: a segment of forty chunks."""
    topic = ColdShard(store)
    await topic.add([[keyed_batch(RECORDS * number)] for number in range(PIECES)])
    await put_shard(topic)


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "kafka" / "data", settings={"log.retention.ms": -1}) as node:
        yield node


@pytest.fixture
def bucket(tmp_path: Path) -> str:
    url = str(tmp_path / "bucket")
    build(url, many_pieces)
    return url


def found_in(kafka: NodeProcess, shards: int) -> dict[int, list[tuple[bytes | None, int]]]:
    """Of each shard that has records: key and source offset, as they lie there."""
    found = {}
    for shard in range(shards):
        messages = read(kafka.bootstrap, "cold", kafka_end(kafka, shard), shard)
        told = [(one.key(), int(dict(one.headers() or ())["stratalog.offset"])) for one in messages]
        assert [b"%d" % offset for _, offset in told] == [one.value() for one in messages]
        if told:
            found[shard] = told
    return found


def kafka_end(kafka: NodeProcess, shard: int) -> int:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "none"})
    end = consumer.get_watermark_offsets(TopicPartition("cold", shard), timeout=30)[1]
    consumer.close()
    return int(end)


@pytest.mark.fault("tasks-export-kafka-run")
def test_a_kafka_with_as_many_shards_gets_each_record_in_its_shard_and_in_order(
    spark: Any, kafka: NodeProcess, bucket: str
) -> None:
    create_topic(kafka.bootstrap, "cold", 4)
    steps: list[int] = []
    options = ExportOptions(bucket, kafka.bootstrap, Shape.KAFKA, piece_bytes=1)
    told = export(options, on_spark(spark), lambda _, done, __: steps.append(done))
    assert (told.pieces, told.records) == (PIECES, PIECES * RECORDS)
    assert (told.same_shards, told.by_key) == (["cold"], [])
    assert steps == list(range(1, PIECES + 1)), "it can be followed"
    (shard, records), *others = found_in(kafka, 4).items()
    assert (shard, others) == (3, [])
    assert [offset for _, offset in records] == list(range(PIECES * RECORDS))


@pytest.mark.fault("tasks-export-kafka-run")
def test_a_kafka_with_other_shards_gets_the_records_of_a_key_in_order(
    spark: Any, kafka: NodeProcess, bucket: str
) -> None:
    create_topic(kafka.bootstrap, "cold", 3)
    told = export(ExportOptions(bucket, kafka.bootstrap, Shape.KAFKA, piece_bytes=1), on_spark(spark))
    assert (told.records, told.same_shards, told.by_key) == (PIECES * RECORDS, [], ["cold"])
    by_key: dict[bytes | None, list[int]] = defaultdict(list)
    where: dict[bytes | None, set[int]] = defaultdict(set)
    found = found_in(kafka, 3)
    for shard, records in found.items():
        for key, offset in records:
            by_key[key].append(offset)
            where[key].add(shard)
    assert len(found) > 1, "keys are spread"
    assert set(by_key) == {None, *(b"key-%d" % number for number in range(KEYS))}
    assert {key: offsets for key, offsets in by_key.items() if offsets != sorted(offsets)} == {}
    assert all(len(shards) == 1 for shards in where.values()), "a key has one place, and so have records without one"
    assert sum(map(len, by_key.values())) == PIECES * RECORDS


def test_a_kafka_without_the_topic_is_reported_before_anything_is_sent(spark: Any, tmp_path: Path, bucket: str) -> None:
    settings = {"auto.create.topics.enable": "false"}
    with (
        NodeProcess(tmp_path / "other" / "data", settings=settings) as node,
        pytest.raises(InvalidRequest, match="has no topic cold"),
    ):
        export(ExportOptions(bucket, node.bootstrap, Shape.KAFKA), on_spark(spark))


@pytest.mark.parametrize("shape", [Shape.PARQUET, Shape.JSONL])
def test_tasks_put_files_of_every_record_once(spark: Any, bucket: str, tmp_path: Path, shape: Shape) -> None:
    options = ExportOptions(bucket, str(tmp_path / "out"), shape, piece_bytes=4_000)
    told, again = (export(options, on_spark(spark)) for _ in range(2))
    files = sorted((tmp_path / "out" / "cold" / "3").iterdir())
    assert 1 < told.pieces == len(files) < PIECES
    assert (told.records, told.pieces_there) == (PIECES * RECORDS, 0)
    assert (again.pieces_there, again.bytes_put) == (told.pieces, 0)
    if shape is Shape.PARQUET:
        found = [row for file in files for row in pq.read_table(file).select(["offset", "value"]).to_pylist()]
        rows = [(row["offset"], row["value"].decode()) for row in found]
    else:
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        rows = [(line["offset"], line["value"]) for line in lines]
    assert rows == [(offset, str(offset)) for offset in range(PIECES * RECORDS)]


def test_tasks_check_every_byte_and_name_what_is_damaged(spark: Any, bucket: str) -> None:
    steps: list[int] = []
    sound = verify(bucket, on_spark(spark), on_progress=lambda _, done, __: steps.append(done))
    assert (sound.segments, sound.parts, sound.batches, sound.findings) == (1, PIECES, PIECES, [])
    assert steps, "it can be followed"
    chunk = sorted(Path(bucket).rglob("*.chunk"))[7]
    body = bytearray(chunk.read_bytes())
    body[400] ^= 2
    chunk.write_bytes(body)
    (found,) = verify(bucket, on_spark(spark)).findings
    assert chunk.name in found.place
