"""A disk that is really full: writes are refused with a reason a client may retry, all else continues, and it heals."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stratalog.formats.batches.records import NEXT_OFFSET, Record, encode_batch
from stratalog.kafka.error_codes import ErrorCode
from support.crash_drill import SETTINGS, command, paced
from support.files import files_below
from support.history import Outcome, Place, Sent, anomalies
from support.ledger import IdempotentSender, Ledger, commit, create_topics, read_logs
from support.node_process import NodeProcess
from support.raw_client import Produced, RawClient
from support.small_disk import NoSmallDisk, fill, free_bytes, small_disk
from support.waiting import eventually_sync

DISK_BYTES = 48 << 20
SPARE_BYTES = 8 << 20
PLACES: list[Place] = [("orders", 0), ("orders", 1), ("orders", 2)]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    try:
        with small_disk(tmp_path / "disk", DISK_BYTES) as folder:
            yield folder
    except NoSmallDisk as reason:
        pytest.skip(str(reason))


class Writer:
    """Writes batches of about 100 kB in turn to all places, and keeps account."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self.sent: list[Sent] = []

    def write(self) -> Produced:
        place = PLACES[len(self.sent) % len(PLACES)]
        value = b"%d " % len(self.sent) + b"x" * 100_000
        send = Sent("writer", place, value)
        self.sent.append(send)
        now_ms = time.time_ns() // 1_000_000
        batch = encode_batch([Record(NEXT_OFFSET, now_ms, None, value)])
        produced = self.client.produce(place[0], batch, partition=place[1])
        if produced.error_code == 0:
            send.outcome, send.offset = Outcome.OK, produced.base_offset
        else:
            send.outcome = Outcome.FAIL
        return produced

    def until_refused(self) -> Produced:
        for _ in range(2 * DISK_BYTES // 100_000):
            produced = self.write()
            if produced.error_code:
                return produced
        raise AssertionError("the disk is full by now, and the node still takes writes")

    def is_taken(self) -> bool:
        return self.write().error_code == 0

    def check(self, sent: list[Sent] | None = None) -> None:
        found = anomalies(self.sent if sent is None else sent, read_logs(self.client, PLACES))
        assert not found, [str(anomaly)[:200] for anomaly in found]


@pytest.mark.fault("disk-full-last-byte")
@pytest.mark.parametrize("policy", ["replicated", "fsync"])
@pytest.mark.parametrize("reserve", [SPARE_BYTES, 0], ids=["with a reserve", "to the last byte"])
def test_a_full_disk_refuses_writes_and_nothing_else_and_heals(
    disk: Path, tmp_path: Path, reserve: int, policy: str
) -> None:
    """Reads and uploads continue; local copies that are in the bucket are freed, writes resume by themselves; what was
    acknowledged is there, what was refused is not."""
    settings = SETTINGS | {
        "log.segment.bytes": 1 << 20,
        "log.local.retention.ms": -1,
        "remote.upload.chunk.bytes": 1 << 20,
        "remote.upload.bundle.bytes": 2 << 20,
        "remote.upload.max.inflight.bytes": 4 << 20,
        "disk.reserve.bytes": reserve,
        "flush.policy": policy,
    }
    with NodeProcess(disk / "data", str(tmp_path / "bucket"), settings) as node:
        create_topics(node.bootstrap, {"orders": (3, {})})
        with RawClient(node.bootstrap, timeout=60.0) as client:
            writer = Writer(client)
            refused = writer.until_refused()
            assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR, refused
            assert refused.error_message and "free" in refused.error_message, "it says what to do"
            if reserve:
                assert free_bytes(disk) > reserve // 2, "the reserve is for what makes room"
                assert writer.write().error_code == ErrorCode.KAFKA_STORAGE_ERROR
                assert node.metrics()["stratalog_disk_is_refusing_writes"] == 1
            writer.check()
            eventually_sync(paced(lambda: node.metrics()["stratalog_tier_unsent_bytes"] == 0, 0.2), 60)
            shorten = ("topics", "alter", "orders", "--set", "local.retention.ms=1", "--admin", node.admin)
            eventually_sync(paced(lambda: is_done(lambda: command(*shorten)), 0.2), 60)
            eventually_sync(paced(writer.is_taken, 0.2), 60)
            assert node.metrics()["stratalog_disk_is_refusing_writes"] == 0
            # The first question about a group makes the topic of offsets, and its log is read: 14 until then.
            eventually_sync(
                paced(lambda: commit(client, "auditors", {("orders", 0): 7}) == {("orders", 0): 0}, 0.2), 60
            )
            writer.check()
            # Without a reserve room for one write says nothing of the next: what is freed comes in rounds.
            for _ in range(30):
                eventually_sync(paced(writer.is_taken, 0.2), 60)
            writer.check()
        node.kill_and_restart()
        with RawClient(node.bootstrap, timeout=60.0) as client:
            writer.client = client
            writer.check()
            assert writer.is_taken()


@pytest.mark.fault("metadata-store-room", "disk-full-last-byte")
def test_a_disk_without_a_single_byte_left_heals_once_there_is_room(disk: Path, tmp_path: Path) -> None:
    """Not even metadata has room: what needs it is refused with a reason, and all continues once there is."""
    settings = SETTINGS | {"log.segment.bytes": 1 << 20, "log.local.retention.ms": -1, "disk.reserve.bytes": 0}
    with NodeProcess(disk / "data", str(tmp_path / "bucket"), settings) as node:
        create_topics(node.bootstrap, {"orders": (3, {})})
        with RawClient(node.bootstrap, timeout=60.0) as client:
            writer = Writer(client)
            for _ in range(150):
                assert writer.is_taken()
            fill(disk / "filler")
            writer.until_refused()
            numbers = itertools.count()
            refused = eventually_refused(lambda: create_another(node, next(numbers)))
            assert "space" in refused or "room" in refused, refused
            writer.check()
            (disk / "filler").unlink()
            eventually_sync(paced(writer.is_taken, 0.2), 60)
            eventually_sync(paced(lambda: is_done(lambda: create_topics(node.bootstrap, {"third": (1, {})})), 0.5), 60)
            for _ in range(30):
                assert writer.is_taken()
            command("topics", "alter", "orders", "--set", "local.retention.ms=1", "--admin", node.admin)
            eventually_sync(paced(lambda: len(files_below(disk, ".seg")) <= 6, 0.2), 60)
            writer.check()
        node.kill_and_restart()
        with RawClient(node.bootstrap, timeout=60.0) as client:
            writer.client = client
            writer.check()
            assert writer.is_taken()


def create_another(node: NodeProcess, number: int) -> None:
    """Raises: AssertionError when it is refused; done is also what is there when its answer was lost."""
    try:
        command("topics", "create", f"other-{number}", "--admin", node.admin)
    except AssertionError as refusal:
        if "exists already" not in str(refusal):
            raise


def is_done(work: Callable[[], object]) -> bool:
    try:
        work()
    except Exception:
        return False
    return True


def eventually_refused(work: Callable[[], object]) -> str:
    """Rocks that are refused tell why; a small write may still fit into a page that is there already."""
    for _ in range(500):
        try:
            work()
        except AssertionError as refusal:
            return str(refusal)
    raise AssertionError("the disk is full, and it is never refused")


@pytest.mark.fault("disk-full-last-byte")
def test_a_client_that_retries_gets_through_a_full_disk_without_losing_or_doubling_anything(
    disk: Path, tmp_path: Path
) -> None:
    settings = SETTINGS | {
        "log.segment.bytes": 1 << 20,
        "log.local.retention.ms": -1,
        "remote.upload.chunk.bytes": 1 << 20,
        "remote.upload.bundle.bytes": 2 << 20,
        "remote.upload.max.inflight.bytes": 4 << 20,
        "disk.reserve.bytes": SPARE_BYTES,
    }
    with NodeProcess(disk / "data", str(tmp_path / "bucket"), settings) as node:
        create_topics(node.bootstrap, {"orders": (3, {})})
        ledger = Ledger()
        sender = IdempotentSender("idempotent", ledger, node.bootstrap, PLACES, 1)
        sender.start()
        with RawClient(node.bootstrap, timeout=60.0) as client:
            Writer(client).until_refused()
            refusals = ledger.count(Outcome.OK)
            eventually_sync(lambda: len(ledger.copy()) > refusals + 200, 30)
            command("topics", "alter", "orders", "--set", "local.retention.ms=1", "--admin", node.admin)
            eventually_sync(lambda: ledger.count(Outcome.OK) > refusals + 200, 60)
            sender.stop()
            sender.join(90)
            assert sender.failure is None and not ledger.wrong_answers, ledger.wrong_answers
            mine = [
                anomaly for anomaly in anomalies(ledger.copy(), read_logs(client, PLACES)) if anomaly.kind != "phantom"
            ]
            assert not mine, [str(anomaly)[:200] for anomaly in mine]
