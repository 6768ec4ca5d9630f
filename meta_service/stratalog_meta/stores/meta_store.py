"""What a store of metadata does: load everything once, then write transactions, each whole and durable.

A store knows nothing of what the records mean. One process writes to it at a time: a second one is refused at `load`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from stratalog.machines.table_records import StoredRecord, TableWrite


class MetaStore(Protocol):
    @property
    def source(self) -> str:
        """Where the records are, for messages."""
        ...

    async def load(self) -> list[StoredRecord]:
        """Open the store and read it whole, the header first; empty for a new store.

        Raises Unavailable while another process has the store open, Corrupt for damaged data, InvalidRequest for a
        format that this version does not know.
        """
        ...

    async def write(self, writes: Sequence[TableWrite]) -> None:
        """Make all of the writes durable, or none.

        Any exception means unknown: the writes may be found by the next `load`, whole. The caller writes no more then.
        DiskFull says that `close` and `load` may help once there is room.
        """
        ...

    async def close(self) -> None:
        """Let go of the store. Without `close` nothing that was written is lost."""
        ...
