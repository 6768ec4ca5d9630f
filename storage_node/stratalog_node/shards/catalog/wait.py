"""Waits until this node's catalog shows what the meta service has confirmed: the watch brings it a moment later.

A client that got its answer sends the next request at once, often here: it must not get "unknown topic".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stratalog.machines.backoff import longest_pause

_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.02


async def catalog_shows(condition: Callable[[], bool], timeout_ms: int) -> bool:
    """Returns: whether the condition came true in time. The change itself is done either way."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000
    tries = 0
    while not condition():
        if loop.time() >= deadline:
            return False
        tries += 1
        await asyncio.sleep(longest_pause(tries, _FIRST_PAUSE_S, _LONGEST_PAUSE_S))
    return True
