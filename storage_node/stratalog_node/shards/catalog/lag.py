"""Makes sure that the node's catalog is at least as new as a question whose answer may be "it does not exist".

A coordinator may know an offset of a topic that its catalog does not have: either the topic was deleted, or the catalog
is behind the metadata (a node that took over a moment ago). A consumer that gets "nothing committed" would start again
from the beginning. Or a client names a topic that it created through another node a moment ago, and gives up when the
answer is that it does not exist.
Thread: the event loop. Cost: one read of the meta service, only when something is missing, shared by all concurrent
callers.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from stratalog.model.errors import StratalogError
from stratalog_node.shards.catalog.wait import catalog_shows

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
        self._line = asyncio.Lock()
        self._begun = 0
        self._has_caught_up = False

    async def catch_up(self) -> bool:
        """Whether the catalog shows all that was true when this was called; False when that cannot be said now."""
        begun_before = self._begun
        async with self._line:
            if self._begun == begun_before:  # else another caller has asked since
                self._begun += 1
                self._has_caught_up = False  # in case the caller is cancelled before the answer
                self._has_caught_up = await self._read_version()
            return self._has_caught_up

    async def _read_version(self) -> bool:
        try:
            async with asyncio.timeout(_PATIENCE_MS / 1_000):
                version = await self._meta.read_version()
        except (StratalogError, TimeoutError):
            return False
        return await catalog_shows(lambda: self._catalog.version >= version, _PATIENCE_MS)
