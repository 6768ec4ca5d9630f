"""How close together a node dials others over TLS: each handshake takes 1.2 ms of the event loop.

Where a hundred nodes come back at once, their answers would keep the loop for 120 ms in a row. So connections begin
`APART_S` apart. None waits longer than `MOST_S`, whatever the number of nodes. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
from typing import Final

APART_S: Final = 0.004
MOST_S: Final = 1.0
"""Well below what a connection may take."""


class DialPace:
    def __init__(self) -> None:
        self._next_s = 0.0
        """By the loop's clock: when the next one may begin."""

    async def next(self) -> None:
        """Returns when it is the caller's turn: at once, unless others have begun a moment ago."""
        now_s = asyncio.get_running_loop().time()
        begin_s = min(max(now_s, self._next_s), now_s + MOST_S)
        self._next_s = begin_s + APART_S
        if begin_s > now_s:
            await asyncio.sleep(begin_s - now_s)
