"""Malformed, oversized, slow, silent and greedy connections: closed or held back, with a reason, while others
continue."""

from __future__ import annotations

import json
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from support import kafka_oracle
from support.node_process import NodeProcess
from support.raw_client import RawClient, batch_of
from support.topics import create_topic, produce, read, values_of
from support.waiting import eventually_sync

MIB = 1 << 20


def reasons(node: NodeProcess) -> list[str]:
    """Why connections were closed, as the log says."""
    lines = [
        json.loads(line)
        for line in node.log_text().splitlines(keepends=True)
        if line.startswith("{") and line.endswith("\n")
    ]
    return [line.get("reason", "") for line in lines if line["event"] == "connection closed"]


@pytest.fixture
def bystander(node: NodeProcess, topic: str) -> Iterator[RawClient]:
    """A well-behaved client on the same node: before and after, it must be served."""
    name = f"{topic}-bystander"
    create_topic(node.bootstrap, name)
    with RawClient(node.bootstrap) as raw:
        assert raw.produce(name, batch_of(b"before")).base_offset == 0
        yield raw
        assert raw.produce(name, batch_of(b"after")).base_offset == 1
        assert len(raw.fetch(name, 0)[0].batches()) == 2


# Malformed ----------------------------------------------------------------------------------------------------------
def request_head(key: int, version: int) -> bytes:
    return struct.pack(">hhih", key, version, 7, -1)


def client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="node")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


MALFORMED = {
    "a frame longer than allowed": (struct.pack(">i", 2_000_000_000), "socket.request.max.bytes"),
    "a negative size": (struct.pack(">i", -5), "socket.request.max.bytes"),
    "a frame too short for a header": (struct.pack(">i", 3) + b"abc", "frame of 3 bytes"),
    "HTTP": (b"GET / HTTP/1.1\r\nHost: stratalog\r\n\r\n", "this is an HTTP request, at a Kafka listener"),
    "TLS": (client_hello(), "the client speaks TLS, and this listener does not"),
    "another protocol": (b"\xff\xfb\x01\xff\xfb\x03", "socket.request.max.bytes"),
    "a key nobody knows": (struct.pack(">i", 10) + request_head(999, 0), "key 999"),
    "a version that is not served": (struct.pack(">i", 11) + request_head(1, 99) + b"\0", "key 1 v99"),
    "a produce request cut short": (struct.pack(">i", 14) + request_head(0, 3) + b"\xff\xff\x00\x01", ""),
    "a count of two billion": (
        struct.pack(">i", 10 + 4 + 17) + request_head(1, 4) + b"\xff" * 4 + bytes(13) + b"\x7f\xff\xff\xff",
        "",
    ),
    "metadata for two billion topics": (struct.pack(">i", 14) + request_head(3, 4) + b"\x77\xff\xff\xff", ""),
    "random bytes": (struct.pack(">i", 64) + bytes(range(200, 256)) + bytes(8), ""),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_what_is_malformed_closes_its_connection_with_a_logged_reason(
    what: str, node: NodeProcess, bystander: RawClient
) -> None:
    data, said = MALFORMED[what]
    before = len(reasons(node))

    def is_reported() -> bool:
        """At the next attempt, where an earlier test has caused many lines."""
        with RawClient(node.bootstrap) as raw:
            raw.send(data)
            assert raw.is_closed_by_node()
        return len(reasons(node)) > before

    eventually_sync(is_reported)
    assert said in reasons(node)[-1] and reasons(node)[-1]


def test_requests_cut_off_at_every_byte_do_no_harm(node: NodeProcess, bystander: RawClient, topic: str) -> None:
    create_topic(node.bootstrap, topic)
    with RawClient(node.bootstrap) as raw:
        frames = [raw.produce_frame(topic, batch_of(b"whole")), raw.fetch_frame(topic, 0, max_wait_ms=0)]
    for frame in frames:
        for end in range(1, len(frame), 7):
            with RawClient(node.bootstrap) as raw:
                raw.send(frame[:end])
    for frame in frames:
        for end in range(len(frame) - 1, 14, -7):
            with RawClient(node.bootstrap) as raw:
                raw.send(struct.pack(">i", end - 4) + frame[4:end])
                assert raw.is_closed_by_node(), f"a whole frame whose content is cut at {end}"
    with RawClient(node.bootstrap) as raw:
        assert raw.fetch(topic, 0, max_wait_ms=0)[0].high_watermark == 0, "nothing of it was appended"


# Slow and silent ----------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    settings = {"connection.read.timeout.ms": 500, "connections.max.idle.ms": 3000, "log.level": "debug"}
    with NodeProcess(tmp_path_factory.mktemp("impatient") / "data", settings=settings) as node:
        yield node


def test_a_frame_that_never_ends_is_not_waited_for(impatient: NodeProcess) -> None:
    with RawClient(impatient.bootstrap) as raw:
        raw.send(struct.pack(">i", 1000) + request_head(18, 0))
        assert raw.is_closed_by_node()
    eventually_sync(lambda: any("connection.read.timeout.ms" in reason for reason in reasons(impatient)))


def test_a_byte_now_and_then_does_not_prolong_a_frames_time(impatient: NodeProcess) -> None:
    with RawClient(impatient.bootstrap) as raw:
        raw.send(struct.pack(">i", 1000) + request_head(18, 0))
        with pytest.raises(ConnectionError):
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                raw.send(b"x")
                time.sleep(0.02)


def test_a_silent_connection_is_closed_and_one_that_waits_for_data_is_not(impatient: NodeProcess, topic: str) -> None:
    create_topic(impatient.bootstrap, topic)
    with RawClient(impatient.bootstrap, timeout=30) as waiting, RawClient(impatient.bootstrap, timeout=30) as silent:
        waiting.send(waiting.fetch_frame(topic, 0, max_wait_ms=600_000))
        assert silent.is_closed_by_node()
        with RawClient(impatient.bootstrap) as writer:
            writer.produce(topic, batch_of(b"at last"))
        assert len(waiting.receive_fetched()[0].batches()) == 1
    assert any(reason.startswith("idle for") for reason in reasons(impatient))


# Many ---------------------------------------------------------------------------------------------------------------
def test_five_hundred_idle_connections_cost_little_and_all_work(node: NodeProcess, bystander: RawClient) -> None:
    api_versions = struct.pack(">i", 10) + request_head(18, 0)
    with ExitStack() as stack:
        before = node.rss_bytes()
        clients = [stack.enter_context(RawClient(node.bootstrap)) for _ in range(500)]
        for client in clients:
            client.send(api_versions)
        assert all(client.receive_frame()[4:8] == struct.pack(">i", 7) for client in clients)
        assert node.metrics()["stratalog_kafka_connections"] >= 500
        assert node.rss_bytes() - before < 40 * MIB, "an idle connection holds no buffer"
        for client in clients:
            client.send(api_versions)
        assert all(client.receive_frame()[4:8] == struct.pack(">i", 7) for client in clients)
    eventually_sync(lambda: node.metrics()["stratalog_kafka_connections"] < 100)


def test_connections_above_the_limit_are_refused_and_the_others_stay(start_node: Callable[..., NodeProcess]) -> None:
    node = start_node(settings={"max.connections": 5})
    api_versions = struct.pack(">i", 10) + request_head(18, 0)
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(node.bootstrap)) for _ in range(5)]
        for client in clients:
            client.send(api_versions)
            client.receive_frame()
        with RawClient(node.bootstrap) as sixth:
            assert sixth.is_closed_by_node()
        eventually_sync(lambda: "max.connections" in node.log_text())
        for client in clients:
            client.send(api_versions)
            client.receive_frame()
    eventually_sync(lambda: node.metrics()["stratalog_kafka_connections"] == 0)
    with RawClient(node.bootstrap) as later:
        later.send(api_versions)
        later.receive_frame()


# Greedy -------------------------------------------------------------------------------------------------------------
def test_a_client_that_never_reads_its_answers_does_not_grow_the_node(
    start_node: Callable[..., NodeProcess], topic: str
) -> None:
    node = start_node(settings={"fetch.max.bytes": 8 * MIB})
    create_topic(node.bootstrap, topic)
    with RawClient(node.bootstrap) as raw:
        batch = batch_of(bytes(1000 * 1000))
        for _ in range(4):
            raw.produce(topic, batch)
        raw.fetch(topic, 0)
        frame = raw.fetch_frame(topic, 0, max_bytes=8 * MIB, partition_max_bytes=8 * MIB)
    before, before_requests = node.rss_bytes(), node.metrics()["stratalog_kafka_fetch_requests_total"]
    requests = 2000  # of 4 MB, if they were all answered
    with RawClient(node.bootstrap, receive_buffer=4096) as greedy:
        sender = threading.Thread(target=_send_and_be_stuck, args=(greedy, frame * requests))
        sender.start()
        eventually_sync(lambda: node.metrics()["stratalog_kafka_fetch_requests_total"] > before_requests, 20)
        produce(node.bootstrap, topic, [b"others go on"])
        assert values_of(read(node.bootstrap, topic, 1, offset=4)) == [b"others go on"]
        assert node.peak_rss_bytes() - before < 150 * MIB

        # It may wake up at last: then it gets every answer, whole and in order.
        for number in range(50):
            answer = kafka_oracle.decode_response(1, 11, greedy.receive_frame())
            records = bytes(answer.responses[0].partitions[0].records)
            assert records[8:].startswith(batch[8:12]), f"answer {number}"
        assert node.peak_rss_bytes() - before < 150 * MIB
    sender.join(20)
    eventually_sync(lambda: node.metrics()["stratalog_kafka_connections"] == 0, 20)


def _send_and_be_stuck(client: RawClient, data: bytes) -> None:
    try:
        client.send(data)
    except OSError:
        return


def test_half_sent_large_frames_share_one_byte_budget(start_node: Callable[..., NodeProcess], topic: str) -> None:
    node = start_node(settings={"queued.max.request.bytes": 16 * MIB, "connection.read.timeout.ms": 60_000})
    create_topic(node.bootstrap, topic, settings={"max.message.bytes": 40 * MIB})
    with RawClient(node.bootstrap) as raw:
        frame = raw.produce_frame(topic, batch_of(bytes(30 * MIB)))
        before = node.rss_bytes()
        with ExitStack() as stack:
            for _ in range(20):
                client = stack.enter_context(RawClient(node.bootstrap))
                threading.Thread(target=_send_and_be_stuck, args=(client, frame[: 25 * MIB]), daemon=True).start()
            eventually_sync(lambda: node.metrics()["stratalog_kafka_received_bytes_total"] > 10 * MIB, 20)
            assert raw.produce(topic, batch_of(b"small")).error_code == 0, "small requests go on"
            assert node.peak_rss_bytes() - before < 150 * MIB, "20 times 25 MiB would be 500"
        # The greedy ones are gone: a large frame gets its turn.
        assert raw.produce(topic, batch_of(bytes(30 * MIB))).error_code == 0


def test_large_frames_of_many_connections_all_get_their_turn(
    start_node: Callable[..., NodeProcess], topic: str
) -> None:
    node = start_node(settings={"queued.max.request.bytes": 4 * MIB})
    create_topic(node.bootstrap, topic, settings={"max.message.bytes": 10 * MIB})
    batch = batch_of(bytes(9 * MIB))
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(node.bootstrap, timeout=30)) for _ in range(6)]
        senders = [
            threading.Thread(target=client.send, args=(client.produce_frame(topic, batch) * 2,)) for client in clients
        ]
        for sender in senders:
            sender.start()
        offsets = sorted(client.receive_produced().base_offset for client in clients for _ in range(2))
        for sender in senders:
            sender.join(20)
    assert offsets == list(range(12))
