"""Lets one report at a time through while the meta service does not answer, after pauses that grow.

A node has thousands of replicas, and each repeats its promise or the report of its copy until the service takes it.
While the service is away one of them tries, the others wait for it: it is one request, and one line in the log, for
each pause. Once one is answered, all go at once.
Lives on the event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from stratalog.model.errors import OutcomeUnknown, StratalogError, Unavailable
from stratalog.telemetry.logs import logger
from stratalog_node.backoff import Backoff
from stratalog_node.one_tries import OneTries

log = logger(__name__)


class ReportGate:
    def __init__(self) -> None:
        self._one = OneTries(Backoff)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """The caller sends one report in it, and lets the error pass that it meets."""
        async with self._one.turn():
            with self._noted():
                yield

    @contextmanager
    def _noted(self) -> Iterator[None]:
        one, was_away = self._one, self._one.backoff
        try:
            yield
        except (Unavailable, OutcomeUnknown) as error:
            if one.backoff is was_away:  # else another report that was under way said so already
                log.warning(
                    "the meta service does not take reports of copies",
                    waiting=one.waiting,
                    retry_s=one.met_trouble().next_s,
                    error=str(error),
                )
            raise
        except StratalogError:  # it answered
            one.trouble_ended()
            raise
        one.trouble_ended()
