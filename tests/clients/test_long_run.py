"""Minutes of everything at once: four producers, two groups, small segments that roll, move and are freed, kill -9."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
import pytest

from support.foreign_clients import CODECS
from support.group_members import ConfluentMember, KafkaPythonMember, all_seen
from support.node_process import NodeProcess
from support.topics import create_topic, read, values_of
from support.waiting import eventually_sync

SHARDS, RECORDS = 4, 60_000
SETTINGS = {
    "log.retention.check.interval.ms": 200,
    "remote.upload.interval.ms": 200,
    "remote.upload.chunk.bytes": 20_000,
}


class Writer(threading.Thread):
    """Writes numbered records to one shard, idempotently, until all are acknowledged."""

    def __init__(self, bootstrap: str, topic: str, shard: int) -> None:
        super().__init__(daemon=True)
        self._topic, self._shard = topic, shard
        self.acknowledged = 0
        self.failures: list[object] = []
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "compression.type": CODECS[shard % len(CODECS)],
                "linger.ms": 2,
                "batch.num.messages": 100,
                "message.timeout.ms": 300_000,
                "retry.backoff.ms": 20,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        for value in written_to(self._shard):
            self._producer.produce(self._topic, value, partition=self._shard, on_delivery=self._note)
            while len(self._producer) > 2000:
                self._producer.poll(0.01)
        self._producer.flush(300)

    def _note(self, error: object, _: object) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failures.append(error)


def written_to(shard: int) -> list[bytes]:
    return [b"%d/%d " % (shard, number) + b"x" * 50 for number in range(RECORDS)]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(3))
def test_each_record_once_and_in_order_and_seen_by_every_group(
    seed: int, start_node: Callable[..., NodeProcess], topic: str, tmp_path: Path
) -> None:
    node = start_node(bucket=str(tmp_path / "bucket"), settings=SETTINGS)
    create_topic(node.bootstrap, topic, SHARDS, {"segment.bytes": 100_000, "local.retention.ms": 1000})
    groups = [
        [ConfluentMember(node.bootstrap, "one", [topic]), ConfluentMember(node.bootstrap, "one", [topic])],
        [KafkaPythonMember(node.bootstrap, "two", [topic], reconnect_backoff_max_ms=200)],
    ]
    writers = [Writer(node.bootstrap, topic, shard) for shard in range(SHARDS)]
    for writer in writers:
        writer.start()
    moments = random.Random(seed)
    while any(writer.is_alive() for writer in writers):
        time.sleep(moments.uniform(0.1, 2.0))  # the moment of the kill is the test's input
        node.kill_and_restart()
    assert [(writer.acknowledged, writer.failures) for writer in writers] == [(RECORDS, [])] * SHARDS

    for shard in range(SHARDS):
        values = values_of(read(node.bootstrap, topic, RECORDS, partition=shard))
        assert values == written_to(shard), f"shard {shard}"
    everything = {value for shard in range(SHARDS) for value in written_to(shard)}
    for members in groups:
        eventually_sync(lambda members=members: all_seen(members) == everything, 120)  # type: ignore[misc]
        for member in members:
            member.leave()
    node.stop()
