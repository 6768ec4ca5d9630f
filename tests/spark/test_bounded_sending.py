"""A Kafka that takes nothing for a while costs a task no more memory than the queue has, and loses nothing."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from confluent_kafka import Consumer, TopicPartition

from stratalog_pipeline.sending.login import login_with
from stratalog_pipeline.sending.producer import QUEUE_BYTES, Sender
from support.node_process import NodeProcess
from support.topics import create_topic, read
from support.waiting import eventually_sync

RECORD_BYTES, RECORDS = 64 << 10, 1_600
"""Three times what the queue holds."""

SENDING = f"""
import sys
from stratalog_pipeline.sending.producer import Sender
servers, what = sys.argv[1:]
sender = Sender(servers)
sender.send("warm", None, b"v", [], None, 0)
assert sender.flush(60)
print("begin", flush=True)
sys.stdin.readline()
for number in range({RECORDS}):
    name, filling = b"%08d" % number, b"%08d" % number * {RECORD_BYTES // 8}
    match what:
        case "values": sender.send("t", name, filling, [], None, 0)
        case "keys": sender.send("t", name + filling, name, [], None, 0)
        case "headers": sender.send("t", name, name, [("h", filling)], None, 0)
assert sender.flush(120)
print("acknowledged", sender.acknowledged, sender.queued_bytes, flush=True)
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "data", settings={"log.retention.ms": -1}) as running:
        for topic in ("t", "warm"):
            create_topic(running.bootstrap, topic)
        yield running


def end_of(node: NodeProcess) -> int:
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "none"})
    end = consumer.get_watermark_offsets(TopicPartition("t", 0), timeout=30)[1]
    consumer.close()
    return int(end)


def memory_of(pid: int) -> int:
    found = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) << 10


class Steady:
    """Whether a process's memory and CPU time have come to rest: it waits."""

    def __init__(self, pid: int) -> None:
        self.pid, self.before, self.times = pid, 0, 0

    def __call__(self) -> bool:
        now = memory_of(self.pid) >> 20
        self.times = self.times + 1 if now == self.before else 0
        self.before = now
        return self.times > 100


@pytest.mark.fault("task-writes-exports-memory")
@pytest.mark.parametrize("what", ["values", "keys", "headers"])
def test_what_waits_for_a_stopped_kafka_is_bounded_and_comes_once_it_continues(node: NodeProcess, what: str) -> None:
    """Seen from outside, in the memory of the process that sends."""
    command = [sys.executable, "-c", SENDING, node.bootstrap, what]
    sending = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert sending.stdin is not None and sending.stdout is not None
    try:
        assert sending.stdout.readline() == "begin\n"
        before = memory_of(sending.pid)
        node.pause()
        try:
            sending.stdin.write("go on\n")
            sending.stdin.flush()
            eventually_sync(lambda: memory_of(sending.pid) - before > QUEUE_BYTES // 2, timeout=30)
            eventually_sync(Steady(sending.pid), timeout=60)
            grown = memory_of(sending.pid) - before
        finally:
            node.resume()
        # The records, once more as requests that are on their way, and what an allocator leaves between them.
        assert QUEUE_BYTES // 2 < grown < 2 * QUEUE_BYTES + (8 << 20), f"{grown >> 20} MiB"
        assert sending.stdout.readline() == f"acknowledged {RECORDS + 1} 0\n"
        assert sending.wait(30) == 0
    finally:
        sending.kill()
        sending.wait(10)
    assert end_of(node) == RECORDS
    (last,) = read(node.bootstrap, "t", 1, offset=RECORDS - 1)
    assert b"%08d" % (RECORDS - 1) in ((last.key() or b"")[:8], (last.value() or b"")[:8])


@pytest.mark.fault("task-writes-exports-memory")
def test_the_queue_is_never_fuller_than_it_may_be_and_a_larger_record_goes_alone(node: NodeProcess) -> None:
    login = login_with("", {"queue.buffering.max.messages": "1000000", "linger.ms": "5"})
    sender = Sender(node.bootstrap, login)
    fullest = [0]

    def send() -> None:
        for number in range(RECORDS):
            sender.send("t", None, b"%08d" % number, [("h", b"x" * RECORD_BYTES)], None, 0)
            fullest[0] = max(fullest[0], sender.queued_bytes)

    node.pause()
    sending = threading.Thread(target=send)
    sending.start()
    try:
        eventually_sync(lambda: sender.queued_bytes > QUEUE_BYTES - 2 * RECORD_BYTES, timeout=30)
        assert sending.is_alive(), "it waits"
    finally:
        node.resume()
        sending.join(120)
    assert sender.flush(60) and sender.queued_bytes == 0
    assert QUEUE_BYTES - 2 * RECORD_BYTES < fullest[0] <= QUEUE_BYTES
    assert (sender.acknowledged, end_of(node)) == (RECORDS, RECORDS)
