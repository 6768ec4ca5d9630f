"""What clients may send after their handshake, at every kind of port: each ends its own connection at most."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from support.client_hellos import loaded_openssl, pointer_of
from support.tls_in_memory import End, flood, shaken
from support.tls_ports import PORTS, Port, tls_port
from support.waiting import eventually

FATAL_ALERT = b"\x15\x03\x03\0\x02\x02\x28"
RECORD_OF_NOISE = b"\x17\x03\x03\0\x40" + bytes(range(64))
EMPTY_RECORDS = b"\x17\x03\x03\0\0" * 10_000
PLAIN = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(params=PORTS)
async def port(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Port]:
    async with tls_port(request.param, tmp_path) as made:
        await made.answers()
        yield made
        await made.answers()  # whatever one client has done


async def send(sock: socket.socket, data: bytes) -> None:
    with suppress(ConnectionError):  # the port may have ended it already
        await asyncio.get_running_loop().sock_sendall(sock, data)


async def until_closed(sock: socket.socket) -> bytes:
    got = b""
    async with asyncio.timeout(30):
        with suppress(ConnectionError):
            while piece := await asyncio.get_running_loop().sock_recv(sock, 1 << 16):
                got += piece
    sock.close()
    return got


async def decrypted(sock: socket.socket, end: End, expected: bytes) -> bytes:
    got = b""
    async with asyncio.timeout(30):
        while expected not in got:
            try:
                got += end.tls.read(1 << 16)
            except ssl.SSLWantReadError:
                end.incoming.write(await asyncio.get_running_loop().sock_recv(sock, 1 << 16))
    return got


async def test_a_request_in_records_of_one_byte_is_answered(port: Port) -> None:
    sock, end = await shaken(port.address, port.client())
    for byte in port.request:
        end.tls.write(bytes([byte]))
    await send(sock, end.outgoing.read())
    assert port.answer in await decrypted(sock, end, port.answer)
    sock.close()


@pytest.mark.parametrize(
    "sent", [FATAL_ALERT, RECORD_OF_NOISE, EMPTY_RECORDS, PLAIN], ids=["alert", "noise", "empty", "plain"]
)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_what_cannot_be_decrypted_ends_its_connection(port: Port, sent: bytes, version: ssl.TLSVersion) -> None:
    client = port.client()
    client.minimum_version = client.maximum_version = version
    sock, end = await shaken(port.address, client)
    end.tls.write(port.request[: len(port.request) // 2])
    await send(sock, end.outgoing.read() + sent)
    await until_closed(sock)


async def test_a_client_that_ends_within_a_request_leaves_nothing(port: Port) -> None:
    for says_farewell in (False, True):
        sock, end = await shaken(port.address, port.client())
        end.tls.write(port.request[:5])
        if says_farewell:
            with suppress(ssl.SSLError):
                end.tls.unwrap()
        await send(sock, end.outgoing.read())
        if says_farewell:
            await send(sock, RECORD_OF_NOISE * 100)
            await until_closed(sock)
        sock.close()
    await eventually(lambda: port.stats.connections == 0)


async def test_key_updates_without_end_end_their_connection(port: Port) -> None:
    """Also those that come together with the end of the handshake."""
    assert await flood(port.address, port.client()) < 200


async def test_a_client_of_tls_1_2_that_wants_another_handshake_gets_none(port: Port) -> None:
    client = port.client()
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    sock, end = await shaken(port.address, client)
    openssl, pointer = loaded_openssl(), pointer_of(end.tls)
    assert openssl.SSL_renegotiate(pointer) == 1
    openssl.SSL_do_handshake(pointer)
    await send(sock, end.outgoing.read())
    with pytest.raises(ssl.SSLError, match="NO_RENEGOTIATION"):
        await decrypted(sock, end, port.answer)
    sock.close()


async def test_a_version_before_tls_1_2_is_refused(port: Port) -> None:
    client = port.client()
    client.set_ciphers("ALL:@SECLEVEL=0")
    client.minimum_version, client.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await shaken(port.address, client)
    await eventually(lambda: port.stats.handshakes_failed == 1)
