"""How throughput and lag went over the last half hour, for the node's page. In memory: it begins with the process.

Lives on the event loop. Cost: a few additions each ten seconds; lag as the measures do it (`series.Throttled`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from stratalog.telemetry.logs import logger

_PERIOD_S: Final = 10.0
_KEPT: Final = 180

log = logger(__name__)


class Sums(NamedTuple):
    """Figures of a node. The first two are counters since the process began."""

    appended_bytes: int
    fetched_bytes: int
    upload_lag_bytes: int
    consumer_lag: int
    """Records, of the groups that this node coordinates."""


class Sample(NamedTuple):
    at_ms: int
    sums: Sums


class History:
    def __init__(self, take: Callable[[], Awaitable[Sums]], wall_ms: Callable[[], int]) -> None:
        self._take = take
        self._wall_ms = wall_ms
        self.samples: deque[Sample] = deque(maxlen=_KEPT)

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            try:
                sums = await self._take()
            except Exception:  # a plot with a hole in it, and not a node without plots (F48)
                log.exception("a sample for the status page could not be taken")
            else:
                self.samples.append(Sample(self._wall_ms(), sums))
            await asyncio.sleep(_PERIOD_S)
