"""Fifty topics of valid and hostile shapes, written through a node, and all that the pipeline makes of their cold data.

What the jobs make is compared with what a Kafka client reads, and with what the libraries of the formats read of that
(`support.hostile_topics`): each record is an equal row, or a dead letter with the reason, once.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)
pytest.importorskip("deltalake", reason=NO_PIPELINE)
pytest.importorskip("pyiceberg", reason=NO_PIPELINE)

import pyarrow.parquet as pq
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, Producer, TopicPartition
from typer.testing import CliRunner, Result

from stratalog.admin_api.client import AdminClient
from stratalog.admin_api.models import SealRequest
from stratalog_cli.entry import build_app
from stratalog_pipeline.jobs.columns.table_layout import TableFormat
from stratalog_pipeline.jobs.columns.topic_folder import topic_folder
from stratalog_pipeline.source.options import Mode, parse_options
from stratalog_pipeline.source.planning import columns_of, plan, tables
from support.hostile_topics import Story, is_same, says_nothing, stories
from support.node_process import NodeProcess
from support.topics import create_topic
from support.waiting import eventually_sync

pytestmark = pytest.mark.timeout(600)  # the first test waits for fifty topics to be written, sealed and uploaded

APP = build_app()
SEED = int(os.environ.get("TOPICS_SEED", "27"))
STORIES = {one.name: one for one in stories(SEED)}
SETTINGS = {"remote.upload.interval.ms": 50, "meta.snapshot.interval.ms": 500, "socket.request.max.bytes": 20_000_000}
OWN = ("_shard", "_offset", "_timestamp", "_key", "by_date")
WITH_LOGS = ("plain-0", "numbers", "nothing", "times", "avro.damaged", "proto-hurt", "headers", "...")
"""Of these, tables with a log are made too."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A record, as a client sees it."""

    shard: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_us: int | None
    """None: there is none, or one that no column holds."""

    @property
    def place(self) -> tuple[int, int]:
        return self.shard, self.offset


@dataclass(frozen=True, slots=True)
class Written:
    bucket: str
    seen: dict[str, list[Seen]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    """All topics are sealed, and complete in the bucket; the node is gone."""
    root = tmp_path_factory.mktemp("fifty")
    with NodeProcess(root / "data", str(root / "bucket"), SETTINGS) as node:
        for story in STORIES.values():
            create_topic(node.bootstrap, story.name, story.shards, story.settings)
        _send(node)
        seen = _read(node)
        admin = AdminClient(node.admin, timeout_s=300)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: admin.seal(SealRequest(topic=name)), STORIES))
        expected = {(name, one.shard) for name, records in seen.items() for one in records}

        def is_complete() -> bool:
            complete = {(one.topic, one.shard) for one in admin.segments() if one.remote_state == "complete"}
            return expected <= complete

        eventually_sync(is_complete, 60)
        # A topic without a record is known to the bucket by the snapshot of the metadata alone.
        verify = ("pipeline", "verify", "--bucket", str(root / "bucket"), "--topics", "Empty", "--threads", "0")
        eventually_sync(lambda: CliRunner().invoke(APP, verify).exit_code == 0, 60)
    yield Written(str(root / "bucket"), seen)


def _send(node: NodeProcess) -> None:
    producers, failed = dict[str, Producer](), list[str]()
    for story in STORIES.values():
        producer = producers.get(story.codec)
        if producer is None:
            settings = {"compression.type": story.codec, "message.max.bytes": 10_000_000, "linger.ms": 20}
            producer = producers[story.codec] = Producer({"bootstrap.servers": node.bootstrap, **settings})
        for one in story.records:
            producer.produce(
                story.name,
                one.value,
                one.key,
                one.shard,
                timestamp=one.timestamp_ms,
                headers=list(one.headers),
                on_delivery=lambda error, _: error and failed.append(str(error)),
            )
    assert not any(producer.flush(60) for producer in producers.values())
    assert failed == []


def _kept(kind: int, timestamp_ms: int) -> int | None:
    is_none = kind == TIMESTAMP_NOT_AVAILABLE or timestamp_ms == -1
    return None if is_none or timestamp_ms * 1_000 >= 1 << 63 else timestamp_ms * 1_000


def _read(node: NodeProcess) -> dict[str, list[Seen]]:
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "none", "fetch.wait.max.ms": 20})
    consumer.assign([TopicPartition(one.name, n, 0) for one in STORIES.values() for n in range(one.shards)])
    seen: dict[str, list[Seen]] = {name: [] for name in STORIES}

    def has_all() -> bool:
        for one in consumer.consume(500, 0.2):
            assert one.error() is None, one.error()
            headers = [(name, value) for name, value in one.headers() or []]
            seen[one.topic()].append(
                Seen(one.partition(), one.offset(), one.key(), one.value(), headers, _kept(*one.timestamp()))
            )
        return all(len(seen[name]) >= len(story.records) for name, story in STORIES.items())

    eventually_sync(has_all, 60)
    consumer.close()
    for name, story in STORIES.items():
        assert sorted((one.key or b"", one.value or b"") for one in seen[name]) == sorted(
            (one.key or b"", one.value or b"") for one in story.records
        )
    return seen


# Archives -----------------------------------------------------------------------------------------------------------
def archive(written: Written, story: Story, form: TableFormat, folder: Path) -> Result:
    words = ["pipeline", "archive", story.name, "--bucket", written.bucket, "--to", str(folder / "table")]
    words += ["--kind", story.kind, "--format", form.value, "--threads", "0", "--output", "json"]
    schemas = folder / "schemas"
    schemas.mkdir(exist_ok=True)
    for name, body in story.schemas.items():
        (schemas / name).write_bytes(body)
    if story.schemas:
        words += ["--schema", str(schemas if len(story.schemas) > 1 else schemas / next(iter(story.schemas)))]
    words += ["--message", story.message] if story.message else []
    words += ["--confluent"] if story.is_confluent else []
    return CliRunner().invoke(APP, words)


def files_of(folder: Path) -> list[dict[str, Any]]:
    """Rows as the files have them. Times are numbers: some are in no year that Python has."""
    rows = []
    for file in folder.rglob("*.parquet"):
        table = pq.ParquetFile(file).read()
        for name in ("_timestamp", "timestamp"):
            if name in table.schema.names:
                at = table.schema.get_field_index(name)
                table = table.set_column(at, name, table.column(name).cast("int64"))
        rows += table.to_pylist()
    return rows


def check_archived(story: Story, records: list[Seen], told: dict[str, Any], folder: Path) -> None:
    topic = folder / "table" / topic_folder(story.name)
    rows, dead = files_of(topic / "data"), files_of(topic / "dead")
    names = ("shard", "offset") if story.kind == "raw" else ("_shard", "_offset")
    by_place = {(row[names[0]], row[names[1]]): row for row in rows}
    letters = {(row["shard"], row["offset"]): row for row in dead}
    assert (len(by_place), len(letters)) == (len(rows), len(dead)) == (told["rows"], told["dead"])
    assert sorted([*by_place, *letters]) == sorted(one.place for one in records)
    for one in records:
        if one.place in letters:
            letter = letters[one.place]
            assert (letter["key"], letter["value"]) == (one.key, one.value)
            assert letter["error"]
            if is_read(story, one):
                assert letter["error"].startswith("field "), f"{one}: {letter['error']}"
        elif story.kind == "raw":
            check_raw(by_place[one.place], one)
        else:
            check_row(story, by_place[one.place], one)


def is_read(story: Story, one: Seen) -> bool:
    try:
        assert story.oracle is not None
        assert one.value is not None
        story.oracle(one.value)
        return story.is_legal(one.value)
    except Exception:
        return False


def check_raw(row: dict[str, Any], one: Seen) -> None:
    headers = [(header["key"], header["value"]) for header in row["headers"]]
    assert (row["key"], row["value"], headers) == (one.key, one.value, one.headers)


def check_row(story: Story, row: dict[str, Any], one: Seen) -> None:
    assert story.oracle is not None
    says = {} if one.value is None else story.oracle(one.value)
    has = {name: value for name, value in row.items() if name not in OWN}
    says = {name: value for name, value in says.items() if name in has or not says_nothing(value)}
    assert row["_key"] == one.key
    assert is_same(says, has), f"{story.name} {one}: {has}"


def check_one(written: Written, story: Story, form: TableFormat, folder: Path) -> None:
    ran = archive(written, story, form, folder)
    if story.refused:
        assert (ran.exit_code, story.refused in ran.output) == (2, True), ran.output
        return
    assert ran.stdout.startswith("{"), ran.output
    told = json.loads(ran.stdout)
    assert ran.exit_code == (1 if told["dead"] and not told["rows"] else 0)
    check_archived(story, written.seen[story.name], told, folder)
    again = json.loads(archive(written, story, form, folder).stdout)
    assert (again["segments"], again["rows"], again["already"]) == (0, 0, told["segments"])


@pytest.mark.parametrize("name", sorted(STORIES))
def test_each_record_is_an_equal_row_or_a_dead_letter(written: Written, tmp_path: Path, name: str) -> None:
    check_one(written, STORIES[name], TableFormat.PARQUET, tmp_path)


@pytest.mark.parametrize("form", [TableFormat.DELTA, TableFormat.ICEBERG])
@pytest.mark.parametrize("name", WITH_LOGS)
def test_tables_with_a_log_have_the_same_rows(written: Written, tmp_path: Path, name: str, form: TableFormat) -> None:
    check_one(written, STORIES[name], form, tmp_path)


# What else reads them -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", ["jsonl", "parquet"])
def test_an_export_has_each_record_once(written: Written, tmp_path: Path, shape: str) -> None:
    words = ["pipeline", "export", "--bucket", written.bucket, "--to", str(tmp_path), "--as", shape, "--threads", "0"]
    ran = CliRunner().invoke(APP, [*words, "--output", "json"])
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["records"] == sum(map(len, written.seen.values()))
    for name, records in written.seen.items():
        folder = tmp_path / topic_folder(name)
        rows = files_of(folder) if shape == "parquet" else lines_of(folder)
        found = [exported(row) for row in rows]
        assert all(row["topic"] == name for row in rows)
        wrong = [(one, other) for one, other in zip(in_order(found), in_order(records), strict=True) if one != other]
        assert wrong == [], name
    assert json.loads(CliRunner().invoke(APP, [*words, "--output", "json"]).stdout)["records"] == 0


def lines_of(folder: Path) -> list[dict[str, Any]]:
    rows = []
    for file in folder.rglob("*.jsonl"):
        for line in file.read_bytes().split(b"\n")[:-1]:
            row = json.loads(line)
            for one in (row, *row["headers"]):
                for name in ("key", "value"):
                    if f"{name}_base64" in one:
                        one[name] = base64.b64decode(one[f"{name}_base64"])
                    elif name in one and isinstance(one[name], str) and not (one is not row and name == "key"):
                        one[name] = one[name].encode()
            at_ms = row["timestamp_ms"]
            rows.append({**row, "timestamp": None if at_ms is None else at_ms * 1_000})
    return rows


def exported(row: dict[str, Any]) -> Seen:
    headers = [(one["key"], one["value"]) for one in row["headers"]]
    return Seen(row["shard"], row["offset"], row["key"], row["value"], headers, row["timestamp"])


def test_the_source_reads_each_record_once(written: Written) -> None:
    options = parse_options({"path": written.bucket, "partitionBytes": "100k"}, Mode.BATCH)
    columns = columns_of(["topic", "shard", "offset", "key", "value", "headers", "timestamp"])
    cluster_id, works = plan(options, options.asked)
    found: dict[str, list[Seen]] = {name: [] for name in STORIES}
    for ranges in works:
        for batch in tables(options, cluster_id, ranges, columns, options.asked):
            at = batch.schema.get_field_index("timestamp")
            for row in batch.set_column(at, "timestamp", batch.column(at).cast("int64")).to_pylist():
                found[row["topic"]].append(exported(row))
    for name, records in written.seen.items():
        wrong = [
            (one, other) for one, other in zip(in_order(found[name]), in_order(records), strict=True) if one != other
        ]
        assert wrong == [], name


def in_order(records: list[Seen]) -> list[Seen]:
    return sorted(records, key=lambda one: one.place)


def test_all_of_them_are_whole(written: Written) -> None:
    words = ["pipeline", "verify", "--bucket", written.bucket, "--threads", "0", "--output", "json"]
    ran = CliRunner().invoke(APP, words)
    assert (ran.exit_code, json.loads(ran.stdout)["findings"]) == (0, [])
