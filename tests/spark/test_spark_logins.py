"""Spark writes to a listener with TLS, logins and rules. No secret is in a plan, an event log, an error, or a command
line."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.pipeline_extra import NO_PIPELINE, needs_spark

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from confluent_kafka.admin import AclOperation, ResourceType

from stratalog.model.errors import Forbidden
from stratalog.objects import open_store
from stratalog_pipeline.jobs.export.export import ExportOptions, Shape, export
from stratalog_pipeline.jobs.runners import on_spark
from stratalog_pipeline.sending.login import login_with
from support.archived_tables import add_segment
from support.closed_node import ClosedNode
from support.cold_data import ColdShard
from support.topics import create_topic, read

pytestmark = needs_spark

SETTINGS = {
    "authorizer.class.name": "stratalog",
    "super.users": "User:ANONYMOUS",
    "offsets.topic.num.partitions": "1",
    "log.retention.ms": "-1",
}
SECRET = secrets.token_hex(12)

WRITING = """
import sys
from pathlib import Path
from stratalog_pipeline.jobs.session import local_session

servers, file, folder = sys.argv[1:]
session = local_session("logins", threads=1, memory="512m", folder=Path(folder))
rows = session.range(3).selectExpr("CAST(id AS string) AS value")

def write(topic, **options):
    writer = rows.write.format("stratalog").mode("append").option("kafka.bootstrap.servers", servers)
    writer.options(topic=topic, **options).save()

write("allowed", clientConfig=file)
for topic, options in (("denied", {"clientConfig": file}), ("allowed", {"kafka.sasl.password": sys.stdin.read()})):
    try:
        write(topic, **options)
    except Exception as error:
        print("refused:", error)
for one in Path("/proc").glob("[0-9]*/cmdline"):
    try:
        print(one.read_bytes().replace(b"\\0", b" ").decode(errors="replace"))
    except OSError:
        continue
session.stop()
"""
"""What it prints are errors of Spark, and the command lines of all processes of the machine."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosedNode]:
    with ClosedNode(tmp_path_factory.mktemp("closed"), SETTINGS) as node:
        node.set_user("alice", "SCRAM-SHA-512", SECRET)
        for topic in ("allowed", "denied", "cold"):
            create_topic(node.bootstrap, topic)
        node.allow("alice", AclOperation.WRITE, ResourceType.TOPIC, "allowed")
        yield node


@pytest.fixture
def client_file(node: ClosedNode, tmp_path: Path) -> Path:
    """Without a password."""
    values = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "ssl.truststore.location": node.ca,
    }
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return file


def test_rows_are_written_by_a_login_that_nothing_shows(node: ClosedNode, client_file: Path, tmp_path: Path) -> None:
    log = tmp_path / "events"
    log.mkdir()
    settings = {"enabled": "true", "dir": log.as_uri(), "compress": "false"}
    arguments = " ".join(f"--conf spark.eventLog.{key}={value}" for key, value in settings.items())
    done = subprocess.run(
        [sys.executable, "-c", WRITING, node.closed, str(client_file), str(tmp_path / "spark")],
        input=SECRET,
        env=os.environ | {"STRATALOG_PASSWORD": SECRET, "PYSPARK_SUBMIT_ARGS": f"{arguments} pyspark-shell"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(one.value() or b"" for one in read(node.bootstrap, "allowed", 3)) == [b"0", b"1", b"2"]
    assert f"User:alice has no right to WRITE of topic denied at {node.closed}" in done.stdout
    assert "option kafka.sasl.password is a secret" in done.stdout
    assert "java" in done.stdout, "command lines were seen"
    events = "".join(one.read_text() for one in log.rglob("*") if one.is_file())
    assert "AppendData" in events and "SparkListenerEnvironmentUpdate" in events
    for shown in (done.stdout, done.stderr, events):
        assert SECRET not in shown


def test_tasks_of_an_export_log_in_and_a_missing_right_keeps_its_words(
    spark: Any, node: ClosedNode, client_file: Path, tmp_path: Path
) -> None:
    async def fill() -> None:
        store = open_store(str(tmp_path / "bucket"))
        await add_segment(ColdShard(store), [[b"a", b"b"]])
        await store.close()

    asyncio.run(fill())
    with client_file.open("a") as opened:
        opened.write(f"sasl.password={SECRET}\n")
    options = ExportOptions(
        str(tmp_path / "bucket"), node.closed, Shape.KAFKA, login=login_with(str(client_file), {"linger.ms": "1"})
    )
    with pytest.raises(Forbidden, match=r"^User:alice has no right to WRITE of topic cold at .*nothing was sent"):
        export(options, on_spark(spark))
    node.allow("alice", AclOperation.WRITE, ResourceType.TOPIC, "cold")
    assert export(options, on_spark(spark)).records == 2
    assert [one.value() for one in read(node.bootstrap, "cold", 2)] == [b"a", b"b"]
