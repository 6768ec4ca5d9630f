"""A client of the Kafka protocol over streams of asyncio, with TLS or without, with the frames of `WireClient`."""

from __future__ import annotations

import asyncio
import itertools
import ssl
from pathlib import Path
from typing import Self

from support.certificates import Authority, Issued
from support.serve_rig import WireClient


def client_side(authority: Authority, own: Issued | None = None, folder: Path | None = None) -> ssl.SSLContext:
    """`own` is the client's certificate, which is written to `folder`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority.certificate.decode())
    if own is not None:
        assert folder is not None
        own.write_folder(folder)
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return context


class StreamClient(WireClient):
    """Over streams, with or without TLS."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._correlation_ids = itertools.count(1)

    @classmethod
    async def connect(cls, address: tuple[str, int], context: ssl.SSLContext | None = None) -> Self:
        name = {} if context is None else {"server_hostname": "127.0.0.1"}
        return cls(*await asyncio.open_connection(*address, ssl=context, **name))

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def _exactly(self, count: int) -> bytes:
        try:
            return await self._reader.readexactly(count)
        except asyncio.IncompleteReadError:
            raise ConnectionError("closed by the node") from None

    async def is_closed(self) -> bool:
        try:
            async with asyncio.timeout(10):
                while await self._reader.read(1 << 20):
                    pass
        except (ConnectionError, ssl.SSLError):
            pass
        return True

    def close(self) -> None:
        self._writer.transport.abort()
