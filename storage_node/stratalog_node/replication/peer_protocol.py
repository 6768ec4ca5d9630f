"""A connection to another node's Kafka port: requests out, answers in, one frame each, in a buffer that is used again.

Lives on the event loop. Memory: one buffer. It grows with the bytes that have arrived, not with the size that the
answer claims, and up to `most_bytes`; after a large answer it shrinks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from stratalog.tls.outgoing import why_no_tls

_SIZE_BYTES = 4
_FIRST_BYTES = 64 << 10
_KEPT_BYTES = 16 << 20
"""A larger buffer is given back once its answer was used."""


class PeerProtocol(asyncio.BufferedProtocol):
    def __init__(self, most_bytes: int, on_frame: Callable[[memoryview], None], on_lost: Callable[[str], None]) -> None:
        """`most_bytes`: of one answer. `on_frame` gets each answer without its size; the bytes are good until it
        returns. `on_lost` hears once why the connection ended."""
        self._most_bytes = most_bytes
        self._on_frame = on_frame
        self._on_lost: Callable[[str], None] | None = on_lost
        self._buffer = memoryview(bytearray(_FIRST_BYTES))
        self._end = 0
        self._transport: asyncio.Transport | None = None
        self._time = asyncio.get_running_loop().time
        self._heard_s = self._time()
        self._began_s: float | None = None
        """When the first bytes of the answer came that is not whole yet."""
        self.answer_ms = 0.0
        """How long the answer that `on_frame` is given took, from its first bytes to its last."""

    @property
    def silent_ms(self) -> float:
        """How long nothing has come: an answer that comes slowly is on its way."""
        return (self._time() - self._heard_s) * 1_000

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by its methods, not by its class

    def send(self, frame: bytes) -> None:
        if self._transport is not None:
            self._transport.write(frame)

    def close(self, reason: str) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        self._lost(reason)

    def _lost(self, reason: str) -> None:
        on_lost, self._on_lost = self._on_lost, None
        if on_lost is not None:
            on_lost(reason)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost("the peer closed the connection" if exc is None else why_no_tls(exc) or str(exc))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        self._heard_s = self._time()
        try:
            self._take_frames()
        except Exception as error:  # what a peer sends must not end more than its connection (F48)
            self.close(f"an answer that cannot be used: {error}")

    def _take_frames(self) -> None:
        start, end = 0, self._end
        needed = _SIZE_BYTES
        while end - start >= _SIZE_BYTES and self._transport is not None:
            size = int.from_bytes(self._buffer[start : start + _SIZE_BYTES], "big", signed=True)
            if not 0 < size <= self._most_bytes:
                self.close(f"an answer of {size} bytes, and none may have more than {self._most_bytes}")
                return
            needed = _SIZE_BYTES + size
            if end - start < needed:
                if self._began_s is None:
                    self._began_s = self._heard_s
                break
            self.answer_ms = 0.0 if self._began_s is None else (self._heard_s - self._began_s) * 1_000
            self._began_s = None
            self._on_frame(self._buffer[start + _SIZE_BYTES : start + needed])
            start, needed = start + needed, _SIZE_BYTES
        kept = end - start
        room = len(self._buffer)
        if needed > room and kept == room:
            self._take_buffer(min(needed, 2 * room), start, end)
        elif not kept and room > _KEPT_BYTES:
            self._take_buffer(_FIRST_BYTES, start, end)
        elif start:
            self._buffer[:kept] = bytes(self._buffer[start:end])
        self._end = kept

    def _take_buffer(self, size_bytes: int, start: int, end: int) -> None:
        """Another one, with what is kept of this one at its front."""
        buffer = memoryview(bytearray(size_bytes))
        buffer[: end - start] = self._buffer[start:end]
        self._buffer = buffer
