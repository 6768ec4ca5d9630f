"""What the control handlers of one node keep between requests. Lives on the event loop."""

from __future__ import annotations

from dataclasses import dataclass, field

from stratalog.meta_api.client import MetaClient
from stratalog_node.serve.advertised import AdvertisedApi
from stratalog_node.serve.departed import Departed
from stratalog_node.serve.metadata_entries import MetadataEntries
from stratalog_node.serve.producer_ids import ProducerIds
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.catalog.lag import CatalogLag


@dataclass(slots=True)
class ControlState:
    advertised: tuple[AdvertisedApi, ...]
    """What ApiVersions lists."""
    producer_ids: ProducerIds = field(default_factory=ProducerIds)
    metadata: MetadataEntries = field(default_factory=MetadataEntries)
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
