"""What a store of metadata does: load everything once, then write commands, each whole and durable. A store does not
know what the records mean, and reports a write as done only when it knows that it is. One process writes to it at a
time: a second one is refused at `load`, or by what it would write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from stratalog.machines.table.records import StoredRecord, TableWrite
from stratalog.model.errors import StratalogError


class WriteRefused(Exception):
    """The first `kept` of the commands are durable, the others are not and never will be: the store knows. It keeps
    working, so the next write may be tried at once. `cause` is what the caller of the first refused command learns.
    """

    def __init__(self, kept: int, cause: StratalogError) -> None:
        super().__init__(str(cause))
        self.kept = kept
        self.cause = cause


class MetaStore(Protocol):
    @property
    def source(self) -> str:
        """Where the records are, for messages."""
        ...

    async def load(self) -> list[StoredRecord]:
        """Open the store and read it whole, the header first; empty for a new store.

        Nothing that an earlier `write` left unknown can be written after it.
        Raises Unavailable while another process has the store open, Corrupt for damaged data, InvalidRequest for a
        format that this version does not know.
        """
        ...

    async def write(self, commands: Sequence[Sequence[TableWrite]]) -> None:
        """Make the writes of all commands durable, in their order; those of one command all or none.

        Raises WriteRefused where the store knows what it kept. Any other exception means unknown: the first commands,
        each whole, may be found by the next `load`. The caller writes no more until then. DiskFull (once there is room)
        and OutcomeUnknown say that `close` and `load` may help; after any other kind they do not.
        """
        ...

    async def close(self) -> None:
        """Let go of the store. Without `close` nothing that was written is lost."""
        ...
