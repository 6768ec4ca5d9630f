"""Asking for a shard that does not exist: an error, and nothing is created."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient

from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES, decode_segment_header
from stratalog.kafka.error_codes import ErrorCode
from support.ledger import commit, create_topics, start_offset
from support.node_process import NodeProcess
from support.raw_client import RawClient, batch_of


@pytest.mark.fault("topic-deleted-uploaded-request")
def test_asking_for_an_unknown_shard_creates_nothing(start_node: Callable[..., NodeProcess]) -> None:
    node = start_node(settings={"auto.create.topics.enable": True})
    create_topics(node.bootstrap, {"orders": (2, {})})
    with RawClient(node.bootstrap) as client:
        for place in (("orders", 2), ("orders", 2**31 - 1), ("nowhere", 0)):
            topic, shard = place
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert client.fetch(topic, 0, partitions=(shard,))[0].error_code == unknown
            assert client.produce(topic, batch_of(b"x"), partition=shard).error_code == unknown
            try:
                start_offset(client, place)
            except ConnectionError as refusal:
                assert unknown.name in str(refusal)
            else:
                raise AssertionError(f"{place} has a log start")
            assert commit(client, "readers", {place: 1})[place] == unknown
    topics = AdminClient({"bootstrap.servers": node.bootstrap}).list_topics(timeout=10).topics
    assert {name: len(topic.partitions) for name, topic in topics.items() if not name.startswith("__")} == {"orders": 2}
    files = [path.read_bytes()[:SEGMENT_HEADER_BYTES] for path in (node.data_dir / "node").rglob("*.seg")]
    assert all(decode_segment_header(data, source="file").topic.startswith("__") for data in files)
