"""A control request that takes long to read or to answer leaves the event loop to everyone else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stratalog.kafka import messages
from stratalog_node.serve.connections.connection import _HIGH_WATER_BYTES
from stratalog_node.serve.connections.context import RequestContext
from stratalog_node.serve.connections.control import LARGE_AT_ONCE
from support import kafka_oracle
from support.serve_rig import ServeRig
from support.waiting import eventually

_KEYS = [f"group-{number}" for number in range(5_000)]


@pytest.mark.fault("request-deleted-topic-sweep")
async def test_large_requests_are_decoded_and_encoded_on_a_thread_and_small_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where: list[tuple[str, bool]] = []
    loop_thread = threading.get_ident()

    def watched(name: str) -> Callable[..., Any]:
        real = getattr(messages, name)

        def call(*args: Any) -> Any:
            where.append((name, threading.get_ident() == loop_thread))
            return real(*args)

        return call

    for name in ("decode_body", "encode_entity"):
        monkeypatch.setattr(messages, name, watched(name))
    async with ServeRig(tmp_path) as rig:
        client = rig.connect()
        await client.write(client.frame(10, 4, key_type=0, coordinator_keys=_KEYS))
        answer = kafka_oracle.decode_response(10, 4, await client.read_frame())
        assert [found.key for found in answer.coordinators] == _KEYS
        assert where == [("decode_body", False), ("encode_entity", False)]
        where.clear()
        await client.write(client.frame(10, 4, key_type=0, coordinator_keys=["g"]))
        await client.read_frame()
        assert {on_loop for _, on_loop in where} == {True}
        client.close()


async def test_answers_leave_in_order_behind_a_large_request(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        client = rig.connect()
        frames = [client.frame(10, 4, key_type=0, coordinator_keys=keys) for keys in (_KEYS, ["a"], _KEYS, ["b"])]
        await client.write(b"".join(frames))
        for expected in (_KEYS, ["a"], _KEYS, ["b"]):
            answer = kafka_oracle.decode_response(10, 4, await client.read_frame())
            assert [found.key for found in answer.coordinators] == expected
        client.close()


async def test_a_large_request_that_is_malformed_closes_its_connection(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        client = rig.connect()
        frame = bytearray(client.frame(10, 4, key_type=0, coordinator_keys=_KEYS))
        frame[2_000:2_100] = b"\xff" * 100
        await client.write(bytes(frame))
        assert await client.is_closed()
        assert rig.server.stats.closed_for_fault == 1 and rig.server.stats.control_errors == 0
        client.close()


@pytest.mark.fault("client-pipelines-large-control")
async def test_a_request_is_decoded_at_its_turn_and_waits_in_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoded, hundreds of requests that wait behind a slow one would take gigabytes."""
    decoded: list[int] = []
    real = messages.decode_body

    def decode(key: int, version: int, body: bytes) -> Any:
        decoded.append(len(body))
        return real(key, version, body)

    monkeypatch.setattr(messages, "decode_body", decode)
    go_on = asyncio.Event()
    async with ServeRig(tmp_path) as rig:
        api = rig.server._apis[10]
        assert api.handler is not None

        async def slow(context: RequestContext, request: Any) -> Any:
            await go_on.wait()
            assert api.handler is not None
            return await api.handler(context, request)

        rig.server._apis[10] = replace(api, handler=slow)
        client = rig.connect(is_tcp=True)
        frame = client.frame(10, 4, key_type=0, coordinator_keys=[f"group-{number:0200}" for number in range(300)])
        count = 2 * _HIGH_WATER_BYTES // len(frame)
        sending = asyncio.ensure_future(client.write(frame * count))
        await eventually(lambda: client.connection._held_bytes > _HIGH_WATER_BYTES)
        await eventually(lambda: not client.connection._is_reading)
        assert len(decoded) == 1 and len(client.connection._answers) < count
        go_on.set()
        for _ in range(count):
            await client.read_frame()
        await sending
        assert len(decoded) == count and client.connection._held_bytes == 0
        client.close()


@pytest.mark.fault("client-pipelines-large-control")
async def test_few_large_requests_are_worked_on_at_a_time_and_small_ones_go_past_them(tmp_path: Path) -> None:
    go_on = asyncio.Event()
    async with ServeRig(tmp_path) as rig:
        api = rig.server._apis[10]
        assert api.handler is not None
        inside = most = 0

        async def slow(context: RequestContext, request: Any) -> Any:
            nonlocal inside, most
            if len(request.coordinator_keys) > 1:
                inside += 1
                most = max(most, inside)
                await go_on.wait()
                inside -= 1
            assert api.handler is not None
            return await api.handler(context, request)

        rig.server._apis[10] = replace(api, handler=slow)
        clients = [rig.connect() for _ in range(3 * LARGE_AT_ONCE)]
        for client in clients:
            await client.write(client.frame(10, 4, key_type=0, coordinator_keys=_KEYS[:2_000]))
        await eventually(lambda: inside == LARGE_AT_ONCE)
        small = rig.connect()
        await small.write(small.frame(10, 4, key_type=0, coordinator_keys=["g"]))
        await small.read_frame()
        gone = clients.pop()
        gone.close()
        await eventually(lambda: len(rig.server._connections) == len(clients) + 1)
        go_on.set()
        for client in clients:
            await client.read_frame()
        assert most == LARGE_AT_ONCE and inside == 0
