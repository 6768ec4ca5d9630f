"""An object store in this process that counts requests, keeps equal bodies once, and answers when the test lets it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from stratalog.model.errors import NotFound, Unavailable
from stratalog.objects.stats import StoreStats
from stratalog.objects.store import Capabilities, ObjectInfo


class CountingStore:
    """An `ObjectStore`. Many shards with the same batches take the memory of one."""

    url = "counting:"

    def __init__(self) -> None:
        self.stats = StoreStats()
        self.gets = 0
        self.bytes_got = 0
        self.in_flight = 0
        self.hangs: Callable[[str], bool] = lambda _: False
        """Whether a read of this key is not answered, and fails once `gives_up` is set."""
        self.gives_up = asyncio.Event()
        self.on_get: Callable[[], None] = lambda: None
        self.on_key: Callable[[str], None] = lambda _: None
        """The key of each read."""
        self._crowd = 0
        self._has_crowd = asyncio.Event()
        self._objects: dict[str, tuple[bytes, ...]] = {}
        self._bodies: dict[bytes, bytes] = {}

    def answer_crowds_of(self, reads: int) -> None:
        """From now on no read is answered before as many have been in flight at once."""
        self._crowd, self._has_crowd = reads, asyncio.Event()

    async def probe(self) -> Capabilities:
        return Capabilities(conditional_put=True)

    async def put(self, key: str, body: Sequence[bytes | memoryview], storage_class: str = "") -> None:
        pieces = [bytes(piece) for piece in body]
        self._objects[key] = tuple(self._bodies.setdefault(piece, piece) for piece in pieces)

    async def get(self, key: str) -> bytes:
        return bytes(await self.get_range_view(key, 0, sum(map(len, self._pieces(key)))))

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        return bytes(await self.get_range_view(key, start, end))

    async def get_range_view(self, key: str, start: int, end: int) -> memoryview:
        pieces = self._pieces(key)
        self.gets += 1
        self.bytes_got += end - start
        self.in_flight += 1
        self.on_get()
        self.on_key(key)
        try:
            if self.hangs(key):
                await self.gives_up.wait()
                raise Unavailable(f"{key}: no answer in time")
            if self.in_flight >= self._crowd:
                self._has_crowd.set()
            await self._has_crowd.wait()
            for _ in range(3):
                await asyncio.sleep(0)
        finally:
            self.in_flight -= 1
        found, at = [], 0
        for piece in pieces:
            cut = memoryview(piece)[max(0, start - at) : max(0, end - at)]
            if len(cut):
                found.append(cut)
            at += len(piece)
        return found[0] if len(found) == 1 else memoryview(b"".join(found))

    async def head(self, key: str) -> ObjectInfo:
        return ObjectInfo(key, sum(map(len, self._pieces(key))), 0)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        for key in sorted(key for key in self._objects if key.startswith(prefix)):
            yield await self.head(key)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._objects.pop(key, None)

    async def close(self) -> None:
        """Nothing to close."""

    def _pieces(self, key: str) -> tuple[bytes, ...]:
        try:
            return self._objects[key]
        except KeyError:
            raise NotFound(f"{key}: no such object") from None
