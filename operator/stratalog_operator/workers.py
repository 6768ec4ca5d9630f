"""Looks at keys of a queue: some at once, one at a time of each, each within a deadline.

A pass that fails is logged once, here, and repeated later. Lives in the operator's event loop.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final

from stratalog.model.errors import StratalogError
from stratalog.telemetry.logs import logger
from stratalog_operator.queue import Key, WakeQueue
from stratalog_operator.stats import OperatorStats

PASS_TIMEOUT_S: Final = 300.0
"""Requests have deadlines of their own. This one bounds a pass that hangs elsewhere."""
AT_ONCE: Final = 4
_JUST_WOKEN_S: Final = 1.0

RunPass = Callable[[Key], Awaitable[float | None]]
"""Returns after how many seconds the next pass is due; None: not until something wakes it."""

log = logger(__name__)


class Workers:
    def __init__(self, run_pass: RunPass, stats: OperatorStats, at_once: int = AT_ONCE) -> None:
        self._run_pass = run_pass
        self._stats = stats
        self._at_once = at_once
        self._queue = WakeQueue()
        self._running: dict[asyncio.Task[None], Key] = {}
        self._news = asyncio.Event()
        self._is_stopping = False
        self._is_over = asyncio.Event()
        self._last_due: float | None = None
        """After a request to stop: no pass that is due later is begun."""

    def wake(self, key: Key, *, is_named_only: bool = False) -> None:
        """Idempotent, cheap, from the loop's thread. `is_named_only`: see `WakeQueue.wake`."""
        self._queue.wake(key, _now(), is_named_only=is_named_only)
        self._news.set()

    def measure(self) -> None:
        """Brings the gauges up to date."""
        self._stats.queue_depth = self._queue.depth(_now())
        self._stats.queue_oldest_seconds = int(self._queue.oldest_wait_s(_now()))
        self._stats.failing_clusters = self._queue.failing()

    async def run(self) -> None:
        """Until `finish` or `stop`."""
        try:
            while not self._is_stopping and not self._is_finished():
                await self._run_next_pass()
        finally:
            self._is_over.set()

    async def _run_next_pass(self) -> None:
        """Begins what is due, then waits for news."""
        self._news.clear()
        while len(self._running) < self._at_once and (key := self._queue.start_next(self._until())) is not None:
            task = asyncio.create_task(self._one(key))
            self._running[task] = key
            task.add_done_callback(self._ended)
        if self._is_finished():
            return
        due = self._queue.next_due()
        if due is not None and self._last_due is not None and due > self._last_due:
            due = None
        free = len(self._running) < self._at_once
        try:
            async with asyncio.timeout(max(0.0, due - _now()) if due is not None and free else None):
                await self._news.wait()
        except TimeoutError:
            pass

    def _is_finished(self) -> bool:
        if self._last_due is None or self._running:
            return False
        due = self._queue.next_due()
        return due is None or due > self._last_due

    def _until(self) -> float:
        return _now() if self._last_due is None else min(_now(), self._last_due)

    async def finish(self, patience_s: float) -> None:
        """Completes the passes of woken clusters: deleting a namespace with the operator in it wakes the operator and
        stops it at once, and its finalizers must be released. Passes that take longer than `patience_s` are
        cancelled."""
        self._last_due = _now() + _JUST_WOKEN_S
        self._news.set()
        try:
            async with asyncio.timeout(patience_s):
                await self._is_over.wait()
        except TimeoutError:
            log.warning(
                "the operator stops before all clusters are done",
                clusters=["/".join(key) for key in self._running.values()],
            )
        await self.stop()

    async def stop(self) -> None:
        """Begins no new pass, and cancels running ones."""
        self._is_stopping = True
        self._news.set()
        for task in list(self._running):
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        if self._last_due is not None:
            # A key that was woken during its pass counts as just woken.
            self._last_due = max(self._last_due, _now() + _JUST_WOKEN_S)
        self._news.set()

    async def _one(self, key: Key) -> None:
        began = _now()
        try:
            async with asyncio.timeout(PASS_TIMEOUT_S):
                again_s = await self._run_pass(key)
        except (StratalogError, TimeoutError) as error:
            self._failed(key, error)
        except Exception as error:  # a fault in the pass of one cluster must not stop the others
            log.exception("pass failed on a fault of the operator", cluster="/".join(key))
            self._failed(key, error)
        else:
            self._queue.done(key, _now(), again_s)
            self._stats.passes += 1
            self._stats.last_success_timestamp_seconds = int(time.time())
        finally:
            self._stats.reconcile.observe(int((_now() - began) * 1_000_000))

    def _failed(self, key: Key, error: Exception) -> None:
        wait = self._queue.failed(key, _now(), random.random())
        self._stats.failures += 1
        words = "took too long" if isinstance(error, TimeoutError) else str(error)
        log.warning("pass failed", cluster="/".join(key), error=words, again_s=round(wait, 1))


def _now() -> float:
    return asyncio.get_running_loop().time()
