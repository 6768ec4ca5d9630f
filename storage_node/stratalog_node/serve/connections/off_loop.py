"""Reads and builds large control messages on a thread, so that the event loop stays free.

A thread takes the interpreter for a few milliseconds at a time; on the loop the whole work could take seconds. The work
must use plain values that do not change meanwhile, because it runs beside the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from stratalog.kafka import messages

FEW = 500
"""Entries that are made at once: 2 to 5 ms."""

_T = TypeVar("_T")


async def off_loop(entries: int, work: Callable[[], _T]) -> _T:
    """What `work` returns; done in place when it is about few entries."""
    return work() if entries <= FEW else await asyncio.to_thread(work)


async def encoded(schema: Any, entries: int, values: Callable[[], dict[str, Any]]) -> messages.EncodedBody:
    """An encoded answer of that many entries: `values` returns its fields other than the throttle time."""

    def encode() -> messages.EncodedBody:
        return messages.EncodedBody(messages.encode_entity(messages.build(schema, throttle_time=0, **values())))

    return await off_loop(entries, encode)
