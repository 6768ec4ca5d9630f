"""Makes sure that the node's catalog is no older than a question, where "not there" would be an answer of weight.

A coordinator may know an offset whose topic its catalog does not show: the topic was deleted, or the catalog is behind
the metadata (a node that took over a moment ago). Told "nothing committed", a consumer would begin anew.
Thread: the event loop. Cost: one read of the meta service, asked only when there is such an offset.
"""

from __future__ import annotations

from typing import Protocol

from stratalog.model.errors import StratalogError
from stratalog_node.shards.catalog_wait import catalog_shows

_PATIENCE_MS = 1_000


class Versioned(Protocol):
    @property
    def version(self) -> int: ...


class VersionSource(Protocol):
    async def read_version(self) -> int: ...


class CatalogLag:
    def __init__(self, catalog: Versioned, meta: VersionSource) -> None:
        self._catalog = catalog
        self._meta = meta

    async def catch_up(self) -> bool:
        """Whether the catalog shows all that was true when this was called; False when that cannot be said now."""
        try:
            version = await self._meta.read_version()
        except StratalogError:
            return False
        return await catalog_shows(lambda: self._catalog.version >= version, _PATIENCE_MS)
