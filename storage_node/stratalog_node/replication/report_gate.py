"""Lets one report at a time through while the meta service does not answer, after pauses that grow.

A node has thousands of replicas, and each repeats its promise or the report of its copy until the service takes it.
While the service is away one of them tries, the others wait for it: it is one request, and one line in the log, for
each pause. Once one is answered, all go at once.
Lives on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from stratalog.model.errors import OutcomeUnknown, StratalogError, Unavailable
from stratalog.telemetry.logs import logger
from stratalog_node.backoff import Backoff

log = logger(__name__)


class ReportGate:
    def __init__(self) -> None:
        self._trial = asyncio.Lock()
        self._backoff: Backoff | None = None
        """None: the service answered the last report."""
        self._waiting = 0

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """The caller sends one report in it, and lets the error pass that it meets."""
        if self._pauses() is None:
            with self._noted():
                yield
            return
        self._waiting += 1
        try:
            await self._trial.acquire()
        finally:
            self._waiting -= 1
        try:
            backoff = self._pauses()
            if backoff is not None:
                await backoff.pause()
                with self._noted():
                    yield
                return
        finally:
            self._trial.release()
        with self._noted():
            yield

    def _pauses(self) -> Backoff | None:
        return self._backoff  # it changes while others are waited for

    @contextmanager
    def _noted(self) -> Iterator[None]:
        was_away = self._backoff
        try:
            yield
        except (Unavailable, OutcomeUnknown) as error:
            if self._backoff is was_away:  # else another report that was under way said so already
                self._backoff = was_away or Backoff()
                log.warning(
                    "the meta service does not take reports of copies",
                    waiting=self._waiting,
                    retry_s=self._backoff.next_s,
                    error=str(error),
                )
            raise
        except StratalogError:  # it answered
            self._backoff = None
            raise
        self._backoff = None
