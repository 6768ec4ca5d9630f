"""The power fails under the group log: what was committed long ago, or is in the bucket, is there afterwards."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, TopicPartition

from clients.test_group_log import NOTE, SHARDS, committed, committer
from support.power_cut import PoweredNode
from support.topics import create_topic
from support.waiting import eventually_sync

PLACE = TopicPartition("__consumer_offsets", 0)


class Everything(random.Random):
    """The disk loses all that was not flushed, but for names."""

    def randrange(self, *_: object) -> int:  # type: ignore[override]
        return 0

    def random(self) -> float:
        return 0.9


@pytest.mark.fault("power-fails-right-group")
def test_offsets_committed_long_ago_outlive_a_power_cut_after_a_snapshot(tmp_path: Path) -> None:
    node = PoweredNode(tmp_path / "data", None, {"offsets.topic.num.partitions": 1, "flush.interval.ms": 3_600_000})
    node.start()
    create_topic(node.bootstrap, "orders", SHARDS)
    once = committer(node, "once")
    once.commit(offsets=[TopicPartition("orders", shard, 7, "early") for shard in range(SHARDS)], asynchronous=False)
    often = committer(node, "often")
    count = 0

    def is_trimmed() -> bool:
        nonlocal count
        for _ in range(20):
            count += 1
            places = [TopicPartition("orders", shard, count, NOTE) for shard in range(SHARDS)]
            often.commit(offsets=places, asynchronous=False)
        return bool(often.get_watermark_offsets(PLACE, timeout=10)[0])

    eventually_sync(is_trimmed, 60)
    node.kill()
    node.cut(Everything())
    for client in (once, often):
        client.close()
    assert committed_after_restart(node) == [(7, "early")] * SHARDS


@pytest.mark.fault("shard-group-log-becomes")
def test_groups_whose_log_was_healed_from_the_bucket_are_served(tmp_path: Path) -> None:
    settings = {"offsets.topic.num.partitions": 1, "flush.interval.ms": 3_600_000, "remote.upload.interval.ms": 100}
    node = PoweredNode(tmp_path / "data", str(tmp_path / "bucket"), settings)
    node.start()
    create_topic(node.bootstrap, "orders", SHARDS)
    once = committer(node, "once")
    once.commit(offsets=[TopicPartition("orders", shard, 7, "early") for shard in range(SHARDS)], asynchronous=False)
    eventually_sync(lambda: node.metrics()["stratalog_tier_unsent_bytes"] == 0, 30)
    node.kill()
    assert node.cut(Everything())
    once.close()
    assert committed_after_restart(node) == [(7, "early")] * SHARDS


def committed_after_restart(node: PoweredNode) -> list[tuple[int, str]]:
    """What the group "once" has committed, as soon as that can be told."""
    node.start()
    found: list[tuple[int, str]] = []

    def is_answered() -> bool:
        try:
            found[:] = committed(node, "once", "orders")
        except KafkaException:
            return False  # its log is being healed, or read
        return True

    eventually_sync(is_answered, 20)
    node.stop()
    return found
