"""Our Metadata codec against kafka-python: identical bytes in every version."""

from __future__ import annotations

import pytest

from stratalog.kafka.frames import encode_response_head
from stratalog.kafka.metadata import (
    BrokerAddress,
    PartitionReplicas,
    encode_metadata,
    encode_partition,
    encode_topic,
    shape_of_version,
)
from support.kafka_oracle import filled, frame_of, response_class

VERSIONS = range(13)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_has_kafka_pythons_bytes(version: int) -> None:
    for fill in ("full", "empty", "null"):
        oracle = filled(response_class(3), version, fill)
        oracle.throttle_time_ms = 0
        oracle.authorized_operations = None
        for topic in oracle.topics:
            topic.authorized_operations = None
        topics = [
            encode_topic(
                version,
                topic.error_code,
                topic.name,
                topic.topic_id,
                topic.is_internal,
                [
                    encode_partition(
                        version,
                        PartitionReplicas(
                            p.error_code,
                            p.partition_index,
                            p.leader_id,
                            p.leader_epoch,
                            tuple(p.replica_nodes),
                            tuple(p.isr_nodes),
                            tuple(p.offline_replicas),
                        ),
                    )
                    for p in topic.partitions
                ],
            )
            for topic in oracle.topics
        ]
        brokers = [BrokerAddress(b.node_id, b.host, b.port, b.rack) for b in oracle.brokers]
        if fill == "null" and version >= 2:
            oracle.cluster_id = "c"  # ours always has one
        body = encode_metadata(version, brokers, oracle.cluster_id, oracle.controller_id, topics)
        assert encode_response_head(3, version, 77, len(body)) + body == frame_of(oracle)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_partition_with_one_replica_says_what_any_other_says(version: int) -> None:
    cls = response_class(3)
    partition = cls.MetadataResponseTopic.MetadataResponsePartition(
        version=version,
        error_code=0,
        partition_index=4,
        leader_id=1,
        leader_epoch=9,
        replica_nodes=[1],
        isr_nodes=[1],
        offline_replicas=[],
    )
    topic = cls.MetadataResponseTopic(version=version, name="orders", error_code=0, partitions=[partition])
    oracle = cls(version=version, cluster_id="c", controller_id=1, topics=[topic], brokers=[], throttle_time_ms=0)
    place = encode_partition(version, PartitionReplicas(0, 4, 1, 9, (1,), (1,)))
    piece = encode_topic(version, 0, "orders", None, False, [place])
    body = encode_metadata(version, [], "c", 1, [piece])
    assert encode_response_head(3, version, 77, len(body)) + body == frame_of(oracle)


def test_versions_of_one_shape_share_a_topics_bytes() -> None:
    place = PartitionReplicas(0, 0, 1, 3, (1, 2, 3), (1, 2), (3,))
    by_shape: dict[int, set[bytes]] = {}
    for version in VERSIONS:
        piece = encode_topic(version, 0, "orders", None, False, [encode_partition(version, place)])
        by_shape.setdefault(shape_of_version(version), set()).add(piece)
    assert all(len(pieces) == 1 for pieces in by_shape.values())
