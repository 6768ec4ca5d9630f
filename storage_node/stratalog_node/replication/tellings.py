"""What a node tells the meta service of its copies again and again, until the records say so: the loop of the looks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from stratalog.model.errors import StratalogError
from stratalog.telemetry.logs import logger

log = logger(__name__)


async def tell_again(look: Callable[[], Awaitable[None]], pause_s: Callable[[], float], what: str) -> None:
    """Without an end. `look` tells what is to be told now, and may raise as it likes."""
    while True:
        await asyncio.sleep(pause_s())
        try:
            await look()
        except StratalogError as error:
            log.warning(f"{what} are not reported yet", error=str(error))
        except Exception:  # they would never be told (F48)
            log.error(f"{what} cannot be looked for", exc_info=True)
