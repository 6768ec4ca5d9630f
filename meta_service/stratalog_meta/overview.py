"""The service's answer for the status page: what is known, looked at seldom enough that watching it costs little.

Lives on the service's event loop. Whoever asks meanwhile gets the same answer; making one takes turns with everybody
else, and then the next one waits so long that all of them take at most a twentieth of the time, however many watch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Final

from stratalog.machines.cluster_overview import Known, overview
from stratalog.model.status_page import Overview

_SHARE: Final = 20
FRESH_MS: Final = 500


class OverviewMaker:
    def __init__(self, known: Callable[[], Awaitable[Known]], monotonic_ms: Callable[[], int]) -> None:
        self._known = known
        self._monotonic_ms = monotonic_ms
        self._made: Overview | None = None
        self._fresh_until_ms = 0
        self._making: asyncio.Task[Overview] | None = None

    async def overview(self) -> Overview:
        """Raises what reading the metadata raises."""
        if self._made is not None and self._monotonic_ms() < self._fresh_until_ms:
            return self._made
        if self._making is None or self._making.done():
            self._making = asyncio.get_running_loop().create_task(self._make(), name="meta-overview")
        return await asyncio.shield(self._making)  # one who goes away takes it from nobody else

    async def close(self) -> None:
        if self._making is not None:
            self._making.cancel()
            await asyncio.gather(self._making, return_exceptions=True)

    async def _make(self) -> Overview:
        steps, spent_ms = overview(await self._known()), 0
        while True:
            began_ms = self._monotonic_ms()
            made = _step(steps)
            now_ms = self._monotonic_ms()
            spent_ms += now_ms - began_ms
            if made is not None:
                self._made, self._fresh_until_ms = made, now_ms + max(FRESH_MS, _SHARE * spent_ms)
                return made
            await asyncio.sleep(0)


def _step(steps: Generator[None, None, Overview]) -> Overview | None:
    """The result, with the last step."""
    try:
        next(steps)
    except StopIteration as done:
        made: Overview = done.value
        return made
    return None
