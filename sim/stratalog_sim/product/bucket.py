"""The object store of a world, and each node's way there: slow, refused, or with the answer lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

from stratalog.model.errors import AlreadyExists, Corrupt, NotFound, OutcomeUnknown, Unavailable
from stratalog.objects.stats import StoreStats
from stratalog.objects.store import Capabilities, ObjectInfo
from stratalog_sim.product.kernel import EPOCH_MS
from stratalog_sim.product.loop import VirtualLoop
from stratalog_sim.product.machine import Machine
from stratalog_sim.product.network import Network

_TIMEOUT_S = 1.0
_REQUEST_S = 0.02


class Bucket:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.objects: dict[str, tuple[bytes, int]] = {}
        """By key: content, and when it was written."""
        self.refuses = 0.0
        """The share of requests that are refused."""
        self.loses_answers = 0.02
        self.on_delete: Callable[[str], None] = lambda _: None
        self.on_put: Callable[[str, str], None] = lambda *_: None
        """Arguments: the name of the machine, and the key of the object."""


class BucketClient:
    """Implements `ObjectStore` for one node."""

    def __init__(self, bucket: Bucket, network: Network, machine: Machine) -> None:
        self._bucket = bucket
        self._network = network
        self._machine = machine
        self._stats = StoreStats()

    @property
    def stats(self) -> StoreStats:
        return self._stats

    @property
    def url(self) -> str:
        return "memory:///bucket"

    @property
    def _loop(self) -> VirtualLoop:
        return self._network.loop

    async def _there(self) -> None:
        await asyncio.sleep(_REQUEST_S * self._loop.rng.random())
        if self._network.is_cut(self._machine, self._bucket.machine):
            await asyncio.sleep(_TIMEOUT_S)
            raise Unavailable("the object store does not answer")
        if self._loop.rng.random() < self._bucket.refuses:
            raise Unavailable("the object store asks to slow down")

    async def _back(self) -> bool:
        """Whether the answer comes."""
        await asyncio.sleep(_REQUEST_S * self._loop.rng.random())
        if self._network.is_cut(self._bucket.machine, self._machine):
            await asyncio.sleep(_TIMEOUT_S)
            return False
        return self._loop.rng.random() >= self._bucket.loses_answers

    async def probe(self) -> Capabilities:
        return Capabilities(conditional_put=True)

    async def put(self, key: str, body: Sequence[bytes | memoryview], storage_class: str = "") -> None:
        content = b"".join(body)
        await self._there()
        if key in self._bucket.objects:
            raise AlreadyExists(f"{key} exists")
        self._bucket.objects[key] = content, EPOCH_MS + round(self._loop.now_s * 1_000)
        self._bucket.on_put(self._machine.name, key)
        if not await self._back():
            raise OutcomeUnknown(f"the answer to the put of {key} was lost")

    async def get(self, key: str) -> bytes:
        await self._there()
        content = self._content(key)
        if not await self._back():
            raise Unavailable("the answer of the object store was lost")
        return content

    def _content(self, key: str) -> bytes:
        found = self._bucket.objects.get(key)
        if found is None:
            raise NotFound(f"{key}: no such object")
        return found[0]

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        content = await self.get(key)
        if end > len(content):
            raise Corrupt("ends before the range", source=key, position=len(content))
        return content[start:end]

    async def get_range_view(self, key: str, start: int, end: int) -> memoryview:
        return memoryview(await self.get_range(key, start, end))

    async def head(self, key: str) -> ObjectInfo:
        content = await self.get(key)
        return ObjectInfo(key, len(content), self._bucket.objects[key][1])

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        return _Listing(self, prefix)

    async def listed(self, prefix: str) -> Sequence[ObjectInfo]:
        await self._there()
        found = [
            ObjectInfo(key, len(content), modified_ms)
            for key, (content, modified_ms) in sorted(self._bucket.objects.items())
            if key.startswith(prefix)
        ]
        if not await self._back():
            raise Unavailable("the answer of the object store was lost")
        return found

    async def delete(self, keys: Sequence[str]) -> None:
        await self._there()
        for key in keys:
            if key in self._bucket.objects:
                self._bucket.on_delete(key)
                del self._bucket.objects[key]
        if not await self._back():
            raise Unavailable("the answer of the object store was lost")

    async def close(self) -> None:
        pass


class _Listing:
    """No generator: one that waits when the world ends would not end with the task that waits for it."""

    def __init__(self, client: BucketClient, prefix: str) -> None:
        self._client = client
        self._prefix = prefix
        self._found: Iterator[ObjectInfo] | None = None

    def __aiter__(self) -> AsyncIterator[ObjectInfo]:
        return self

    async def __anext__(self) -> ObjectInfo:
        if self._found is None:
            self._found = iter(await self._client.listed(self._prefix))
        for one in self._found:
            return one
        raise StopAsyncIteration
