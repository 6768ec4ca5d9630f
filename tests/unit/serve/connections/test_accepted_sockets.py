"""What the kernel does for a connection: how much of its answers it holds (what the operator asked for, or what it
likes), and that it looks after clients that went without a word."""

import asyncio
import socket
from pathlib import Path

import pytest

from stratalog.model.listeners import INTERNAL, Listener
from stratalog_node.serve.connections.listeners import bind
from support.serve_rig import ServeRig
from support.waiting import eventually


async def _option(rig: ServeRig, option: int) -> int:
    """Of a connection that the listener accepted."""
    listener = bind("127.0.0.1", 0)
    rig.server.open(listener, Listener(INTERNAL, "localhost", 9092))
    with socket.socket() as client:
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, listener.getsockname())
        await eventually(lambda: rig.server._connections)
        (connection,) = rig.server._connections
        return connection.sock.getsockopt(socket.SOL_SOCKET, option)


def _kernels_choice(asked_bytes: int | None) -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if asked_bytes is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, asked_bytes)
        with socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
            with accepted:
                return accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)


@pytest.mark.parametrize("asked_bytes", [48 << 10, 128 << 10])
async def test_a_connection_gets_the_send_buffer_that_was_asked_for(tmp_path: Path, asked_bytes: int) -> None:
    async with ServeRig(tmp_path, socket_send_buffer_bytes=asked_bytes) as rig:
        assert await _option(rig, socket.SO_SNDBUF) == _kernels_choice(asked_bytes) != _kernels_choice(None)


async def test_the_kernel_chooses_the_send_buffer_where_it_is_left_to_it(tmp_path: Path) -> None:
    async with ServeRig(tmp_path, socket_send_buffer_bytes=-1) as rig:
        assert await _option(rig, socket.SO_SNDBUF) == _kernels_choice(None)


async def test_a_client_that_lost_its_power_is_noticed_though_nothing_is_sent_to_it(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        assert await _option(rig, socket.SO_KEEPALIVE) == 1
