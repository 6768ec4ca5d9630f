"""Both ends of a TLS connection over memory, and what OpenSSL can do that Python has no call for."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from dataclasses import dataclass

from support.client_hellos import loaded_openssl, pointer_of

_KEY_UPDATE_BYTES = 27


@dataclass(frozen=True, slots=True)
class End:
    """One end: `incoming` is what has arrived there, `outgoing` what it sends."""

    tls: ssl.SSLObject
    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO


def connected(client: ssl.SSLContext, server: ssl.SSLContext, host: str = "127.0.0.1") -> tuple[End, End]:
    """The client and the server, their handshake done. Raises: ssl.SSLError."""
    memory = [ssl.MemoryBIO() for _ in range(4)]
    ours = End(client.wrap_bio(*memory[:2], server_hostname=host), *memory[:2])
    theirs = End(server.wrap_bio(*memory[2:], server_side=True), *memory[2:])
    for _ in range(4):
        for one, other in ((ours, theirs), (theirs, ours)):
            with contextlib.suppress(ssl.SSLWantReadError):
                one.tls.do_handshake()
            other.incoming.write(one.outgoing.read())
    return ours, theirs


async def shaken(address: tuple[str, int], client: ssl.SSLContext) -> tuple[socket.socket, End]:
    """A connection to a port, its handshake done; what the client sends is written to the socket by its caller."""
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setblocking(False)
    await loop.sock_connect(sock, address)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            await loop.sock_sendall(sock, outgoing.read())
            incoming.write(await loop.sock_recv(sock, 1 << 16))
        else:
            await loop.sock_sendall(sock, outgoing.read())
            return sock, End(tls, incoming, outgoing)


async def flood(address: tuple[str, int], client: ssl.SSLContext) -> int:
    """Sends 1,000 key updates, and returns once the port has closed the connection: how many it has answered."""
    answered_bytes = 0
    sock, end = await shaken(address, client)
    update_keys(end.tls, 1_000)
    loop = asyncio.get_running_loop()
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(30):
            await loop.sock_sendall(sock, end.outgoing.read())
            while answer := await loop.sock_recv(sock, 1 << 16):
                answered_bytes += len(answer)
    sock.close()
    return answered_bytes // _KEY_UPDATE_BYTES


def update_keys(tls: ssl.SSLObject, count: int) -> None:
    """Sends `count` key updates, each of which asks for one in return. Python has no call for it: OpenSSL's own."""
    openssl, pointer = loaded_openssl(), pointer_of(tls)
    for _ in range(count):
        assert openssl.SSL_key_update(pointer, 1) == 1
        assert openssl.SSL_do_handshake(pointer) == 1
