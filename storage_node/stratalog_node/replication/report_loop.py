"""Repeats a report to the meta service about this node's copies until the metadata show it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from stratalog.model.errors import StratalogError
from stratalog.telemetry.logs import logger
from stratalog_node.backoff import Backoff

log = logger(__name__)

_FAULT_S, _LONGEST_FAULT_S = 0.1, 10.0


async def report_repeatedly(check: Callable[[], Awaitable[None]], pause_s: Callable[[], float], what: str) -> None:
    """Without an end. `check` reports what is to be reported now, and may raise as it likes: then the pauses grow."""
    backoff: Backoff | None = None
    while True:
        await asyncio.sleep(pause_s())
        if backoff is not None:
            await backoff.pause()
        try:
            await check()
        except StratalogError as error:
            backoff = backoff or Backoff(_FAULT_S, _LONGEST_FAULT_S)
            log.warning(f"{what} are not reported yet", error=str(error), retry_s=backoff.next_s)
        except Exception:  # they would never be told (F48)
            backoff = backoff or Backoff(_FAULT_S, _LONGEST_FAULT_S)
            log.error(f"{what} cannot be looked for", exc_info=True, retry_s=backoff.next_s)
        else:
            backoff = None
