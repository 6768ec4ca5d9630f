"""As much of HTTP/1.1 as a test proxy needs: heads, and bodies by length, by chunks or to the end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Head:
    """The first line and the headers of a request or an answer; `raw` is every byte of them."""

    raw: bytes
    first: str
    headers: dict[str, str]

    @property
    def method(self) -> str:
        return self.first.split(" ")[0]

    @property
    def target(self) -> str:
        return self.first.split(" ")[1]

    @property
    def status(self) -> int:
        return int(self.first.split(" ")[1])

    @property
    def content_length(self) -> int | None:
        value = self.headers.get("content-length")
        return None if value is None else int(value)

    @property
    def is_chunked(self) -> bool:
        return "chunked" in self.headers.get("transfer-encoding", "").lower()

    @property
    def closes(self) -> bool:
        return self.headers.get("connection", "").lower() == "close"

    @property
    def expects_continue(self) -> bool:
        return self.headers.get("expect", "").lower() == "100-continue"

    def without_expect(self) -> bytes:
        return self._without("expect").raw

    def with_content_length(self, length: int) -> Head:
        bare = self._without("content-length")
        return replace(bare, raw=bare.raw[:-2] + f"Content-Length: {length}\r\n\r\n".encode())

    def _without(self, name: str) -> Head:
        lines = [line for line in self.raw.split(b"\r\n") if not line.lower().startswith(name.encode() + b":")]
        return replace(self, raw=b"\r\n".join(lines))


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """Returns: None at the end of the connection."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return Head(raw, first, headers)


async def read_body(reader: asyncio.StreamReader, head: Head, *, is_answer_to: str | None) -> bytes:
    """The body's bytes as they came, chunk framing included."""
    if is_answer_to is not None and (is_answer_to == "HEAD" or head.status in (204, 304) or head.status < 200):
        return b""
    if head.is_chunked:
        return await _read_chunks(reader)
    length = head.content_length
    if length is not None:
        return await reader.readexactly(length)
    return b"" if is_answer_to is None else await reader.read(-1)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    pieces = []
    while True:
        line = await reader.readuntil(b"\r\n")
        pieces.append(line)
        size = int(line.split(b";")[0], 16)
        if size:
            pieces.append(await reader.readexactly(size + 2))
            continue
        while True:
            trailer = await reader.readuntil(b"\r\n")
            pieces.append(trailer)
            if trailer == b"\r\n":
                return b"".join(pieces)
