"""Control answers that are built and not yet read by their clients, counted for the whole node.

A connection is not read any more once it has enough unsent data, but the answer to its last request is built by then,
and one answer may take tens of megabytes: a hundred clients that ask and do not read would hold gigabytes. Above the
limit no further large answer is begun (`room`), and connections are closed whose clients read nothing, or are still
reading an answer that was built long ago; the oldest answer goes first. Clients that read are left alone. The time
limit begins with the answer, not with the request, and at most one second counts between two polls, so that no client
pays for time in which this node's own loop was blocked.
Lives on the event loop. Cost: a check of every waiting answer, once a second, only above the limit.
"""

from __future__ import annotations

import asyncio

from stratalog_node.serve.connections.answer import Answer
from stratalog_node.serve.connections.connection import Connection

_POLL_MS = 1_000
_STILL_MS = 2 * _POLL_MS
_LONG_MS = 10 * _POLL_MS


class UnsentAnswers:
    def __init__(self, limit_bytes: int) -> None:
        self.size_bytes = 0
        self._limit_bytes = limit_bytes
        self._held: dict[Answer, tuple[Connection, int, int]] = {}
        """Oldest first: whose it is, its size, and when it was made, in `_patience_ms`."""
        self._polls_ms = (0, 0)
        """When the last two polls were. Sockets were served between each and the one after it, if only once."""
        self._patience_ms = 0
        """Time that counts: of a stall no more than a second does."""
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._asking = 0

    @property
    def is_full(self) -> bool:
        return self.size_bytes > self._limit_bytes

    async def room(self) -> None:
        """Returns once there is room for more; another may have taken it by the time the caller runs."""
        self._asking += 1
        try:
            await self._has_room.wait()
        finally:
            self._asking -= 1

    def hold(self, answer: Answer, connection: Connection, size_bytes: int) -> None:
        """Counts the answer until it is sent or dropped. Requires: the answer is in the connection's queue."""
        self._held[answer] = connection, size_bytes, self._patience_ms
        self.size_bytes += size_bytes
        if self.is_full:
            self._has_room.clear()
        answer.release = lambda: self._let_go(answer)

    def shed(self, now_ms: int) -> None:
        """Call once a second. While no request waits for room the newest answer stays, however large it is."""
        before_last_ms, last_ms = self._polls_ms
        self._polls_ms = last_ms, now_ms
        self._patience_ms += min(now_ms - last_ms, _POLL_MS)
        if not self.is_full:
            return
        for connection, _, made_ms in list(self._held.values())[: None if self._asking else -1]:
            if self.size_bytes <= self._limit_bytes:
                return
            age_ms = self._patience_ms - made_ms
            if (age_ms >= _STILL_MS and connection.last_active_ms < before_last_ms) or age_ms >= _LONG_MS:
                connection.close(
                    f"{self.size_bytes} bytes of answers wait for their clients (queued.max.request.bytes: "
                    f"{self._limit_bytes}), and this one does not take its own: read answers as they come",
                    is_fault=True,
                )

    def _let_go(self, answer: Answer) -> None:
        self.size_bytes -= self._held.pop(answer)[1]
        if not self.is_full:
            self._has_room.set()
