"""A background task that runs a round at an interval, or when poked. A failed round logs one line per kind of failure,
and the next one runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from stratalog.model.errors import StratalogError
from stratalog.telemetry.logs import logger
from stratalog_node.tier.store.stats import TierStats

log = logger(__name__)


class PeriodicTask:
    """Runs `work` until closed. Rounds never overlap."""

    def __init__(self, name: str, interval_ms: int, work: Callable[[], Awaitable[object]], stats: TierStats) -> None:
        self._name = name
        self._interval_s = interval_ms / 1_000
        self._work = work
        self._stats = stats
        self._poked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._complained: str | None = None
        self._has_failed = False

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=self._name)

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def poke(self) -> None:
        """Do a round soon."""
        self._poked.set()

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._poked.wait()
            except TimeoutError:
                pass
            self._poked.clear()
            self._has_failed = False
            await self.guard(self._work)
            if not self._has_failed:
                self._complained = None

    async def guard(self, work: Callable[[], Awaitable[object]]) -> None:
        """Run one step; its failure is counted, told once, and goes no further (F48, F79)."""
        try:
            await work()
        except (StratalogError, TimeoutError) as error:
            self.complain(error)
        except Exception:
            self._stats.rounds_failed += 1
            log.exception("a background task failed, its next pass is tried", task=self._name)

    def complain(self, error: Exception) -> None:
        self._stats.rounds_failed += 1
        self._has_failed = True
        kind = type(error).__name__
        if self._complained != kind:
            self._complained = kind
            log.warning(
                "a background task did not finish its pass, it is tried again", task=self._name, error=str(error)
            )
