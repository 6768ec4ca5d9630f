"""Work that waits for clients: each client that waits gets as many bytes as any other, and a client's shards take
turns. Pure.

It is fair queueing by start times: what is served next is what would have begun first if each client that waited had
been served with an equal part of all bytes. A client that comes back after a pause begins with the others: it does not
catch up, and does not pay for what no other client wanted. Within a shard the order is that of coming.
Cost: O(log n) for n clients that wait. Bounded: what is remembered of clients that do not wait.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Final, Generic, NamedTuple, TypeVar

T = TypeVar("T")

_MOST_REMEMBERED: Final = 1_000


class Taker(NamedTuple):
    """The client and the shard that something is fetched for."""

    client: str
    """A client id: a Fetch does not name its group."""
    shard: Hashable


NOBODY: Final = Taker("", None)
"""The node itself."""


class _Client(Generic[T]):
    __slots__ = ("begins", "shards")

    def __init__(self, begins: int) -> None:
        self.begins = begins
        self.shards: OrderedDict[Hashable, deque[tuple[int, T]]] = OrderedDict()
        """Next first; none is empty."""


class FairQueue(Generic[T]):
    """Times are in bytes: how many each client was served with."""

    def __init__(self) -> None:
        self._clients: dict[str, _Client[T]] = {}
        """Those that wait."""
        self._heap: list[tuple[int, int, str]] = []
        """When each of them begins, and which came first of those that begin together."""
        self._served: OrderedDict[str, int] = OrderedDict()
        """Where those that do not wait would continue, if that is after now."""
        self._now = 0
        self._count = 0
        self._came = 0

    def __len__(self) -> int:
        return self._count

    def push(self, taker: Taker, size_bytes: int, item: T) -> None:
        client = self._clients.get(taker.client)
        if client is None:
            begins = max(self._now, self._served.pop(taker.client, 0))
            client = self._clients[taker.client] = _Client(begins)
            self._enter(taker.client, begins)
        client.shards.setdefault(taker.shard, deque()).append((size_bytes, item))
        self._count += 1

    def first(self) -> tuple[int, T]:
        """Size and item of what is served next. Requires: there is one."""
        client = self._clients[self._heap[0][2]]
        return next(iter(client.shards.values()))[0]

    def pop(self, *, is_served: bool = True) -> T:
        """The first, which is served now; or it was given up, and counts for nothing."""
        begins, came, name = heapq.heappop(self._heap)
        client = self._clients[name]
        shard, items = next(iter(client.shards.items()))
        size_bytes, item = items.popleft()
        self._count -= 1
        if is_served:
            self._now = begins
            client.begins = begins + size_bytes
        if not items:
            del client.shards[shard]
        elif is_served:
            client.shards.move_to_end(shard)
        if client.shards and is_served:
            self._enter(name, client.begins)
        elif client.shards:
            heapq.heappush(self._heap, (begins, came, name))
        else:
            del self._clients[name]
            self._served[name] = client.begins
            self._forget()
        return item

    def _enter(self, name: str, begins: int) -> None:
        self._came += 1
        heapq.heappush(self._heap, (begins, self._came, name))

    def _forget(self) -> None:
        served = self._served
        while len(served) > _MOST_REMEMBERED or (served and next(iter(served.values())) <= self._now):
            served.popitem(last=False)
