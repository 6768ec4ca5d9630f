"""Finds the shards whose timers are due: those that changed since the last check, and those whose own time has come. A
node leads thousands of shards, and most of them are idle.

Lives on the event loop. Cost: an idle shard is an entry in a heap, and costs nothing per check.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final, Protocol

from stratalog.machines.leading.next_check import next_check_ms
from stratalog.machines.leading.shard_chain import ShardChain
from stratalog.model.ids import ShardKey
from stratalog.model.topic import Topic

_FEW: Final = 1_024


class TimedShard(Protocol):
    """A shard as time sees it."""

    is_changed: bool
    """The shard waits for the next check. Set here; the shard reads it before it registers again."""
    topic: Topic

    @property
    def key(self) -> ShardKey: ...

    @property
    def chain(self) -> ShardChain: ...

    def check_age(self, now_ms: int) -> bool:
        """Returns whether it has rolled."""
        ...

    def stop_after_fault(self, reason: str) -> None: ...


class DueShards:
    """Invariant: each shard in `_at` has an entry with that time in the heap. Other entries there are out of date."""

    def __init__(self) -> None:
        self._changed: dict[TimedShard, None] = {}
        self._at: dict[TimedShard, int] = {}
        self._heap: list[tuple[int, int, TimedShard]] = []
        self._number = 0
        """Number of the newest entry: it orders entries of equal time, because shards cannot be compared."""
        self.on_stir: Callable[[TimedShard], None] | None = None
        """Hears of a shard at rest to which something happens, in the middle of that."""

    def mark_changed(self, shard: TimedShard) -> None:
        """The shard changed, so that its next timer may be due at another time."""
        shard.is_changed = True
        self._changed[shard] = None
        if self.on_stir is not None:
            self.on_stir(shard)

    def changed(self) -> list[TimedShard]:
        """The shards that changed since the last check."""
        return list(self._changed)

    def pop_due(self, now_ms: int) -> list[TimedShard]:
        """The shards to check now, once each. Call `settle` for each of them."""
        due, self._changed = self._changed, {}
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, _, shard = heapq.heappop(self._heap)
            if self._at.get(shard) == at_ms:
                del self._at[shard]
                due[shard] = None
        return list(due)

    def settle(self, shard: TimedShard, now_ms: int) -> None:
        """The shard was checked. Its next check follows its next change, or comes at its own time."""
        at_ms = next_check_ms(shard.chain, now_ms)
        if at_ms is not None and at_ms <= now_ms:
            self.mark_changed(shard)  # check it each time until a check changes the shard
            return
        shard.is_changed = False
        self._changed.pop(shard, None)
        if at_ms == self._at.get(shard):
            return
        if at_ms is None:
            self._at.pop(shard, None)
        else:
            self._at[shard] = at_ms
            self._number += 1
            heapq.heappush(self._heap, (at_ms, self._number, shard))
        if len(self._heap) > _FEW + 2 * len(self._at):
            self._heap = [entry for entry in self._heap if self._at.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)
