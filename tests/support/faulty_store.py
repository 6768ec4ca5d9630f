"""An object store that misbehaves on demand, around a real one."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from enum import Enum

from stratalog.model.errors import AlreadyExists, InvalidRequest, OutcomeUnknown, Unavailable
from stratalog.objects.stats import StoreStats
from stratalog.objects.store import Capabilities, ObjectInfo, ObjectStore


class Fault(Enum):
    """What becomes of one put."""

    NONE = "it works"
    LOST_ANSWER = "it lands, the answer is lost"
    CUT = "it does not land, the answer is lost"
    SLOW_DOWN = "503"
    HANG = "no answer ever, nothing lands"
    HANG_LANDED = "no answer ever, but it lands"
    TAKEN = "412 or 409: somebody has the name, perhaps this very put"


class FaultyStore:
    """Keeps object times by the test's clock. Faults are taken from `script`, one per put; then all works."""

    def __init__(self, inner: ObjectStore, clock_ms: Callable[[], int]) -> None:
        self.inner = inner
        self._clock_ms = clock_ms
        self.script: deque[Fault] = deque()
        self.decide: Callable[[str], Fault] | None = None
        """Asked for each put when the script is empty."""
        self.has_faulty_claims = False
        """Claims, too, are counted and meet faults; else a script of faults is for data alone."""
        self.is_away = False
        self.overwrites = False
        self.gate = asyncio.Event()
        """Puts wait here before anything happens."""
        self.gate.set()
        self.hangs: Callable[[str], bool] = lambda _: False
        """Whether reads of this key, or listings below this prefix, are never answered."""
        self.undeletable: Callable[[str], bool] = lambda _: False
        """Whether the store denies the deletion of this key."""
        self.requests: Counter[str] = Counter()
        self.puts: list[str] = []
        """Keys of puts that were begun, in order."""
        self.deletions: list[str] = []
        self.largest_waiting = 0
        self._waiting = 0
        self._modified: dict[str, int] = {}

    @property
    def stats(self) -> StoreStats:
        return self.inner.stats

    @property
    def url(self) -> str:
        return self.inner.url

    async def probe(self) -> Capabilities:
        self._check()
        if self.overwrites:
            raise InvalidRequest("a conditional put overwrote an existing object")
        return await self.inner.probe()

    async def put(self, key: str, body: Sequence[bytes | memoryview], storage_class: str = "") -> None:
        if self._is_past_faults(key):
            self._check()
            self._modified[key] = self._clock_ms()
            await self.inner.put(key, body, storage_class)
            return
        self.requests["put"] += 1
        self.puts.append(key)
        size = sum(len(piece) for piece in body)
        self._waiting += size
        self.largest_waiting = max(self.largest_waiting, self._waiting)
        try:
            await self._put(key, body, storage_class)
        finally:
            self._waiting -= size

    async def _put(self, key: str, body: Sequence[bytes | memoryview], storage_class: str) -> None:
        self._check()
        await self.gate.wait()
        fault = self.script.popleft() if self.script else self.decide(key) if self.decide else Fault.NONE
        if fault is Fault.SLOW_DOWN:
            raise Unavailable(f"put {key}: 503 SlowDown")
        if fault in (Fault.NONE, Fault.LOST_ANSWER, Fault.HANG_LANDED, Fault.TAKEN):
            self._modified[key] = self._clock_ms()
            await self.inner.put(key, body, storage_class)
        if fault in (Fault.HANG, Fault.HANG_LANDED):
            await asyncio.Event().wait()
        if fault in (Fault.LOST_ANSWER, Fault.CUT):
            raise OutcomeUnknown(f"put {key}: connection reset")
        if fault is Fault.TAKEN:
            raise AlreadyExists(f"put {key}: 412")

    async def get(self, key: str) -> bytes:
        self._count("get", key)
        if self.hangs(key):
            await asyncio.Event().wait()
        return await self.inner.get(key)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        self._count("get")
        return await self.inner.get_range(key, start, end)

    async def get_range_view(self, key: str, start: int, end: int) -> memoryview:
        self._count("get")
        return await self.inner.get_range_view(key, start, end)

    async def head(self, key: str) -> ObjectInfo:
        self._count("head")
        return self._with_time(await self.inner.head(key))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        self._count("list", prefix)
        if self.hangs(prefix):
            await asyncio.Event().wait()
        async for info in self.inner.list(prefix):
            yield self._with_time(info)

    async def delete(self, keys: Sequence[str]) -> None:
        self._count("delete", keys[0] if keys else "")
        if any(map(self.undeletable, keys)):
            raise Unavailable(f"delete {keys}: 403 AccessDenied")
        self.deletions += [key for key in keys if not self._is_past_faults(key)]
        await self.inner.delete(keys)

    async def close(self) -> None:
        await self.inner.close()

    async def keys(self, prefix: str = "") -> list[str]:
        """All keys but those of claims, uncounted and whatever the faults."""
        return [info.key async for info in self.inner.list(prefix) if "/claims/" not in info.key]

    async def claims(self) -> list[str]:
        return [info.key async for info in self.inner.list("") if "/claims/" in info.key]

    def _is_past_faults(self, key: str) -> bool:
        return "/claims/" in key and not self.has_faulty_claims

    def _count(self, operation: str, key: str = "") -> None:
        if not self._is_past_faults(key):
            self.requests[operation] += 1
        self._check()

    def _check(self) -> None:
        if self.is_away:
            raise Unavailable("connection refused")

    def _with_time(self, info: ObjectInfo) -> ObjectInfo:
        # What was not put through here (trials, damage) is as old as its first sight.
        return ObjectInfo(info.key, info.size_bytes, self._modified.setdefault(info.key, self._clock_ms()))
