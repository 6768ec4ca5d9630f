"""The plain TCP peer: reads framed requests and answers them, and does nothing else. It is the ceiling of its kind.

Four ways:
  (default)              each request is thrown away and answered with --reply bytes (a produce's answer is about 60)
  --reply LARGE          the same, so that small requests get large answers, as a fetch does
  --echo                 all bytes are sent back as they came
  --files N --dir D      the naive durable log: each request's bytes go to one of N files, all files written in this
                         turn of the loop are flushed one after another, then the requests are answered

A frame is four bytes of size and the rest; bytes 8 to 12 are the correlation id, which the answer repeats. uvloop with
a BufferedProtocol, a kept receive buffer, one write per wake-up: what a Python server can do at best.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import uvloop

RECEIVE_BYTES = 512 << 10


class Sink(asyncio.BufferedProtocol):
    """Counts through the frames without keeping them; answers all that ended in one receive with one write."""

    def __init__(self, reply_bytes: int) -> None:
        self._buffer = bytearray(RECEIVE_BYTES)
        self._view = memoryview(self._buffer)
        self._held = 0
        self._skip = 0
        self._correlation = b""
        self._size = (reply_bytes - 4).to_bytes(4, "big")
        self._rest = bytes(reply_bytes - 8)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._held :]

    def buffer_updated(self, received: int) -> None:
        view, end, at = self._view, self._held + received, 0
        answers: list[bytes] = []
        if self._skip:
            if end < self._skip:
                self._skip -= end
                self._held = 0
                return
            at, self._skip = self._skip, 0
            answers += (self._size, self._correlation, self._rest)
        while end - at >= 12:
            frame_end = at + 4 + int.from_bytes(view[at : at + 4], "big")
            correlation = bytes(view[at + 8 : at + 12])
            if frame_end > end:
                self._correlation, self._skip = correlation, frame_end - end
                at = end
                break
            answers += (self._size, correlation, self._rest)
            at = frame_end
        self._held = end - at
        if self._held:
            self._buffer[: self._held] = view[at:end]
        if answers:
            self._transport.write(b"".join(answers))


class Echo(asyncio.BufferedProtocol):
    """Sends back what it receives."""

    def __init__(self) -> None:
        self._buffer = bytearray(RECEIVE_BYTES)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, received: int) -> None:
        self._transport.write(bytes(memoryview(self._buffer)[:received]))


class FlushedFiles:
    """N append-only files; what was gathered in a turn of the loop is written and flushed file by file, in a thread."""

    def __init__(self, directory: Path, count: int, loop: asyncio.AbstractEventLoop) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND
        self._files = [os.open(directory / f"shard-{i}.log", flags, 0o644) for i in range(count)]
        self._loop = loop
        self._thread = ThreadPoolExecutor(1)
        self._pending: dict[int, list[bytes]] = {}
        self._waiting: list[tuple[asyncio.Transport, bytes]] = []
        self._is_flushing = False

    def add(self, correlation: int, payload: bytes, transport: asyncio.Transport, answer: bytes) -> None:
        self._pending.setdefault(correlation % len(self._files), []).append(payload)
        self._waiting.append((transport, answer))
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        pending, self._pending = self._pending, {}
        waiting, self._waiting = self._waiting, []
        flushed = self._loop.run_in_executor(self._thread, self._write, pending)
        flushed.add_done_callback(lambda _: self._answer(waiting))

    def _write(self, pending: dict[int, list[bytes]]) -> None:
        for number, pieces in pending.items():
            for start in range(0, len(pieces), 1000):
                os.writev(self._files[number], pieces[start : start + 1000])
            os.fdatasync(self._files[number])

    def _answer(self, waiting: list[tuple[asyncio.Transport, bytes]]) -> None:
        together: dict[asyncio.Transport, list[bytes]] = {}
        for transport, answer in waiting:
            together.setdefault(transport, []).append(answer)
        for transport, answers in together.items():
            if not transport.is_closing():
                transport.write(b"".join(answers))
        self._is_flushing = bool(self._waiting)
        if self._is_flushing:
            self._flush()


class DurableSink(asyncio.Protocol):
    """Keeps each frame until it is whole, hands it to the files, and answers when they are flushed."""

    def __init__(self, files: FlushedFiles, reply_bytes: int) -> None:
        self._files = files
        self._gathered = bytearray()
        self._size = (reply_bytes - 4).to_bytes(4, "big")
        self._rest = bytes(reply_bytes - 8)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._gathered += data
        at = 0
        while len(self._gathered) - at >= 12:
            end = at + 4 + int.from_bytes(self._gathered[at : at + 4], "big")
            if end > len(self._gathered):
                break
            correlation = bytes(self._gathered[at + 8 : at + 12])
            payload = bytes(self._gathered[at:end])
            answer = self._size + correlation + self._rest
            self._files.add(int.from_bytes(correlation, "big"), payload, self._transport, answer)
            at = end
        del self._gathered[:at]


async def serve(options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    factory: Callable[[], asyncio.BaseProtocol]
    if options.files:
        store = FlushedFiles(options.dir, options.files, loop)
        factory = partial(DurableSink, store, options.reply)
    elif options.echo:
        factory = Echo
    else:
        factory = partial(Sink, options.reply)
    server = await loop.create_server(factory, "127.0.0.1", options.port)
    gc.freeze()
    print(f"ready on 127.0.0.1:{options.port}", flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--reply", type=int, default=60)
    parser.add_argument("--files", type=int, default=0)
    parser.add_argument("--dir", type=Path, default=Path())
    parser.add_argument("--echo", action="store_true")
    uvloop.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
