"""Clients of a topic whose readers are kept out of the bucket: the change is refused while it would hide records, and
records that are hidden otherwise are an error until a node has copied them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from stratalog.admin_api.client import AdminClient as NodeAdmin
from stratalog.admin_api.models import SealRequest, Tier
from support.node_process import NodeProcess
from support.topics import create_topic, produce, read, values_of
from support.waiting import eventually_sync

QUICK = {"remote.upload.interval.ms": 100, "log.retention.check.interval.ms": 100}
VALUES = [b"value-%d" % number for number in range(20)]
PATIENCE_S = 30


def freeze(node: NodeProcess, topic: str) -> None:
    """Seals the topic and waits until only the bucket has its records."""
    admin = NodeAdmin(node.admin)
    admin.seal(SealRequest(topic=topic))

    def is_cold() -> bool:
        segments = [segment for segment in admin.segments(topic) if segment.end_offset > segment.base_offset]
        return bool(segments) and all(segment.tier is Tier.COLD for segment in segments)

    eventually_sync(is_cold, PATIENCE_S)


def disable(node: NodeProcess, topic: str) -> None:
    """Raises: KafkaException."""
    change = ConfigEntry("remote.read.policy", "Disable", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)


def first_answer(node: NodeProcess, topic: str, offset: int, reset: str) -> bytes | KafkaError:
    """What a consumer gets that continues at an offset."""
    settings = {"bootstrap.servers": node.bootstrap, "group.id": "none", "auto.offset.reset": reset}
    consumer = Consumer(settings | {"enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, offset)])
    message = consumer.poll(PATIENCE_S)
    consumer.close()
    assert message is not None
    error = message.error()
    return (message.value() or b"") if error is None else error


@pytest.mark.fault("consumer-reads-bucket-remote-read-policy")
def test_the_change_is_refused_until_the_records_are_deleted_and_consumers_then_move_on(
    start_node: Callable[..., NodeProcess], topic: str, tmp_path: Path
) -> None:
    node = start_node(str(tmp_path / "bucket"), QUICK)
    create_topic(node.bootstrap, topic, settings={"local.retention.ms": 1})
    produce(node.bootstrap, topic, VALUES)
    freeze(node, topic)
    produce(node.bootstrap, topic, [b"later"])
    with pytest.raises(KafkaException) as refused:
        disable(node, topic)
    error = refused.value.args[0]
    assert error.code() == KafkaError.INVALID_CONFIG
    named = re.search(rf"topics trim {topic} --shard 0 --to-offset (\d+)`", error.str())
    assert named is not None and int(named[1]) == len(VALUES), error.str()
    assert values_of(read(node.bootstrap, topic, len(VALUES))) == VALUES, "consumers read on"

    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, int(named[1]))]).values()
    deleted.result(PATIENCE_S)
    disable(node, topic)
    assert first_answer(node, topic, 0, "earliest") == b"later"
    error = first_answer(node, topic, 0, "error")
    assert isinstance(error, KafkaError) and error.code() == KafkaError._AUTO_OFFSET_RESET


@pytest.mark.fault("consumer-reads-bucket-remote-read-policy")
def test_consumers_get_an_error_where_the_nodes_default_hides_records_and_read_on_once_they_are_copied(
    start_node: Callable[..., NodeProcess], topic: str, tmp_path: Path
) -> None:
    node = start_node(str(tmp_path / "bucket"), QUICK)
    create_topic(node.bootstrap, topic, settings={"local.retention.ms": 1})
    produce(node.bootstrap, topic, VALUES)
    freeze(node, topic)
    node.stop()
    objects = [path for path in (tmp_path / "bucket").rglob("*") if path.suffix in (".chunk", ".bundle")]
    away = {path: path.with_suffix(".away") for path in objects}
    for path, elsewhere in away.items():
        path.rename(elsewhere)  # no copy is made for now
    node.settings["remote.read.policy"] = "Disable"
    node.start()
    error = first_answer(node, topic, 0, "latest")
    assert isinstance(error, KafkaError) and error.code() == KafkaError.UNKNOWN, "neither a jump to the end nor silence"
    for path, elsewhere in away.items():
        elsewhere.rename(path)

    def is_read() -> bool:
        answer = first_answer(node, topic, 0, "latest")
        return isinstance(answer, bytes) and answer == VALUES[0]

    eventually_sync(is_read, PATIENCE_S)
    assert values_of(read(node.bootstrap, topic, len(VALUES))) == VALUES
