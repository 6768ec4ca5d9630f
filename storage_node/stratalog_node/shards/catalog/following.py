"""Keeps a catalog current by the meta service's watch; a lost watch continues where it ended.

One task. A process without a connection to the service keeps serving with the metadata that it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stratalog.meta_api.client import MetaClient
from stratalog.model.errors import NotFound, StratalogError, Unavailable
from stratalog.telemetry.logs import logger
from stratalog_node.shards.catalog.catalog import Catalog

log = logger(__name__)

_PAUSE_S = 0.2


async def follow(meta: MetaClient, catalog: Catalog, end: Callable[[str], None]) -> None:
    """Runs until it is cancelled. Calls `end` with the reason when the metadata went back in time: this process must
    then stop."""
    while True:
        try:
            await _until_lost(meta, catalog, end)
        except StratalogError as error:
            log.warning("metadata watch interrupted", error=str(error))
        except Exception as error:
            log.error("metadata cannot be followed", error=str(error), exc_info=True)
        await asyncio.sleep(_PAUSE_S)


async def _until_lost(meta: MetaClient, catalog: Catalog, end: Callable[[str], None]) -> None:
    try:
        async for change_set in meta.watch(catalog.version):
            for _ in catalog.apply_in_steps(change_set):
                await asyncio.sleep(0)
    except NotFound:
        # The watch's history is gone: load everything again. The difference to the old state reports the shards that
        # vanished.
        snapshot = await meta.snapshot()
        if snapshot.version < catalog.version:
            why = (
                f"the metadata went back from version {catalog.version} to {snapshot.version}: their store "
                "was put back from a copy. Nothing of that was taken over; see docs/meta.md, then start again"
            )
            end(why)
            raise Unavailable(why) from None
        for _ in catalog.reload_in_steps(snapshot):
            await asyncio.sleep(0)
    else:
        raise Unavailable("the watch ended")
