"""The recipe of docs/coming-from-kafka.md, as written there: records that are older than any retention are moved from
one cluster to another, none is missing, and none differs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from stratalog_cli.entry import build_app
from support.node_process import NodeProcess
from support.source_tree import REPOSITORY
from support.topics import create_topic

SHARDS = 3
RECORDS = 300
OLD_MS = 1_400_000_000_000
"""2014: years before any default retention."""
HASTE = {"log.retention.check.interval.ms": 100, "log.segment.bytes": 4_096, "offsets.topic.num.partitions": 1}
"""What retention may delete it deletes while the test runs."""


def commands_of_the_recipe() -> list[str]:
    page = (REPOSITORY / "docs" / "coming-from-kafka.md").read_text(encoding="utf-8")
    recipe = page[page.index("## How to move a topic") :]
    return [line.strip() for line in re.findall(r"^ +(stratalog .*)$", recipe, re.MULTILINE)]


def fill(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(RECORDS):
        producer.produce(
            topic,
            key=None if number % 7 == 0 else bytes([number % 256, 255]),
            value=None if number % 11 == 0 else b"value-%d" % number,
            headers=[("source", b"old"), ("raw", bytes([number % 256, 254])), ("none", None)] if number % 2 else [],
            partition=number % SHARDS,
            timestamp=OLD_MS + number,
        )
    assert producer.flush(60) == 0


@pytest.fixture
def clusters(tmp_path: Path) -> tuple[NodeProcess, NodeProcess]:
    return NodeProcess(tmp_path / "old", None, {}), NodeProcess(tmp_path / "new", None, HASTE)


def run(command: str, old: NodeProcess, new: NodeProcess) -> subprocess.CompletedProcess[str]:
    text = command.replace("OLD:9092", old.bootstrap).replace("NEW:9092", new.bootstrap).replace("NEW:9644", new.admin)
    text = re.sub(r"\bT\b", "flights", text).replace("--shards N", f"--shards {SHARDS}").replace("GROUP", "readers")
    text = text.replace("--timeout 10m", "--timeout 3s")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", text], env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_recipe_moves_records_that_are_older_than_any_retention(clusters: tuple[NodeProcess, NodeProcess]) -> None:
    """18,000 of 24,000 records were deleted within 10 s: the topic was created with a retention of seven days."""
    create, copy, compare, give_retention, reset = commands_of_the_recipe()
    with clusters[0] as old, clusters[1] as new:
        create_topic(old.bootstrap, "flights", SHARDS, {"retention.ms": -1})
        fill(old.bootstrap, "flights")
        assert run(create, old, new).returncode == 0
        copied = run(copy, old, new)
        assert f"{RECORDS} records written to flights" in copied.stderr, copied.stderr
        compared = run(compare, old, new)
        assert compared.returncode == 0, compared.stdout + compared.stderr
        assert f"flights: the same {RECORDS} records in {SHARDS} shards" in compared.stdout
        assert run(give_retention, old, new).returncode == 0
        placed = run(reset, old, new)
        assert placed.returncode == 0, placed.stderr


def test_compare_names_the_first_record_that_differs_in_anything(clusters: tuple[NodeProcess, NodeProcess]) -> None:
    """Values alone were compared: a lost key, header or timestamp passed."""
    app = build_app(("topics",))
    record = {"key": b"k", "value": b"v", "headers": [("h", b"1")], "timestamp": OLD_MS, "partition": 0}
    others = {
        "key": {**record, "key": b"other"},
        "value": {**record, "value": None},
        "headers": {**record, "headers": [("h", b"2")]},
        "timestamp": {**record, "timestamp": OLD_MS + 1},
        "count": None,
    }
    with clusters[0] as old, clusters[1] as new:
        sides = {side: Producer({"bootstrap.servers": side.bootstrap}) for side in (old, new)}
        for name, other in others.items():
            for side, second in ((old, record), (new, other)):
                create_topic(side.bootstrap, name, 1, {"retention.ms": -1})
                for one in (record, second):
                    if one is not None:
                        sides[side].produce(name, **one)
                assert sides[side].flush(60) == 0
            ran = CliRunner().invoke(
                app, ["topics", "compare", name, "--with", old.bootstrap, "--bootstrap", new.bootstrap]
            )
            assert ran.exit_code == 1 and "1 shard of 1 not the same" in ran.output, ran.output
            assert re.search(rf"0 +1 +{name} +1 +{'-' if other is None else 1}", ran.output), ran.output
