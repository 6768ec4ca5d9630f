"""A meta store that lives and dies with its object: for tests and simulations.

It keeps encoded items, as the others do, so what it loads has been through the encoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from stratalog.machines.table.records import StoredRecord, TableWrite
from stratalog.model.errors import Unavailable
from stratalog.stored import encoding


class MemoryStore:
    """One instance is one store: closed and loaded again it still has what was written."""

    def __init__(self) -> None:
        self._items: dict[bytes, bytes] = {}
        self._is_open = False

    @property
    def source(self) -> str:
        return "memory"

    async def load(self) -> list[StoredRecord]:
        if self._is_open:
            raise Unavailable("this memory store is in use by another service: close that one first")
        records = list(encoding.decode(sorted(self._items.items()), self.source))
        self._is_open = True
        return records

    async def write(self, commands: Sequence[Sequence[TableWrite]]) -> None:
        if not self._is_open:
            raise Unavailable("this memory store is closed: load it first")
        for key, value in list(encoding.encode(chain.from_iterable(commands))):
            if value is None:
                self._items.pop(key, None)
            else:
                self._items[key] = value

    async def close(self) -> None:
        self._is_open = False
