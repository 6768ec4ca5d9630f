"""Relations between settings: each can be broken, and says why it must not be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stratalog.model.errors import InvalidRequest
from stratalog.settings.load import load_process_settings
from stratalog.settings.process import ProcessSettings
from stratalog.settings.relations import PROCESS_RELATIONS, TOPIC_RELATIONS
from stratalog.settings.topic import TopicSettings
from stratalog.settings.wrong_values import fields_by_key

BROKEN = {
    "remote.upload.chunk.bytes": ("remote.upload.chunk.bytes=2097152", "remote.upload.bundle.bytes=1048576"),
    "remote.upload.bundle.bytes": ("remote.upload.bundle.bytes=134217728",),
    "remote.upload.timeout.ms": ("remote.upload.timeout.ms=60000", "remote.orphan.grace.ms=60000"),
    "remote.read.window.min.bytes": ("remote.read.window.min.bytes=33554432",),
    "remote.read.window.max.bytes": ("remote.read.window.max.bytes=134217728",),
    "message.max.bytes": ("message.max.bytes=104857600",),
    "group.min.session.timeout.ms": ("group.min.session.timeout.ms=2000000",),
    "log.local.retention.ms": ("log.local.retention.ms=2000", "log.retention.ms=1000"),
    "log.local.retention.bytes": ("log.local.retention.bytes=-1", "log.retention.bytes=1000"),
    "min.insync.replicas": ("min.insync.replicas=2",),
}


@pytest.mark.parametrize("relation", PROCESS_RELATIONS, ids=lambda relation: relation.rule)
def test_a_broken_relation_is_refused_with_both_values_and_the_reason(relation: object) -> None:
    rule, because = relation.rule, relation.because  # type: ignore[attr-defined]
    left, operator, right = rule.split(" ")

    with pytest.raises(InvalidRequest) as refused:
        load_process_settings(assignments=BROKEN[left])

    message = str(refused.value)
    assert left in message and right in message and operator in message
    assert because in message


def test_every_rule_names_settings_that_exist() -> None:
    for model, relations in ((ProcessSettings, PROCESS_RELATIONS), (TopicSettings, TOPIC_RELATIONS)):
        for relation in relations:
            left, _, right = relation.rule.split(" ")
            assert {left, right} <= fields_by_key(model).keys()


@pytest.mark.parametrize("unit", ["ms", "bytes"])
def test_a_topic_cannot_keep_local_copies_longer_than_the_data(unit: str) -> None:
    with pytest.raises(InvalidRequest, match=r"cannot (be kept longer|be larger) than the data"):
        TopicSettings.validate_overrides({f"local.retention.{unit}": "200", f"retention.{unit}": "100"})


@pytest.mark.fault("mistyped-object-store-url", "settings-node-honour-shards")
def test_what_one_node_cannot_honour_is_refused_at_start_before_anything_is_made(tmp_path: Path) -> None:
    for arguments, words in (
        (["--set", "default.replication.factor=3"], ("cluster of one node", "default.replication.factor=3")),
        (
            ["--set", "advertised.listeners=PLAINTEXT://host:9092"],
            ("NAME://HOST:PORT", "advertised.listeners"),
        ),
        (["--set", "num.partitions=100000"], ("num.partitions=100000", "10000")),
        (["--listen", "PLAINTEXT://127.0.0.1:0"], ("HOST:PORT",)),
        (["--bucket", "s3:bucket?secret_access_key=hush"], ("s3://BUCKET/PREFIX",)),
        (["--bucket", "bucket?secret_access_key=hush"], ("s3://BUCKET/PREFIX",)),
    ):
        command = [sys.executable, "-m", "stratalog_cli.entry", "start", "--data", str(tmp_path / "data"), *arguments]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ran.returncode == 2, ran.stderr
        assert all(word in ran.stderr for word in words) and "hush" not in ran.stderr + ran.stdout
        assert len(ran.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["-O"], ["-OO"]])
def test_python_without_assertions_is_refused(arguments: list[str]) -> None:
    command = [sys.executable, *arguments, "-m", "stratalog_cli.entry", "--version"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)

    assert ran.returncode == 1
    assert "refuses python -O" in ran.stderr
