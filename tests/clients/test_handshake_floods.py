"""Thousands of TLS handshakes at once against the ports of a real node, most of them hostile: memory, threads and the
answers to an honest client meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from stratalog.event_loop.tls_handshakes import MOST_AT_ONCE
from support.certificates import Authority
from support.client_hellos import client_hello, in_records, real_hello
from support.cluster_ports import free_port
from support.node_process import NodeProcess
from support.stream_client import client_side
from support.tls_ports import API_VERSIONS, HEALTHZ
from support.waiting import eventually

FLOOD, HONEST = "127.0.0.1", "127.0.0.2"
OF_EACH_HANDSHAKE_BYTES = 72 << 10
"""45 KiB of OpenSSL between the server's part and the client's, and what the port knows of it."""
SOME = 300
MANY = pytest.param(2_000, marks=pytest.mark.slow)
SECONDS = 180.0


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16_384), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@dataclass
class Port:
    node: NodeProcess
    address: tuple[str, int]
    client: ssl.SSLContext
    request: bytes
    answer: bytes

    async def is_answered(self, source: str) -> bool:
        """One client of that address."""
        reader, writer = await asyncio.open_connection(
            *self.address,
            ssl=self.client,
            server_hostname="127.0.0.1",
            local_addr=(source, 0),
            ssl_handshake_timeout=SECONDS,
        )
        try:
            writer.write(self.request)
            return self.answer in await reader.readuntil(self.answer)
        finally:
            writer.transport.abort()

    @asynccontextmanager
    async def serves_others(self) -> AsyncIterator[None]:
        """An honest client connects again and again meanwhile, and once more: each time it is answered."""
        is_over, answers = asyncio.Event(), 0

        async def ask() -> None:
            nonlocal answers
            while not is_over.is_set():
                assert await self.is_answered(HONEST)
                answers += 1

        async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
            group.create_task(ask())
            yield
            before = answers
            await eventually(lambda: answers > before + 1, timeout=60)
            is_over.set()


@asynccontextmanager
async def port(kind: str, tmp_path: Path) -> AsyncIterator[Port]:
    authority = Authority()
    files = authority.issue("node").write_folder(tmp_path / "tls", authority.certificate)
    number = free_port()
    settings = {
        "listeners": f"secure://127.0.0.1:{number}",
        "listener.security.protocol.map": "secure:SSL",
        "ssl.certificate.folder": str(files),
    }
    if kind == "http":
        settings["http.security.protocol"] = "SSL"
    node = NodeProcess(tmp_path / "data", settings=settings)
    await asyncio.to_thread(node.start)
    try:
        client = client_side(authority)
        if kind == "kafka":
            made = Port(node, ("127.0.0.1", number), client, API_VERSIONS, b"\0\0\0\x07\0\0")
        else:
            host, _, admin = node.admin.rpartition(":")
            made = Port(node, (host, int(admin)), client, HEALTHZ, b"ok\n")
        for _ in range(20):
            assert await made.is_answered(HONEST)
        yield made
    finally:
        await asyncio.to_thread(node.kill)


async def _connect(address: tuple[str, int], source: str, sent: bytes = b"") -> socket.socket:
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setblocking(False)
    sock.bind((source, 0))
    await loop.sock_connect(sock, address)
    with contextlib.suppress(ConnectionError):  # the port may have ended it already
        await loop.sock_sendall(sock, sent)
    return sock


async def _open(one: Port, count: int, sent: bytes) -> list[socket.socket]:
    return list(await asyncio.gather(*(_connect(one.address, FLOOD, sent) for _ in range(count))))


def _threads(node: NodeProcess) -> int:
    status = Path(f"/proc/{node.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("Threads:"))


FLOODS = {
    "silent": lambda one: b"",
    "half a hello": lambda one: real_hello(one.client)[:300],
    "a hello of 131 KiB": lambda one: b"\x16\x03\x01\0\x04\x01" + (131_396).to_bytes(3, "big"),
    "a hello and nothing more": lambda one: real_hello(one.client),
    "a hello that is answered by a question": lambda one: in_records(client_hello([0x17], [])),
    "noise": lambda one: b"\xff" * 5_000,
}


@pytest.mark.fault("handshakes-not-finished", "hellos-that-cost-much")
@pytest.mark.parametrize("count", [SOME, MANY])
@pytest.mark.parametrize("kind", ["kafka", "http"])
async def test_handshakes_that_are_not_finished_take_little_memory_and_hold_up_no_one(
    tmp_path: Path, kind: str, count: int
) -> None:
    async with port(kind, tmp_path) as one:
        threads, before = _threads(one.node), one.node.rss_bytes()
        for name, flood in FLOODS.items():
            async with one.serves_others():
                socks = await _open(one, count, flood(one))
            more = one.node.rss_bytes() - before
            assert more < min(count, MOST_AT_ONCE) * OF_EACH_HANDSHAKE_BYTES + (16 << 20), name
            for sock in socks:
                sock.close()
        assert _threads(one.node) <= threads + 1, "that of handshakes"


@pytest.mark.fault("handshakes-not-finished")
@pytest.mark.slow
async def test_more_handshakes_than_may_be_under_way_end_the_oldest_ones_of_their_address(tmp_path: Path) -> None:
    async with port("kafka", tmp_path) as one:
        async with one.serves_others():
            socks = await _open(one, MOST_AT_ONCE + 1_000, b"")
            metrics = await asyncio.to_thread(one.node.metrics)
            assert metrics["stratalog_kafka_handshakes"] <= MOST_AT_ONCE
            assert metrics["stratalog_kafka_handshakes_failed_total"] >= 1_000
        for sock in socks:
            sock.close()


@pytest.mark.parametrize(
    ("kind", "count"), [("kafka", SOME), ("http", SOME), pytest.param("kafka", 2_000, marks=pytest.mark.slow)]
)
async def test_clients_that_come_at_once_are_all_answered(tmp_path: Path, kind: str, count: int) -> None:
    """An HTTP port has fewer places than there are clients: the others wait for one. A client that takes a
    second for its handshake, as they may that share one process here, may have to come again."""

    async def until_answered(source: str) -> bool:
        while True:
            try:
                return await one.is_answered(source)
            except (ConnectionError, asyncio.IncompleteReadError):
                assert kind == "http"

    async with port(kind, tmp_path) as one, asyncio.timeout(SECONDS):
        sources = [f"127.0.1.{number % 40 + 1}" for number in range(count)]
        assert all(await asyncio.gather(*map(until_answered, sources)))
