"""Producer ids never given before, taken from the meta service in blocks; what is left of them is lost at a restart.

A block is kept ahead, from the node's start on, so that new producers begin also while the meta service is away. Lives
on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from stratalog.meta_api.client import CommandTaker
from stratalog.model.commands.table_commands import AllocateProducerIds
from stratalog.model.errors import StratalogError
from stratalog.telemetry.logs import logger

PRODUCER_ID_BLOCK = 1_000

log = logger(__name__)


class ProducerIds:
    def __init__(self) -> None:
        self._block: Iterator[int] = iter(range(0))
        self._ahead: Iterator[int] | None = None
        self._lock = asyncio.Lock()
        self._filling: asyncio.Task[None] | None = None

    async def next(self, meta: CommandTaker) -> int:
        """Raises: Unavailable, OutcomeUnknown (the block is lost then, which harms nobody)."""
        async with self._lock:
            producer_id = next(self._block, None)
            if producer_id is None:
                if self._ahead is None:
                    self._ahead = await self._take(meta)
                self._block, self._ahead = self._ahead, None
                producer_id = next(self._block)
                self.fill(meta)
            return producer_id

    def fill(self, meta: CommandTaker) -> None:
        """Take a block for later, if there is none."""
        if self._ahead is None and (self._filling is None or self._filling.done()):
            self._filling = asyncio.get_running_loop().create_task(self._fill(meta), name="producer-ids")

    async def close(self) -> None:
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.gather(self._filling, return_exceptions=True)

    async def _fill(self, meta: CommandTaker) -> None:
        try:
            block = await self._take(meta)
        except StratalogError as failure:  # the next one who needs it asks again
            log.info("no producer ids ahead", error=str(failure))
        else:
            self._ahead = self._ahead or block

    @staticmethod
    async def _take(meta: CommandTaker) -> Iterator[int]:
        block = await meta.perform(AllocateProducerIds(PRODUCER_ID_BLOCK))
        return iter(range(block.first, block.end))
