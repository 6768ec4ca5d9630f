"""What the control handlers of one node keep between requests. Lives on the event loop."""

from __future__ import annotations

from dataclasses import dataclass, field

from stratalog.meta_api.client import MetaClient
from stratalog_node.serve.connections.advertised import AdvertisedApi
from stratalog_node.serve.connections.metadata_entries import MetadataEntries
from stratalog_node.serve.connections.producer_ids import ProducerIds
from stratalog_node.serve.connections.recently_dead_nodes import RecentlyDeadNodes
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.catalog.lag import CatalogLag


@dataclass(slots=True)
class ControlState:
    advertised: tuple[AdvertisedApi, ...]
    """What ApiVersions lists."""
    producer_ids: ProducerIds = field(default_factory=ProducerIds)
    metadata: MetadataEntries = field(default_factory=MetadataEntries)
    _lag: CatalogLag | None = None
    _recently_dead: RecentlyDeadNodes | None = None

    def lag(self, catalog: Catalog, meta: MetaClient) -> CatalogLag:
        """One for all requests, so that they share the questions."""
        self._lag = self._lag or CatalogLag(catalog, meta)
        return self._lag

    def recently_dead(self, catalog: Catalog) -> RecentlyDeadNodes:
        """From the first question on it hears who leaves."""
        self._recently_dead = self._recently_dead or RecentlyDeadNodes(catalog)
        return self._recently_dead
