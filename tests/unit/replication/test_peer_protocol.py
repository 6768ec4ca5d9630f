"""A connection to another node's port, on the loop of the tests and on the one that nodes run on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from stratalog_node.replication.peer_protocol import PeerProtocol

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


async def _answer_in_kind(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
    writer.close()


async def _asked(frames: list[bytes]) -> list[bytes]:
    """What comes back from a peer that answers with what it was sent."""
    server = await asyncio.start_server(_answer_in_kind, "127.0.0.1", 0)
    answers: asyncio.Queue[bytes] = asyncio.Queue()
    lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    protocol = PeerProtocol(1 << 20, lambda frame: answers.put_nowait(bytes(frame)), lost.set_result)
    await asyncio.get_running_loop().create_connection(lambda: protocol, *server.sockets[0].getsockname())
    for frame in frames:
        protocol.send(len(frame).to_bytes(4, "big") + frame)
    async with asyncio.timeout(10):
        found = [await answers.get() for _ in frames]
        protocol.close("all was answered")
        assert await lost == "all was answered"
    server.close()
    return found


@pytest.mark.parametrize("make_loop", LOOPS.values(), ids=LOOPS)
def test_frames_go_out_and_come_in_on_either_loop(make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    frames = [b"small", bytes(200_000), b"behind a large one"]
    with asyncio.Runner(loop_factory=make_loop) as runner:
        assert runner.run(_asked(frames)) == frames
