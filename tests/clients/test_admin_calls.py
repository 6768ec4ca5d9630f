"""The admin calls of confluent-kafka and kafka-python: topics, shards, settings, records, groups, log dirs, cluster."""

from __future__ import annotations

from collections.abc import Iterator

import kafka.errors
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)
from kafka import KafkaAdminClient
from kafka import TopicPartition as Shard
from kafka.admin import ConfigResource as Resource
from kafka.admin import NewTopic as Topic

from support import kafka_oracle
from support.group_members import ConfluentMember
from support.node_process import NodeProcess
from support.raw_client import RawClient
from support.topics import create_topic, delete_topic, produce, read
from support.waiting import eventually_sync

PATIENCE_S = 20


@pytest.fixture
def admin(node: NodeProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": node.bootstrap})


@pytest.fixture
def python_admin(node: NodeProcess) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=node.bootstrap)
    yield client
    client.close()


def error_code(future: object) -> int:
    with pytest.raises(KafkaException) as caught:
        future.result(PATIENCE_S)  # type: ignore[attr-defined]
    return int(caught.value.args[0].code())


# Topics -----------------------------------------------------------------------------------------------------------
def test_a_topic_is_made_described_and_deleted(admin: AdminClient, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 4, 1, config={"retention.ms": "1000000"})])[topic].result(PATIENCE_S)
    described = admin.list_topics(topic, timeout=PATIENCE_S).topics[topic]
    assert described.error is None
    assert [(p.id, p.leader, p.replicas, p.isrs) for p in described.partitions.values()] == [
        (shard, 1, [1], [1]) for shard in range(4)
    ]
    again = admin.create_topics([NewTopic(topic, 4, 1)])[topic]
    assert error_code(again) == KafkaError.TOPIC_ALREADY_EXISTS

    admin.delete_topics([topic])[topic].result(PATIENCE_S)
    assert topic not in admin.list_topics(timeout=PATIENCE_S).topics
    assert error_code(admin.delete_topics([topic])[topic]) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_dry_run_makes_nothing(admin: AdminClient, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 2, 1)], validate_only=True)[topic].result(PATIENCE_S)
    assert topic not in admin.list_topics(timeout=PATIENCE_S).topics


@pytest.mark.parametrize(
    ("name", "shards", "replicas", "config", "code"),
    [
        ("not a name!", 1, 1, {}, KafkaError.TOPIC_EXCEPTION),
        ("too-many-replicas", 1, 3, {}, KafkaError.INVALID_REPLICATION_FACTOR),
        ("no-shards", 0, 1, {}, KafkaError.INVALID_PARTITIONS),
        ("odd-setting", 1, 1, {"retention.seconds": "1"}, KafkaError.INVALID_CONFIG),
        ("odd-value", 1, 1, {"retention.ms": "soon"}, KafkaError.INVALID_CONFIG),
        ("recompressed", 1, 1, {"compression.type": "zstd"}, KafkaError.INVALID_CONFIG),
    ],
)
def test_what_cannot_be_made_is_refused_with_its_own_error(
    name: str, shards: int, replicas: int, config: dict[str, str], code: int, node: NodeProcess, admin: AdminClient
) -> None:
    with RawClient(node.bootstrap) as raw:
        creatable = kafka_oracle.request_class(19).CreatableTopic
        configs = [creatable.CreatableTopicConfig(version=5, name=key, value=value) for key, value in config.items()]
        wanted = creatable(
            version=5,
            name=name,
            num_partitions=shards,
            replication_factor=replicas,
            assignments=[],
            configs=configs,
        )
        answer = raw.call(
            19,
            5,
            topics=[wanted],
            timeout_ms=10_000,
            validate_only=False,
        )
    (result,) = answer.topics
    assert result.error_code == code
    assert result.error_message, "a refusal says why"
    assert name not in admin.list_topics(timeout=PATIENCE_S).topics


def test_shards_are_added_and_keep_what_they_have(node: NodeProcess, admin: AdminClient, topic: str) -> None:
    create_topic(node.bootstrap, topic, 2)
    produce(node.bootstrap, topic, [b"old"], partition=1)
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(PATIENCE_S)
    assert set(admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions) == set(range(5))
    produce(node.bootstrap, topic, [b"new"], partition=4)
    assert [message.value() for message in read(node.bootstrap, topic, 1, partition=1)] == [b"old"]
    assert error_code(admin.create_partitions([NewPartitions(topic, 3)])[topic]) == KafkaError.INVALID_PARTITIONS


# Settings -----------------------------------------------------------------------------------------------------------
def config_of(admin: AdminClient, topic: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    return dict(admin.describe_configs([resource])[resource].result(PATIENCE_S))


def test_settings_are_changed_one_by_one_and_shown_with_their_source(
    node: NodeProcess, admin: AdminClient, topic: str
) -> None:
    create_topic(node.bootstrap, topic, settings={"retention.ms": 500_000})
    assert config_of(admin, topic)["retention.ms"].value == "500000"
    assert config_of(admin, topic)["segment.bytes"].is_default

    change = ConfigResource(
        ConfigResource.Type.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry("segment.bytes", "65536", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
        ],
    )
    admin.incremental_alter_configs([change])[change].result(PATIENCE_S)
    entries = config_of(admin, topic)
    assert entries["segment.bytes"].value == "65536" and not entries["segment.bytes"].is_default
    assert entries["retention.ms"].value == "-1", "the node's own again"

    wrong = ConfigResource(
        ConfigResource.Type.TOPIC,
        topic,
        incremental_configs=[ConfigEntry("segment.bites", "1", incremental_operation=AlterConfigOpType.SET)],
    )
    assert error_code(admin.incremental_alter_configs([wrong])[wrong]) == KafkaError.INVALID_CONFIG


def test_a_changed_setting_takes_effect(node: NodeProcess, python_admin: KafkaAdminClient, topic: str) -> None:
    create_topic(node.bootstrap, topic)
    produce(node.bootstrap, topic, [bytes(5000)])
    python_admin.alter_configs([Resource("topic", topic, {"max.message.bytes": "1000"})])
    with pytest.raises(AssertionError, match="MSG_SIZE_TOO_LARGE"):
        produce(node.bootstrap, topic, [bytes(5000)])
    python_admin.reset_configs([Resource("topic", topic, {"max.message.bytes": None})])
    produce(node.bootstrap, topic, [bytes(5000)])


def test_the_nodes_own_settings_are_shown(node: NodeProcess, admin: AdminClient) -> None:
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    entries = admin.describe_configs([resource])[resource].result(PATIENCE_S)
    assert entries["message.max.bytes"].value == "1048588"
    assert entries["message.max.bytes"].is_read_only


# Records ------------------------------------------------------------------------------------------------------------
@pytest.mark.fault("retention-changes-read-asks")
def test_deleted_records_are_gone_for_every_reader(node: NodeProcess, admin: AdminClient, topic: str) -> None:
    create_topic(node.bootstrap, topic, settings={"segment.bytes": 2000})
    produce(node.bootstrap, topic, (b"%d" % number + bytes(90) for number in range(100)), linger_ms=0)
    deleted = admin.delete_records([TopicPartition(topic, 0, 40)])
    assert [future.result(PATIENCE_S).low_watermark for future in deleted.values()] == [40]

    with RawClient(node.bootstrap) as raw:
        (below,) = raw.fetch(topic, 39)
        (at_start,) = raw.fetch(topic, 40)
    assert (below.error_code, at_start.error_code, at_start.log_start_offset) == (1, 0, 40)
    assert read(node.bootstrap, topic, 60, offset=40)[0].offset() == 40

    everything = admin.delete_records([TopicPartition(topic, 0, -1)])
    assert [future.result(PATIENCE_S).low_watermark for future in everything.values()] == [100]
    (beyond,) = admin.delete_records([TopicPartition(topic, 0, 101)]).values()
    assert error_code(beyond) == KafkaError.OFFSET_OUT_OF_RANGE


def test_offsets_are_listed_by_kind(node: NodeProcess, admin: AdminClient, topic: str) -> None:
    create_topic(node.bootstrap, topic)
    produce(node.bootstrap, topic, [b"a", b"b", b"c"])
    shard = TopicPartition(topic, 0)
    for spec, offset in ((OffsetSpec.earliest(), 0), (OffsetSpec.latest(), 3), (OffsetSpec.max_timestamp(), None)):
        found = admin.list_offsets({shard: spec})[shard].result(PATIENCE_S)
        assert found.offset == offset if offset is not None else 0 <= found.offset <= 2


# Groups -------------------------------------------------------------------------------------------------------------
def test_groups_are_listed_described_altered_and_deleted(node: NodeProcess, admin: AdminClient, topic: str) -> None:
    create_topic(node.bootstrap, topic, 2)
    produce(node.bootstrap, topic, [b"x"] * 10)
    group = f"{topic}-g"
    member = ConfluentMember(node.bootstrap, group, [topic], client_id="the-member")
    eventually_sync(lambda: member.owned == {0, 1} and len(member.seen) == 10, PATIENCE_S)

    listed = {entry.group_id: entry for entry in admin.list_consumer_groups().result(PATIENCE_S).valid}
    assert listed[group].state.name == "STABLE"
    described = admin.describe_consumer_groups([group])[group].result(PATIENCE_S)
    (only,) = described.members
    assert (only.client_id, only.host) == ("the-member", "/127.0.0.1")
    assert {shard.partition for shard in only.assignment.topic_partitions} == {0, 1}
    assert error_code(admin.delete_consumer_groups([group])[group]) == KafkaError.NON_EMPTY_GROUP
    member.leave()

    moved = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 4)])
    admin.alter_consumer_group_offsets([moved])[group].result(PATIENCE_S)
    asked = ConsumerGroupTopicPartitions(group)
    found = admin.list_consumer_group_offsets([asked])[group].result(PATIENCE_S).topic_partitions
    assert {shard.partition: shard.offset for shard in found}[0] == 4

    admin.delete_consumer_groups([group])[group].result(PATIENCE_S)
    assert group not in {entry.group_id for entry in admin.list_consumer_groups().result(PATIENCE_S).valid}


def test_single_offsets_of_a_group_are_deleted(node: NodeProcess, python_admin: KafkaAdminClient, topic: str) -> None:
    create_topic(node.bootstrap, topic, 2)
    group = f"{topic}-g"
    shards = [Shard(topic, 0), Shard(topic, 1)]
    python_admin.alter_group_offsets(group, {shard: kafka.OffsetAndMetadata(7, "", -1) for shard in shards})
    python_admin.delete_group_offsets(group, [shards[0]])
    left = python_admin.list_group_offsets([group])[group]
    assert {shard: found.offset for shard, found in left.items() if found.offset >= 0} == {shards[1]: 7}


def test_offsets_of_a_deleted_topic_do_not_haunt_its_successor(
    node: NodeProcess, python_admin: KafkaAdminClient, topic: str
) -> None:
    group = f"{topic}-g"
    create_topic(node.bootstrap, topic)
    python_admin.alter_group_offsets(group, {Shard(topic, 0): kafka.OffsetAndMetadata(7, "", -1)})
    delete_topic(node.bootstrap, topic)
    create_topic(node.bootstrap, topic)

    def offsets() -> dict[Shard, int]:
        found = python_admin.list_group_offsets([group])[group]
        return {shard: entry.offset for shard, entry in found.items() if entry.offset >= 0}

    eventually_sync(lambda: offsets() == {}, PATIENCE_S)


# Node and cluster ---------------------------------------------------------------------------------------------------
def test_the_cluster_describes_itself(node: NodeProcess, admin: AdminClient, python_admin: KafkaAdminClient) -> None:
    described = admin.describe_cluster().result(PATIENCE_S)
    assert [f"{broker.host}:{broker.port}" for broker in described.nodes] == [node.bootstrap]
    assert described.cluster_id == python_admin.describe_cluster()["cluster_id"]
    assert described.controller.id == 1


def test_log_dirs_tell_how_much_each_shard_takes(node: NodeProcess, python_admin: KafkaAdminClient, topic: str) -> None:
    create_topic(node.bootstrap, topic, 2)
    produce(node.bootstrap, topic, [bytes(1000)] * 50, partition=1)
    (broker,) = python_admin.describe_log_dirs({topic: [0, 1]})
    (directory,) = broker["log_dirs"]
    assert directory["error_code"] == 0
    (found,) = directory["topics"]
    sizes = {partition["partition_index"]: partition["partition_size"] for partition in found["partitions"]}
    assert sizes[0] < 1000 and sizes[1] >= 50_000


def test_topics_with_several_clients_have_one_id(
    node: NodeProcess, admin: AdminClient, python_admin: KafkaAdminClient, topic: str
) -> None:
    python_admin.create_topics([Topic(topic, 2, 1)])
    (seen,) = python_admin.describe_topics([topic])
    assert seen["name"] == topic and str(seen["topic_id"]) != "00000000-0000-0000-0000-000000000000"
    with pytest.raises(kafka.errors.TopicAlreadyExistsError):
        python_admin.create_topics([Topic(topic, 2, 1)])
    python_admin.delete_topics([topic])
    assert topic not in python_admin.list_topics()


def test_each_leader_epoch_continues_unbroken_to_the_end_of_the_log(node: NodeProcess, topic: str) -> None:
    create_topic(node.bootstrap, topic, settings={"segment.bytes": 1000})
    produce(node.bootstrap, topic, (bytes(400) for _ in range(10)), batch_num_messages=1)
    request_class = kafka_oracle.request_class(23)
    wanted_topic = request_class.OffsetForLeaderTopic
    with RawClient(node.bootstrap) as raw:
        epochs: dict[int, int] = {}
        while len(epochs) < 10:
            (fetched,) = raw.fetch(topic, len(epochs))
            epochs |= {batch.base_offset: batch.epoch for batch in fetched.batches()}
        assert len(set(epochs.values())) > 3, "each segment has an epoch of its own"
        for epoch in set(epochs.values()):
            shard = wanted_topic.OffsetForLeaderPartition(
                version=3, partition=0, current_leader_epoch=-1, leader_epoch=epoch
            )
            answer = raw.call(23, 3, replica_id=-1, topics=[wanted_topic(version=3, topic=topic, partitions=[shard])])
            (found,) = answer.topics[0].partitions
            assert (found.leader_epoch, found.end_offset) == (epoch, 10)
