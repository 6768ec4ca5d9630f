"""A disk that takes writes and cannot keep them, under a real node: what was acknowledged after a flush is there when
the page cache is gone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog.formats.batches.records import NEXT_OFFSET, Record, encode_batch
from support.history import Outcome, Sent, anomalies
from support.ledger import Place, create_topics, read_logs
from support.node_process import NodeProcess
from support.raw_client import RawClient
from support.small_disk import NoSmallDisk
from support.thin_disk import ThinDisk, thin_disk

PLACES: list[Place] = [("orders", shard) for shard in range(5)]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[ThinDisk]:
    try:
        with thin_disk(tmp_path, at=tmp_path / "data" / "node") as disk:
            yield disk
    except NoSmallDisk as reason:
        pytest.skip(str(reason))


def write(client: RawClient, sent: list[Sent], count: int) -> int:
    """Returns how many were acknowledged."""
    taken = 0
    for _ in range(count):
        place = PLACES[len(sent) % len(PLACES)]
        value = b"%d " % len(sent) + b"x" * 60_000
        send = Sent("writer", place, value)
        sent.append(send)
        batch = encode_batch([Record(NEXT_OFFSET, time.time_ns() // 1_000_000, None, value)])
        produced = client.produce(place[0], batch, partition=place[1])
        if produced.error_code == 0:
            send.outcome, send.offset = Outcome.OK, produced.base_offset
            taken += 1
    return taken


@pytest.mark.fault("flush-fails")
def test_what_was_acknowledged_survives_pages_that_the_disk_never_took(disk: ThinDisk, tmp_path: Path) -> None:
    sent: list[Sent] = []
    settings = {"flush.policy": "fsync", "disk.reserve.bytes": 0, "flush.interval.ms": 20}
    with NodeProcess(tmp_path / "data", str(tmp_path / "bucket"), settings) as node:
        create_topics(node.bootstrap, {"orders": (len(PLACES), {})})
        with RawClient(node.bootstrap, timeout=60.0) as client:
            assert write(client, sent, 20) == 20
            disk.run_out()
            assert write(client, sent, 40) < 40, "the disk cannot keep what it takes"
        node.kill()
        disk.grow()
        node.start()
        with RawClient(node.bootstrap, timeout=60.0) as client:
            assert write(client, sent, 20) == 20
        node.kill()
        disk.forget_cache()
        node.start()
        with RawClient(node.bootstrap, timeout=60.0) as client:
            found = anomalies(sent, read_logs(client, PLACES))
            assert not found, [str(anomaly)[:200] for anomaly in found]
            assert write(client, sent, 5) == 5
