"""The interface to object stores: whole objects, ranges of them, create-only puts, listing, deletion.

There is no append and no overwrite: a name is written once. An attempt whose outcome is unknown gets a new name.
Errors: `NotFound`, `AlreadyExists` (which may be the caller's own earlier attempt), `Unavailable` (slow down, refused,
denied, timed out on a read, a body spoiled on its way: try later; `Archived` of an object that must be restored
before it is read), `OutcomeUnknown` (a put whose answer was lost:
never sent again by the store),
`Corrupt` (the object ends before the range), `InvalidRequest` (a key or a range that cannot be).
Every call has a deadline; reads, lists and deletions are repeated a few times, puts never.
Keys: segments of letters, digits and `._=@-` joined by `/`, no segment begins with a dot. A key is never also the
folder of another key.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from stratalog.objects.stats import StoreStats


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    key: str
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store was seen to do, by trial, when it was opened."""

    conditional_put: bool


class ObjectStore(Protocol):
    @property
    def stats(self) -> StoreStats:
        """Counters since the store was opened."""
        ...

    @property
    def url(self) -> str:
        """Without credentials; for messages and `locate`."""
        ...

    async def probe(self) -> Capabilities:
        """Try a conditional put for real. Raises InvalidRequest for a store that overwrites (F46)."""
        ...

    async def put(self, key: str, body: Sequence[bytes | memoryview], storage_class: str = "") -> None:
        """Create an object. Never replaces: raises AlreadyExists (or OutcomeUnknown, where a server
        refuses before it has read the body and the refusal is lost). Durable when it returns. `storage_class`: as
        `settings.choices.StorageClass` names them; empty is the bucket's default. A directory has none and ignores it.
        Raises InvalidRequest for one that the store does not have."""
        ...

    async def get(self, key: str) -> bytes: ...

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        """Bytes `[start, end)`, all of them: a short or long body is an error, never an answer."""
        ...

    async def get_range_view(self, key: str, start: int, end: int) -> memoryview:
        """As `get_range`, without the copy into Python's memory. The view keeps the whole range alive."""
        ...

    async def head(self, key: str) -> ObjectInfo: ...

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Objects whose key starts with `prefix` (cheap when it ends with `/`), in key order."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """A missing key is not an error."""
        ...

    async def close(self) -> None: ...
