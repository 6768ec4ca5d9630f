"""A meta store on a bad day: it holds writes, loses their answers, or refuses them, as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from stratalog.machines.table.records import StoredRecord, TableWrite
from stratalog.model.errors import DiskFull, OutcomeUnknown
from stratalog_meta.stores.meta_store import MetaStore, WriteRefused


class DiskBroke(Exception):
    """An exception of a store: any exception means that the outcome is unknown."""


class FailingStore:
    """Passes everything on to a real store until told otherwise. `writes` counts the transactions that were asked."""

    def __init__(self, store: MetaStore) -> None:
        self._store = store
        self._gate = asyncio.Event()
        self._gate.set()
        self.writes = 0
        self.is_full = False
        """There is no room: writes fail, and so does opening the store again."""
        self.fails_before = False
        self.fails_after = False
        self.refuses_after: int | None = None
        """How many commands of the next write are kept; the others are refused, and the store keeps working."""
        self.loses_answer = False
        """The next write is kept and its answer lost; `close` and `load` help."""

    def hold(self) -> None:
        """Let writes wait until `let_go`."""
        self._gate.clear()

    def let_go(self) -> None:
        self._gate.set()

    def release_one(self) -> None:
        """Let the waiting write continue; the next one waits again."""
        self._gate.set()
        self._gate = asyncio.Event()

    @property
    def source(self) -> str:
        return self._store.source

    async def load(self) -> list[StoredRecord]:
        if self.is_full:
            raise DiskFull("no room")
        return await self._store.load()

    async def write(self, commands: Sequence[Sequence[TableWrite]]) -> None:
        self.writes += 1
        await self._gate.wait()
        if self.is_full and not self.fails_after:
            raise DiskFull("no room")
        if self.fails_before:
            raise DiskBroke("it refused")
        if self.refuses_after is not None:
            kept, self.refuses_after = self.refuses_after, None
            await self._store.write(commands[:kept])
            raise WriteRefused(kept, DiskFull("the quota is used up"))
        await self._store.write(commands)
        if self.loses_answer:
            self.loses_answer = False
            raise OutcomeUnknown("its answer was lost")
        if self.is_full:
            raise DiskFull("no room for the last page")
        if self.fails_after:
            raise DiskBroke("its answer was lost")

    async def close(self) -> None:
        await self._store.close()
