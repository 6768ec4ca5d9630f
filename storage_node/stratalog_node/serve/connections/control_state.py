"""What the control handlers of one node keep between requests. Lives on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from stratalog.meta_api.client import CommandTaker, MetaClient
from stratalog.model.commands.table_commands import AllocateProducerIds
from stratalog.model.errors import StratalogError
from stratalog.model.metadata import Change, NodeChanged
from stratalog.telemetry.logs import logger
from stratalog_node.serve.connections.advertised import AdvertisedApi
from stratalog_node.serve.connections.metadata_entries import MetadataEntries
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.catalog.lag import CatalogLag

PRODUCER_ID_BLOCK = 1_000

LINGER_S: Final = 3.0
"""Long enough for several Metadata requests of a client that sends one each second."""

log = logger(__name__)


class RecentlyDeadNodes:
    """Nodes whose lease ended a moment ago, which Metadata answers still list for a short time.

    librdkafka removes a broker that Metadata no longer lists. A shard whose new leader is in the same answer then has
    no leader, and the client asks again only a second later. So the answer that names the new leader still lists the
    old node. Lives on the event loop.
    """

    def __init__(self, catalog: Catalog) -> None:
        self.linger_s = LINGER_S
        self._since: dict[int, float] = {}
        self._loop = asyncio.get_running_loop()
        catalog.on_change(self._on_change)

    def _on_change(self, change: Change) -> None:
        if isinstance(change, NodeChanged):
            if change.node.is_alive:
                self._since.pop(change.node.node_id, None)
            else:
                self._since.setdefault(change.node.node_id, self._loop.time())

    def just_left(self, node_id: int) -> bool:
        since = self._since.get(node_id)
        return since is not None and self._loop.time() - since < self.linger_s


class ProducerIds:
    """Unused producer ids, allocated from the meta service in blocks. A restart loses the rest of a block.

    The node keeps a second block ready from its start on, so that new producers can begin while the meta service is
    away. Lives on the event loop.
    """

    def __init__(self) -> None:
        self._block: Iterator[int] = iter(range(0))
        self._ahead: Iterator[int] | None = None
        self._lock = asyncio.Lock()
        self._filling: asyncio.Task[None] | None = None

    async def next(self, meta: CommandTaker) -> int:
        """Raises: Unavailable, OutcomeUnknown (the block is lost then, which does no harm)."""
        async with self._lock:
            producer_id = next(self._block, None)
            if producer_id is None:
                if self._ahead is None:
                    self._ahead = await self._allocate_block(meta)
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
            block = await self._allocate_block(meta)
        except StratalogError as failure:  # the next caller that needs a block requests it again
            log.info("producer ids could not be fetched ahead", error=str(failure))
        else:
            self._ahead = self._ahead or block

    @staticmethod
    async def _allocate_block(meta: CommandTaker) -> Iterator[int]:
        block = await meta.perform(AllocateProducerIds(PRODUCER_ID_BLOCK))
        return iter(range(block.first, block.end))


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
