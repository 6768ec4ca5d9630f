"""The object store is away while a node works and dies: the node serves, stays small, and catches up by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stratalog.formats.batches.records import NEXT_OFFSET, Record, encode_batch
from support.crash_drill import SETTINGS, paced
from support.fault_proxy import FaultProxy, Reset, Rule, proxy_in_thread
from support.history import Outcome, Place, Sent, anomalies
from support.ledger import commit, committed_offsets, create_topics, read_logs
from support.node_process import NodeProcess
from support.raw_client import RawClient, batch_of
from support.s3_servers import S3Server, moto_server
from support.waiting import eventually_sync

PLACES: list[Place] = [("orders", shard) for shard in range(4)]
VALUE_BYTES = 100_000
RECORDS = 600
WORKING: dict[str, Any] = SETTINGS | {
    "log.segment.bytes": 2 << 20,
    "log.local.retention.ms": -1,
    "remote.upload.chunk.bytes": 1 << 20,
    "remote.upload.bundle.bytes": 2 << 20,
    "remote.upload.max.inflight.bytes": 4 << 20,
    "remote.upload.timeout.ms": 5_000,
    "remote.orphan.grace.ms": 6_000,
}


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with moto_server() as server:
        yield server


@pytest.fixture
def proxy(server: S3Server) -> Iterator[FaultProxy]:
    """The way to the store, closed to begin with."""
    with proxy_in_thread(server.port) as proxy:
        proxy.add(Rule(Reset()))
        yield proxy


def write(node: NodeProcess, count: int) -> list[Sent]:
    sent = []
    with RawClient(node.bootstrap, timeout=30.0) as client:
        for number in range(count):
            place = PLACES[number % len(PLACES)]
            value = b"%d/%d " % (node.lives, number) + b"x" * VALUE_BYTES
            batch = encode_batch([Record(NEXT_OFFSET, time.time_ns() // 1_000_000, None, value)])
            produced = client.produce(place[0], batch, partition=place[1])
            assert produced.error_code == 0, produced
            sent.append(Sent("writer", place, value, Outcome.OK, produced.base_offset))
    return sent


def check(node: NodeProcess, sent: list[Sent]) -> None:
    with RawClient(node.bootstrap, timeout=30.0) as client:
        found = anomalies(sent, read_logs(client, PLACES))
    assert not found, [str(anomaly)[:200] for anomaly in found]


@pytest.mark.fault("store-unavailable-start", "uploads-slow-producers-fast")
def test_an_unreachable_store_at_start_stops_nothing_and_gets_everything_later(
    tmp_path: Path, server: S3Server, proxy: FaultProxy
) -> None:
    """60 MB wait for their upload, through a kill: memory does not grow with them, the restart does not read them all,
    and once the store answers they go up in order."""
    with NodeProcess(tmp_path / "data", server.through(proxy.port).url(), WORKING) as node:
        create_topics(node.bootstrap, {"orders": (4, {})})
        sent = write(node, RECORDS)
        assert node.peak_rss_bytes() < 300 << 20
        assert node.metrics()["stratalog_tier_store_away_seconds"] > 0
        waiting = RECORDS * VALUE_BYTES
        eventually_sync(paced(lambda: node.metrics()["stratalog_tier_unsent_bytes"] >= waiting, 0.1), 30)
        sealed = waiting // WORKING["log.segment.bytes"] - 2 * len(PLACES)
        eventually_sync(paced(lambda: node.metrics()["stratalog_log_sealed_total"] >= sealed, 0.1), 60)
        node.kill_and_restart()
        assert "torn tail" not in node.log_text()
        sent += write(node, 40)
        check(node, sent)
        proxy.clear()
        eventually_sync(paced(lambda: node.metrics()["stratalog_tier_unsent_bytes"] == 0, 0.2), 90)
        metrics = node.metrics()
        assert metrics["stratalog_tier_store_away_seconds"] == 0
        assert metrics["stratalog_tier_committed_bytes_total"] > (RECORDS + 40) * VALUE_BYTES * 0.99
        assert node.peak_rss_bytes() < 300 << 20


@pytest.mark.fault("node-crashes-data-uploaded")
def test_a_restart_after_much_was_written_scans_the_tails_and_not_the_whole(tmp_path: Path) -> None:
    """The checkpoint says how far a segment was good: behind it begins the scan, also after a kill."""
    settings = WORKING | {
        "log.segment.bytes": 1 << 30,
        "log.roll.ms": 3_600_000,
        "remote.storage.enable": False,
        "flush.interval.ms": 50,
    }
    with NodeProcess(tmp_path / "data", settings=settings) as node:
        create_topics(node.bootstrap, {"orders": (4, {})})
        sent = write(node, 2_000)
        eventually_sync(paced(lambda: node.metrics()["stratalog_flush_checkpoints_total"] >= 4, 0.1), 30)
        node.kill()
        before = time.monotonic()
        node.start()
        assert time.monotonic() - before < 20
        check(node, sent)


@pytest.mark.fault("store-unavailable-start")
def test_groups_need_no_store_to_come_back(tmp_path: Path, server: S3Server, proxy: FaultProxy) -> None:
    """However short local retention is: the log of group offsets goes up like any other, and its local copy stays."""
    proxy.clear()
    settings = WORKING | {"log.segment.bytes": 8_192, "log.roll.ms": 200, "log.local.retention.ms": 1}
    with NodeProcess(tmp_path / "data", server.through(proxy.port).url("groups"), settings) as node:
        create_topics(node.bootstrap, {"orders": (4, {})})
        done = 0
        with RawClient(node.bootstrap, timeout=30.0) as client:

            def work() -> bool:
                nonlocal done
                done += 1
                assert commit(client, "auditors", {PLACES[0]: done})[PLACES[0]] == 0
                assert client.produce("orders", batch_of(b"x" * 1_000)).error_code == 0
                return node.metrics()["stratalog_tier_local_copies_freed_total"] >= 8

            eventually_sync(paced(work, 0.02), 60)
        proxy.add(Rule(Reset()))
        node.kill_and_restart()
        with RawClient(node.bootstrap, timeout=30.0) as client:
            eventually_sync(lambda: is_loaded(client, done), 15)


def is_loaded(client: RawClient, offset: int) -> bool:
    try:
        return committed_offsets(client, "auditors") == {PLACES[0]: offset}
    except AssertionError:
        return False
