"""Repeats a report to the meta service about this node's copies until the metadata show it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from stratalog.model.errors import StratalogError
from stratalog.telemetry.logs import logger

log = logger(__name__)


async def report_repeatedly(check: Callable[[], Awaitable[None]], pause_s: Callable[[], float], what: str) -> None:
    """Without an end. `look` tells what is to be told now, and may raise as it likes."""
    while True:
        await asyncio.sleep(pause_s())
        try:
            await check()
        except StratalogError as error:
            log.warning(f"{what} are not reported yet", error=str(error))
        except Exception:  # they would never be told (F48)
            log.error(f"{what} cannot be looked for", exc_info=True)
