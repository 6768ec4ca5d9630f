"""Storage classes as clients and commands meet them: data is uploaded in its topic's class; of data that must be
restored first consumers skip nothing, commands say what it is, and reads continue once it was restored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient as KafkaAdmin
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from typer.testing import CliRunner

from stratalog.admin_api.client import AdminClient
from stratalog.admin_api.models import SealRequest, Tier
from stratalog_cli.entry import build_app
from support.class_server import ClassServer, class_server_in_thread
from support.cluster_ports import free_port
from support.node_process import NodeProcess
from support.topics import create_topic, produce, read, values_of
from support.waiting import eventually_sync

QUICK = {"remote.upload.interval.ms": 100, "log.retention.check.interval.ms": 100}
VALUES = [b"value-%d" % number for number in range(20)]
ARCHIVED = "stratalog_cold_read_archived_ranges_total"


@pytest.fixture
def bucket() -> Iterator[ClassServer]:
    with class_server_in_thread() as server:
        yield server


def freeze(node: NodeProcess, topic: str) -> None:
    """Seals the topic and waits until only the bucket has its records."""
    admin = AdminClient(node.admin)
    admin.seal(SealRequest(topic=topic))

    def is_cold() -> bool:
        segments = [segment for segment in admin.segments(topic) if segment.end_offset > segment.base_offset]
        return bool(segments) and all(segment.tier is Tier.COLD for segment in segments)

    eventually_sync(is_cold, 30)


@pytest.mark.fault("lifecycle-rule-moved-object")
def test_consumers_wait_for_a_restore_and_commands_say_what_is_archived(
    start_node: Callable[..., NodeProcess], topic: str, bucket: ClassServer, tmp_path: Path
) -> None:
    meta = f"127.0.0.1:{free_port()}"
    node = start_node(bucket.url(), QUICK | {"meta.listen": meta})
    create_topic(node.bootstrap, topic, settings={"local.retention.ms": 1})
    produce(node.bootstrap, topic, VALUES)
    freeze(node, topic)
    bucket.archive("DEEP_ARCHIVE", of=lambda key: key.endswith((".chunk", ".bundle")))
    settings = {"bootstrap.servers": node.bootstrap, "group.id": "none", "enable.auto.commit": False}
    consumer = Consumer(settings | {"auto.offset.reset": "latest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    eventually_sync(lambda: consumer.poll(0.2) is not None or node.metrics()[ARCHIVED] > 0, 30)
    assert node.metrics()[ARCHIVED] > 0
    before, requests = node.metrics()[ARCHIVED], 5
    for _ in range(requests):
        assert consumer.poll(0.1) is None, "neither a record nor an error that ends a consumer"
    assert node.metrics()[ARCHIVED] - before < requests, "the store is asked after pauses"

    (line,) = AdminClient(node.admin).status().damaged
    assert f"{topic}-0: segment 0-0: readers wait" in line and "archive class DEEP_ARCHIVE" in line
    restore = ["topics", "restore", topic, "--bucket", bucket.url(), "--admin", node.admin, "-o", "json"]
    # In another bucket, or of a shard that is not there, nothing is taken for readable.
    for mistake, words in (
        (["--bucket", bucket.url("elsewhere")], "has no object with these records"),
        (["--shard", "7"], f"topic {topic} has no shard 7"),
    ):
        ran = CliRunner().invoke(build_app(("topics",)), [*restore, *mistake, "--dry-run"])
        assert (ran.exit_code, ran.stdout) == (2, "") and words in ran.stderr, ran.output
    # `stratalog topics restore` asks before it spends money.
    ran = CliRunner().invoke(build_app(("topics",)), restore)
    assert ran.exit_code == 2 and "add --yes to restore" in ran.stderr and bucket.restores == []
    for is_dry in (True, False):
        choices = ["--days", "3", "--tier", "bulk", "--price-per-gib", "1", "--price-per-1000", "2"]
        ran = CliRunner().invoke(build_app(("topics",)), [*restore, *choices, "--dry-run" if is_dry else "--yes"])
        told = json.loads(ran.stdout)
        data = [key for key, one in bucket.objects.items() if one.storage_class == "DEEP_ARCHIVE"]
        assert told["to_restore"]["objects"] == len(data) > 0 and not told["is_readable"]
        assert told["to_restore"]["bytes"] == sum(len(bucket.objects[key].body) for key in data)
        assert told["to_restore"]["price"] > 0.002 * len(data)
        assert told["asked"] == (0 if is_dry else len(data)) and told["refused"] == []
        assert sorted(bucket.restores) == ([] if is_dry else sorted((key, 3, "Bulk") for key in data))
    ran = CliRunner().invoke(build_app(("doctor",)), ["doctor", bucket.url(), "--output", "json"])
    found_there = [one for place in json.loads(ran.stdout) for one in place["findings"]]
    findings = [one for one in found_there if "DEEP_ARCHIVE" in one["what"]]
    assert findings and {one["severity"] for one in findings} == {"warning"}
    assert "a restore is under way" in findings[0]["what"] and findings[0]["next_step"].startswith("wait until")

    places = ["--bucket", bucket.url(), "--meta", f"http://{meta}", "--topics", topic]
    ran = CliRunner().invoke(build_app(("pipeline",)), ["pipeline", "verify", *places, "--threads", "0", "-o", "json"])
    told = json.loads(ran.stdout)
    assert ran.exit_code == 0 and (told["findings"], told["archived"]) == ([], 1)

    bucket.end_restore()
    found: list[bytes] = []

    def is_read() -> bool:
        message = consumer.poll(0.5)
        if message is not None:
            assert message.error() is None
            found.append(message.value() or b"")
        return len(found) == len(VALUES)

    eventually_sync(is_read, 60)
    consumer.close()
    assert found == VALUES == values_of(read(node.bootstrap, topic, len(VALUES)))
    eventually_sync(lambda: AdminClient(node.admin).status().damaged == [], 30)


def alter(node: NodeProcess, topic: str, storage_class: str) -> None:
    """Raises: KafkaException."""
    change = ConfigEntry("remote.storage.class", storage_class, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    admin = KafkaAdmin({"bootstrap.servers": node.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(30)


def test_data_is_uploaded_in_the_class_of_its_topic(
    start_node: Callable[..., NodeProcess], topic: str, bucket: ClassServer
) -> None:
    """What was uploaded stays where it is, and small objects are in the bucket's default class."""
    node = start_node(bucket.url(), QUICK)
    create_topic(node.bootstrap, topic, settings={"local.retention.ms": 1, "remote.storage.class": "GLACIER_IR"})
    first = [b"%d" % number + bytes(1_000) for number in range(20)]
    produce(node.bootstrap, topic, first)
    freeze(node, topic)

    def classes() -> dict[str, list[str]]:
        """By the ends of names."""
        found: dict[str, list[str]] = {}
        for key, one in sorted(bucket.objects.items()):
            found.setdefault(key.rpartition(".")[2], []).append(one.storage_class)
        return found

    assert set(classes()["chunk"]) == {"GLACIER_IR"}
    assert {name for end, names in classes().items() if end != "chunk" for name in names} == {"STANDARD"}
    with pytest.raises(KafkaException) as refused:
        alter(node, topic, "GLACIER")
    assert refused.value.args[0].code() == KafkaError.INVALID_CONFIG
    alter(node, topic, "STANDARD_IA")
    produce(node.bootstrap, topic, first)
    freeze(node, topic)
    assert set(classes()["chunk"]) == {"GLACIER_IR", "STANDARD_IA"}
    location = AdminClient(node.admin).locate(topic, 0, 25)
    assert any("remote.storage.class=STANDARD_IA" in why for why in location.why)
    assert values_of(read(node.bootstrap, topic, 40)) == [*first, *first], "read at once"


@pytest.mark.fault("topic-storage-class-server")
def test_a_class_that_the_server_does_not_have_holds_up_no_upload(
    start_node: Callable[..., NodeProcess], topic: str, bucket: ClassServer
) -> None:
    bucket.classes = ("STANDARD",)
    node = start_node(bucket.url(), QUICK)
    create_topic(node.bootstrap, topic, settings={"local.retention.ms": 1, "remote.storage.class": "GLACIER_IR"})
    produce(node.bootstrap, topic, VALUES)
    freeze(node, topic)
    assert {one.storage_class for one in bucket.objects.values()} == {"STANDARD"}
    assert values_of(read(node.bootstrap, topic, len(VALUES))) == VALUES
    assert "does not take a storage class" in node.log_path.read_text()
