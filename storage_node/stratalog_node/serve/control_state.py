"""What the control handlers of one node keep between requests. Lives on the event loop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from stratalog.meta_api.client import MetaClient
from stratalog.model.commands import AllocateProducerIds
from stratalog_node.serve.advertised import AdvertisedApi
from stratalog_node.serve.departed import Departed
from stratalog_node.serve.metadata_pieces import MetadataPieces
from stratalog_node.shards.catalog import Catalog
from stratalog_node.shards.catalog_lag import CatalogLag

PRODUCER_ID_BLOCK = 1_000


class ProducerIds:
    """Producer ids never given before, taken from the meta service in blocks; a block's rest is lost at a restart."""

    def __init__(self) -> None:
        self._block = iter(range(0))
        self._lock = asyncio.Lock()

    async def next(self, meta: MetaClient) -> int:
        """Raises: Unavailable, OutcomeUnknown (the block is lost then, which harms nobody)."""
        async with self._lock:
            producer_id = next(self._block, None)
            if producer_id is None:
                block = await meta.perform(AllocateProducerIds(PRODUCER_ID_BLOCK))
                self._block = iter(range(block.first, block.end))
                producer_id = next(self._block)
            return producer_id


@dataclass(slots=True)
class ControlState:
    advertised: tuple[AdvertisedApi, ...]
    """What ApiVersions lists."""
    producer_ids: ProducerIds = field(default_factory=ProducerIds)
    metadata: MetadataPieces = field(default_factory=MetadataPieces)
    _lag: CatalogLag | None = None
    _departed: Departed | None = None

    def lag(self, catalog: Catalog, meta: MetaClient) -> CatalogLag:
        """One for all requests, so that they share the questions."""
        self._lag = self._lag or CatalogLag(catalog, meta)
        return self._lag

    def departed(self, catalog: Catalog) -> Departed:
        """From the first question on it hears who leaves."""
        self._departed = self._departed or Departed(catalog)
        return self._departed
