"""Control answers that are made and not yet taken by their clients, counted for the whole node.

A connection stops being read once it has enough unsent, but the answer that a request is owed was made by then, and
one may take tens of megabytes: a hundred clients that ask and do not read would hold gigabytes. While there is more
than the limit, connections whose clients take nothing, or are still at an answer made long ago, are closed, the oldest
answer's first. Clients that read are left alone, however many come at once.
Lives on the event loop. Cost: a look at every answer that waits, once a second, only above the limit.
"""

from __future__ import annotations

from stratalog_node.serve.answer import Answer
from stratalog_node.serve.connection import Connection

_STILL_MS = 1_000
_LONG_MS = 10_000


class UntakenAnswers:
    def __init__(self, limit_bytes: int) -> None:
        self.size_bytes = 0
        self._limit_bytes = limit_bytes
        self._held: dict[Answer, tuple[Connection, int, int]] = {}
        """Oldest first: whose it is, its size, and when it was made."""

    def hold(self, answer: Answer, connection: Connection, size_bytes: int, now_ms: int) -> None:
        """From here on until it was sent or dropped. Requires: the answer stands in the connection's line."""
        self._held[answer] = connection, size_bytes, now_ms
        self.size_bytes += size_bytes
        answer.release = lambda: self._let_go(answer)

    def shed(self, now_ms: int) -> None:
        """Once a second. The newest answer stays, however large: without it no large one could be sent."""
        if self.size_bytes <= self._limit_bytes:
            return
        for connection, _, made_ms in list(self._held.values())[:-1]:
            if self.size_bytes <= self._limit_bytes:
                return
            if now_ms - connection.last_active_ms >= _STILL_MS or now_ms - made_ms >= _LONG_MS:
                connection.close(
                    f"{self.size_bytes} bytes of answers wait for their clients (queued.max.request.bytes: "
                    f"{self._limit_bytes}), and this one does not take its own: read answers as they come",
                    is_fault=True,
                )

    def _let_go(self, answer: Answer) -> None:
        self.size_bytes -= self._held.pop(answer)[1]
