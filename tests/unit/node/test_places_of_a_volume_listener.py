"""Whoever connects to a retired node's directory and shows no token keeps no node out."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from stratalog.kafka.replica_fetch import (
    FINAL_EPOCH,
    NO_SESSION,
    ReplicaFetch,
    SegmentAnswer,
    SegmentAsk,
    encode_replica_fetch,
)
from stratalog_node.volume import listener as listeners
from stratalog_node.volume.listener import VolumeListener
from stratalog_node.volume.sealed_files import VolumeStats
from support.waiting import eventually

TOKEN = 77


async def nothing(ask: SegmentAsk) -> SegmentAnswer[bytes]:
    raise AssertionError(f"nothing was asked for: {ask}")


class Rig:
    def __init__(self) -> None:
        self.stats = VolumeStats()
        self.listener = VolumeListener(nothing, lambda node_id, token: (node_id, token) == (1, TOKEN), self.stats)
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._writers: list[asyncio.StreamWriter] = []

    async def connect_without_reading(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, self._socket.getsockname())
        reader, writer = await asyncio.open_connection(sock=sock, limit=1)
        self._writers.append(writer)
        return reader, writer

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self._socket.getsockname())
        self._writers.append(writer)
        return reader, writer

    async def as_node(self, token: int = TOKEN) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await self.connect()
        await self.ask(reader, writer, token)
        return reader, writer

    async def ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: int = TOKEN) -> None:
        writer.write(encode_replica_fetch(1, "node-1", ReplicaFetch(1, token, 0, 0, NO_SESSION, FINAL_EPOCH, [])))
        size = int.from_bytes(await reader.readexactly(4), "big")
        await reader.readexactly(size)

    async def close(self) -> None:
        for writer in self._writers:
            writer.close()
        await self.listener.close()


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    await rig.listener.open(rig._socket)
    yield rig
    await rig.close()


@pytest.mark.fault("connections-take-places-listener")
async def test_nodes_get_in_beside_any_number_of_connections_that_say_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "MOST_ON_TRIAL", 4)
    monkeypatch.setattr(listeners, "_MOST_CONNECTIONS", 3)
    nodes = [await rig.as_node()]
    silent = [await rig.connect() for _ in range(9)]
    nodes += [await rig.as_node() for _ in range(2)]
    for reader, writer in nodes:
        await rig.ask(reader, writer)
    await eventually(lambda: rig.stats.connections == 3 + 3)  # one more made way for a node
    for reader, _ in silent[:6]:
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(1)


@pytest.mark.fault("connections-take-places-listener")
async def test_a_connection_that_says_nothing_ends_soon(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "TRIAL_S", 0.0)
    monkeypatch.setattr(listeners, "_CHECK_EVERY_S", 0.02)
    reader, _ = await rig.connect()
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await reader.readexactly(1)
    await eventually(lambda: rig.stats.connections == 0)


@pytest.mark.fault("requests-unread-by-a-late-port")
async def test_a_check_after_a_stall_ends_no_trial_and_the_next_one_does(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "TRIAL_S", 0.0)
    monkeypatch.setattr(listeners, "_CHECK_EVERY_S", 3_600.0)
    await rig.connect()
    await eventually(lambda: len(rig.listener._on_trial) == 1)
    rig.listener._checks._due_s -= 7_200.0
    for left in (1, 0):
        rig.listener._check_trials()
        assert len(rig.listener._on_trial) == left


@pytest.mark.fault("connections-take-places-listener")
async def test_a_connection_that_shows_a_wrong_token_stays_on_trial(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "MOST_ON_TRIAL", 1)
    reader, _ = await rig.as_node(TOKEN + 1)
    await rig.connect()
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await reader.readexactly(1)


@pytest.mark.fault("connections-take-places-listener")
async def test_a_closed_connection_whose_client_reads_nothing_gives_its_place_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for its reader for ever, as one that has shown its token."""
    monkeypatch.setattr(listeners, "FAREWELL_S", 0.05)
    rig._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    _, writer = await rig.connect_without_reading()
    wrong = encode_replica_fetch(1, "node-1", ReplicaFetch(1, TOKEN + 1, 0, 0, NO_SESSION, FINAL_EPOCH, []))
    writer.write(wrong * 1_000 + bytes(4))
    await eventually(lambda: rig.stats.turned_away["other_protocol"] == 1)
    await eventually(lambda: len(rig.listener._connections) == 0)
