"""Waits until this node's catalog shows what the meta service has confirmed: the watch brings it a moment later.

A client that got its answer sends the next request at once, often here: it must not get "unknown topic".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from stratalog.machines.backoff import longest_pause
from stratalog_node.slices import Slices

_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.02

_T = TypeVar("_T")


async def catalog_shows(condition: Callable[[], bool], timeout_ms: float) -> bool:
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


async def catalog_shows_each(things: Iterable[_T], is_shown: Callable[[_T], bool], timeout_ms: int) -> bool:
    """The same for many things. Each is checked until it is shown, and not again: a request that changed thousands
    costs little more than a check of each, in slices."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000
    slices = Slices()
    for thing in things:
        left_ms = max(0.0, deadline - loop.time()) * 1000
        if not is_shown(thing) and not await catalog_shows(partial(is_shown, thing), left_ms):
            return False
        await slices.did()
    return True
