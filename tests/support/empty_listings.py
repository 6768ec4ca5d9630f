"""A store behind a proxy that answers listings with a page of its own: the client reads a list of nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from stratalog.objects.store import ObjectInfo, ObjectStore


class EmptyListings:
    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self.is_empty: Callable[[str], bool] = lambda prefix: True
        """Whether the listing of that prefix is answered by the proxy."""

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        if not self.is_empty(prefix):
            async for info in self._inner.list(prefix):
                yield info

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)
