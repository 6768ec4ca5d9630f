"""Spark writes rows to a real node, and a Kafka client reads them there; an export goes into another cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.pipeline_extra import NO_PIPELINE, needs_spark

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from confluent_kafka import Consumer, TopicPartition

from stratalog.model.errors import InvalidRequest, Unavailable
from stratalog.objects import open_store
from stratalog_pipeline.jobs.export.export import ExportOptions, Shape, export
from stratalog_pipeline.jobs.runners import one_by_one
from stratalog_pipeline.sending.login import login_with
from stratalog_pipeline.sending.producer import Sender
from stratalog_pipeline.source.writer import parse_write_options
from support.archived_tables import add_segment
from support.cold_data import ColdShard
from support.node_process import NodeProcess
from support.topics import create_topic, read


def ends_of(bootstrap: str, topic: str, shards: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none"})
    ends = [consumer.get_watermark_offsets(TopicPartition(topic, shard), timeout=30)[1] for shard in range(shards)]
    consumer.close()
    return ends


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("node") / "data", settings={"log.retention.ms": -1}) as node:
        yield node


class TestOnSpark:
    pytestmark = needs_spark

    def test_rows_become_records_with_all_that_they_say(self, spark: Any, node: NodeProcess) -> None:
        create_topic(node.bootstrap, "written", 2)
        rows = spark.range(1000).selectExpr(
            "'written' AS topic",
            "CAST(id AS string) AS key",
            "CAST(concat('value ', id) AS binary) AS value",
            "array(named_struct('key', 'h', 'value', CAST('x' AS binary))) AS headers",
            "timestamp_millis(1700000000000 + id) AS timestamp",
            "CAST(id % 2 AS int) AS shard",
        )
        writer = rows.write.format("stratalog").mode("append")
        writer.option("kafka.bootstrap.servers", node.bootstrap).save()
        found = [message for shard in (0, 1) for message in read(node.bootstrap, "written", 500, shard)]
        assert sorted(int(message.key()) for message in found) == list(range(1000))
        one = next(message for message in found if message.key() == b"7")
        assert (one.value(), one.partition(), one.timestamp()[1]) == (b"value 7", 1, 1_700_000_000_007)
        assert one.headers() == [("h", b"x")]

    def test_a_stream_of_rows_becomes_records_and_continues_from_its_checkpoint(
        self, spark: Any, node: NodeProcess, tmp_path: Path
    ) -> None:
        create_topic(node.bootstrap, "streamed", 2)
        source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
        source.mkdir()

        def put(first: int) -> None:
            """A file of a hundred lines, whole at once: a stream takes what it sees."""
            hidden = source / f".{first}"
            hidden.write_text("".join(f"{first + number}\n" for number in range(100)))
            hidden.rename(source / f"{first}.txt")

        def run() -> None:
            rows = (
                spark.readStream.schema("line string")
                .text(str(source))
                .selectExpr("line AS key", "concat('value ', line) AS value", "CAST(line AS int) % 2 AS shard")
            )
            query = (
                rows.writeStream.format("stratalog")
                .option("kafka.bootstrap.servers", node.bootstrap)
                .option("topic", "streamed")
                .option("checkpointLocation", str(checkpoint))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(120), "it ends once all that is there was written"

        put(0)
        run()
        put(100)
        put(200)
        run()
        run()
        found = {shard: read(node.bootstrap, "streamed", 150, shard) for shard in (0, 1)}
        for shard, messages in found.items():
            assert sorted(int(one.key()) for one in messages) == list(range(shard, 300, 2)), "each once: no fault came"
            assert all(one.value() == b"value " + one.key() for one in messages)
        assert ends_of(node.bootstrap, "streamed", 2) == [150, 150], "nothing was written a second time"

    def test_a_stream_that_could_not_be_written_is_written_by_the_next_run(
        self, spark: Any, node: NodeProcess, tmp_path: Path
    ) -> None:
        """At least once: what the batch could not deliver is not passed over."""
        source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
        source.mkdir()
        (source / "lines.txt").write_text("a\nb\n")

        def start(topic: str) -> Any:
            writer = spark.readStream.text(str(source)).writeStream.format("stratalog").trigger(availableNow=True)
            for name, value in (
                ("kafka.bootstrap.servers", node.bootstrap),
                ("kafka.delivery.timeout.ms", "3000"),
                ("kafka.allow.auto.create.topics", "false"),
                ("topic", topic),
                ("checkpointLocation", str(checkpoint)),
            ):
                writer = writer.option(name, value)
            return writer.start()

        with pytest.raises(Exception, match="did not take"):
            start("there-is-none").awaitTermination(120)
        create_topic(node.bootstrap, "there-is-one")
        assert start("there-is-one").awaitTermination(120)
        assert [one.value() for one in read(node.bootstrap, "there-is-one", 2)] == [b"a", b"b"]

    def test_a_stream_that_would_tell_all_rows_anew_is_refused(
        self, spark: Any, node: NodeProcess, tmp_path: Path
    ) -> None:
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "lines.txt").write_text("a\n")
        rows = spark.readStream.text(str(tmp_path / "in")).groupBy("value").count().select("value")
        writer = rows.writeStream.format("stratalog").outputMode("complete").option("topic", "t")
        writer = writer.option("kafka.bootstrap.servers", node.bootstrap)
        with pytest.raises(Exception, match="not overwritten"):
            writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination(120)

    def test_a_topic_is_not_overwritten(self, spark: Any, node: NodeProcess) -> None:
        writer = spark.range(1).selectExpr("CAST(id AS string) AS value").write.format("stratalog")
        with pytest.raises(Exception, match="not overwritten"):
            writer.option("kafka.bootstrap.servers", node.bootstrap).option("topic", "t").mode("overwrite").save()


def test_an_export_into_another_cluster_reports_where_each_record_came_from(node: NodeProcess, tmp_path: Path) -> None:
    async def fill() -> None:
        store = open_store(str(tmp_path))
        await add_segment(ColdShard(store), [[b"a", None], [b"c"]])
        await store.close()

    asyncio.run(fill())
    create_topic(node.bootstrap, "cold")
    told = export(ExportOptions(str(tmp_path), node.bootstrap, Shape.KAFKA), one_by_one)
    found = read(node.bootstrap, "cold", 3)
    assert told.records == 3
    assert [(one.key(), one.value()) for one in found] == [(b"0", b"a"), (b"1", None), (b"2", b"c")]
    assert dict(found[2].headers() or ()) == {
        "stratalog.topic": b"cold",
        "stratalog.shard": b"3",
        "stratalog.offset": b"2",
    }


@pytest.mark.fault("cluster-accept-row-spark")
def test_what_is_not_delivered_is_an_error(node: NodeProcess) -> None:
    login = login_with("", {"delivery.timeout.ms": "3000", "allow.auto.create.topics": "false"})
    sender = Sender(node.bootstrap, login)
    create_topic(node.bootstrap, "one-shard")
    with pytest.raises(Unavailable, match="did not take"):
        sender.send("one-shard", None, b"v", [], None, 7)
        sender.flush(30)


@pytest.mark.parametrize(
    ("options", "columns", "words"),
    [
        ({"topic": "t"}, ["value"], "bootstrap.servers is missing"),
        ({"kafka.bootstrap.servers": "h:1"}, ["value"], "name the topic"),
        ({"kafka.bootstrap.servers": "h:1", "topic": "t"}, ["value", "topic"], "name the topic"),
        ({"kafka.bootstrap.servers": "h:1", "topic": "t"}, ["key"], "no column value"),
        ({"kafka.bootstrap.servers": "h:1", "topic": "t"}, ["value", "extra"], "column extra"),
        ({"kafka.bootstrap.servers": "h:1", "topic": "t", "acks": "0"}, ["value"], "option acks is unknown"),
        (
            {"kafka.bootstrap.servers": "h:1", "topic": "t", "kafka.queue.buffering.max.kbytes": "65536"},
            ["value"],
            "32 MiB at most",
        ),
    ],
)
def test_what_cannot_be_written_is_refused(options: dict[str, str], columns: list[str], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        parse_write_options(options, columns, {"HOME": "/nowhere"})


def test_a_secret_among_the_options_is_refused_and_not_shown() -> None:
    options = {"kafka.bootstrap.servers": "h:1", "topic": "t", "kafka.sasl.password": "hush"}
    with pytest.raises(InvalidRequest, match=r"option kafka.sasl.password is a secret") as refused:
        parse_write_options(options, ["value"], {"HOME": "/nowhere"})
    assert "hush" not in str(refused.value)
