"""Rules for what a cache drops, as plain as possible, and a node with one of them that plays a trace (`cold_trace`).

All have the same memory, in blocks of one size, and fetch a block when a read wants it (nothing ahead), once for all
that wait for it. The store answers eight requests at a time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from typing import Protocol

from stratalog.machines.reading.eviction_order import EvictionOrder, Held
from stratalog.machines.reading.shard_readers import ReaderLimits, ShardReaders
from support.cold_trace import BLOCK_BYTES, BUDGET_BYTES, Access, ten_groups

Key = int
"""The number of a block."""
ROOM = BUDGET_BYTES // BLOCK_BYTES
_SHARD = "shard"
_SLOTS = 8
_ANSWER_MS = 60.0


class Rule(Protocol):
    def read(self, access: Access) -> list[Key]:
        """What has to be fetched for a read; afterwards all of its blocks are held."""
        ...


def keys_of(access: Access) -> list[Key]:
    return list(access.blocks)


class LeastRecentlyUsed:
    def __init__(self) -> None:
        self._held: OrderedDict[Key, int] = OrderedDict()

    def _drop(self, now_ms: int) -> None:
        while len(self._held) > ROOM:
            self._held.popitem(last=False)

    def read(self, access: Access) -> list[Key]:
        missing = [key for key in keys_of(access) if key not in self._held]
        for key in keys_of(access):
            self._held[key] = access.now_ms
            self._held.move_to_end(key)
        self._drop(access.now_ms)
        return missing


class TwoSeconds(LeastRecentlyUsed):
    """What was the rule: a block goes 2 s after its last use, or if there is no room."""

    def read(self, access: Access) -> list[Key]:
        while self._held and next(iter(self._held.values())) + 2_000 <= access.now_ms:
            self._held.popitem(last=False)
        return super().read(access)


class TwoQueues:
    """2Q (Johnson and Shasha): a block is kept for long only if it comes back after it left the first queue."""

    def __init__(self) -> None:
        self._first: OrderedDict[Key, None] = OrderedDict()
        self._left: OrderedDict[Key, None] = OrderedDict()
        self._main: OrderedDict[Key, None] = OrderedDict()

    def read(self, access: Access) -> list[Key]:
        missing = []
        for key in keys_of(access):
            if key in self._main:
                self._main.move_to_end(key)
            elif key not in self._first:
                missing.append(key)
                self._make_room()
                if key in self._left:
                    del self._left[key]
                    self._main[key] = None
                else:
                    self._first[key] = None
        return missing

    def _make_room(self) -> None:
        if len(self._first) + len(self._main) < ROOM:
            return
        if len(self._first) > ROOM // 4 or not self._main:
            key, _ = self._first.popitem(last=False)
            self._left[key] = None
            if len(self._left) > ROOM // 2:
                self._left.popitem(last=False)
        else:
            self._main.popitem(last=False)


class TinyLfu:
    """W-TinyLFU (Einziger, Friedman, Manes): a block enters the main part only if it was used more often than the one
    that goes. Counts are exact here, and halved after ten uses for each block that fits."""

    def __init__(self) -> None:
        self._window: OrderedDict[Key, None] = OrderedDict()
        self._main: OrderedDict[Key, None] = OrderedDict()
        self._uses: Counter[Key] = Counter()
        self._since = 0

    def read(self, access: Access) -> list[Key]:
        missing = []
        for key in keys_of(access):
            self._uses[key] += 1
            self._since += 1
            if self._since >= 10 * ROOM:
                self._since = 0
                self._uses = Counter({one: count // 2 for one, count in self._uses.items() if count > 1})
            for part in (self._window, self._main):
                if key in part:
                    part.move_to_end(key)
                    break
            else:
                missing.append(key)
                self._window[key] = None
                self._settle()
        return missing

    def _settle(self) -> None:
        if len(self._window) <= max(1, ROOM // 10):
            return
        new, _ = self._window.popitem(last=False)
        self._main[new] = None
        if len(self._window) + len(self._main) <= ROOM:
            return
        del self._main[new]
        oldest = next(iter(self._main))
        if self._uses[new] > self._uses[oldest]:
            del self._main[oldest]
            self._main[new] = None


class Belady:
    """Knows what comes: drops what is next used last. No rule fetches less."""

    def __init__(self, trace: Sequence[Access]) -> None:
        self._uses: dict[Key, list[int]] = {}
        for number, access in enumerate(trace):
            for key in keys_of(access):
                self._uses.setdefault(key, []).append(number)
        self._number = -1
        self._held: set[Key] = set()

    def _next(self, key: Key) -> float:
        uses = self._uses[key]
        place = bisect_right(uses, self._number)
        return uses[place] if place < len(uses) else float("inf")

    def read(self, access: Access) -> list[Key]:
        self._number += 1
        wanted = keys_of(access)
        missing = [key for key in wanted if key not in self._held]
        self._held.update(missing)
        while len(self._held) > ROOM:
            self._held.remove(max(self._held - set(wanted), key=lambda key: (self._next(key), key)))
        return missing


class KnownReaders:
    """The product's rule."""

    def __init__(self) -> None:
        self._readers = ShardReaders(ReaderLimits(patience_ms=500))
        self._order: EvictionOrder[Key] = EvictionOrder(self._readers)
        self._held: dict[Key, Held[Key]] = {}

    def read(self, access: Access) -> list[Key]:
        now_ms = access.now_ms
        reader = self._readers.begin(_SHARD, access.offset, now_ms)
        wanted = keys_of(access)
        missing = [key for key in wanted if key not in self._held]
        pinned = [self._held[key] for key in wanted if key in self._held]
        for held in pinned:
            self._order.remove(held)
        for key in missing:
            if len(self._held) >= ROOM:
                # There is nothing to wait with here: what is needed soonest goes, too, if all is.
                for one in self._order.remove_first(1, -1.0, now_ms):
                    del self._held[one.held.value]
            base = key * BLOCK_BYTES
            self._held[key] = Held(key, _SHARD, base, base + BLOCK_BYTES, 1, now_ms)
            pinned.append(self._held[key])
        for held in pinned:
            held.used_ms = now_ms
            self._order.add(held)
        self._readers.moved(reader, access.end_offset, now_ms)
        self._readers.ended(reader, now_ms)
        return missing


RULES: dict[str, Callable[[Sequence[Access]], Rule]] = {
    "2 s after use": lambda _: TwoSeconds(),
    "LRU": lambda _: LeastRecentlyUsed(),
    "2Q": lambda _: TwoQueues(),
    "W-TinyLFU": lambda _: TinyLfu(),
    "known readers": lambda _: KnownReaders(),
    "Belady": Belady,
}


@dataclass(slots=True)
class Played:
    fetched_blocks: int = 0
    distinct_blocks: int = 0
    waits_ms: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return self.fetched_blocks / self.distinct_blocks

    def wait_ms(self, quantile: float) -> float:
        return sorted(self.waits_ms)[int(quantile * len(self.waits_ms))]


def play(trace: Sequence[Access], rule: Rule) -> Played:
    """Each read comes at its time, whatever the others waited."""
    played = Played()
    slots = [0.0] * _SLOTS
    heapify(slots)
    comes_ms: dict[Key, float] = {}
    seen: set[Key] = set()
    for access in trace:
        for key in rule.read(access):
            answer_ms = max(slots[0], access.now_ms) + _ANSWER_MS
            heapreplace(slots, answer_ms)
            comes_ms[key] = answer_ms
            played.fetched_blocks += 1
        wanted = keys_of(access)
        seen.update(wanted)
        played.waits_ms.append(max(0.0, *(comes_ms[key] - access.now_ms for key in wanted)))
    played.distinct_blocks = len(seen)
    return played


def main() -> None:
    """The table of decision 0035: as recorded, and with readers too far apart for the memory."""
    for name, make in RULES.items():
        cells = [name]
        for speed in (1.0, 2.0):
            trace = list(ten_groups(speed=speed))
            played = play(trace, make(trace))
            cells += [f"{played.ratio:.2f}", f"{played.wait_ms(0.9):.0f}", f"{played.wait_ms(0.99):.0f}"]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
