"""A control request that takes long to read or to answer leaves the event loop to everyone else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratalog.kafka import messages
from support import kafka_oracle
from support.serve_rig import ServeRig

_KEYS = [f"group-{number}" for number in range(5_000)]


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

    for name in ("decode_request", "encode_response", "encode_entity"):
        monkeypatch.setattr(messages, name, watched(name))
    async with ServeRig(tmp_path) as rig:
        client = rig.connect()
        await client.write(client.frame(10, 4, key_type=0, coordinator_keys=_KEYS))
        answer = kafka_oracle.decode_response(10, 4, await client.read_frame())
        assert [found.key for found in answer.coordinators] == _KEYS
        assert where == [("decode_request", False), ("encode_entity", False), ("encode_response", False)]
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
