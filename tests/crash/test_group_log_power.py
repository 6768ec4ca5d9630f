"""The power fails right after the group log was trimmed: the snapshot that it was trimmed for is on the disk by then."""

from __future__ import annotations

import random
from pathlib import Path

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
    node.start()
    found: list[tuple[int, str]] = []

    def is_answered() -> bool:
        try:
            found[:] = committed(node, "once", "orders")
        except KafkaException:
            return False  # not yet read
        return True

    eventually_sync(is_answered, 30)
    node.stop()
    assert found == [(7, "early")] * SHARDS
