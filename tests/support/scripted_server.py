"""A server that returns one given answer, byte for byte, for answers that no real server gives on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from support.http_messages import read_body, read_head
from support.s3_servers import S3Server


@dataclass(slots=True)
class Script:
    """`answer=None` closes the connection; `hangs` never answers. `requests` counts what came."""

    answer: bytes | None
    hangs: bool = False
    requests: list[str] = field(default_factory=list)


def http_answer(status: str, body: bytes = b"", *headers: str, content_length: int | None = None) -> bytes:
    length = len(body) if content_length is None else content_length
    lines = [
        f"HTTP/1.1 {status}",
        f"Content-Length: {length}",
        'ETag: "x"',
        "Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT",
        "Connection: close",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@asynccontextmanager
async def scripted_server(script: Script) -> AsyncIterator[S3Server]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await read_head(reader)
        if head is not None:
            await read_body(reader, head, is_answer_to=None)
            script.requests.append(f"{head.method} {head.target}")
            if script.hangs:
                await reader.read()
            elif script.answer is not None:
                writer.write(script.answer)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield S3Server(server.sockets[0].getsockname()[1], "bucket")
    finally:
        server.close()
