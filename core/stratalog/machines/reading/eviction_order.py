"""Which held block goes first when its room is needed. Pure.

First those that every known reader of their shard has passed, longest unused first. Then the one whose next use is
furthest away: a block's next use is when the first of the readers that have not passed it should reach it
(`shard_readers`). Belady's rule would be the best possible if these times were known; here they are estimated.
A block that is needed soon does not go: the caller says when the new block is needed, and only what is needed later
goes for it. So readers take turns (decision 0011) where more of them read than blocks fit.

Between two readers of a shard the last block is the one whose next use is furthest, so one block for each reader is
compared, and one for all that were passed. A shard is compared again only if its readers or blocks changed.
Cost for b blocks, s shards and the at most r readers of a shard: O(log b) to add or remove a block, moving up to b
words of memory; O(r log b + r * r + log s) to compare a shard, at most once for each change of it; O(log s) to pick.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Hashable, Sequence
from math import inf
from typing import Final, Generic, NamedTuple, TypeVar

from stratalog.machines.reading.shard_readers import Reader, ShardReaders

T = TypeVar("T")

_FEW: Final = 64


class Held(Generic[T]):
    """A block that may go. Half-open offsets."""

    __slots__ = ("base_offset", "end_offset", "shard", "size_bytes", "used_ms", "value")

    def __init__(
        self, value: T, shard: Hashable, base_offset: int, end_offset: int, size_bytes: int, used_ms: int
    ) -> None:
        self.value = value
        self.shard = shard
        self.base_offset = base_offset
        self.end_offset = end_offset
        self.size_bytes = size_bytes
        self.used_ms = used_ms
        """When it came, or was last used."""


class Removed(NamedTuple, Generic[T]):
    held: Held[T]
    next_use_ms: float | None
    """None: every known reader has passed it."""


class _Shard(Generic[T]):
    __slots__ = ("bases", "blocks", "version")

    def __init__(self) -> None:
        self.bases: list[int] = []
        self.blocks: list[Held[T]] = []
        """In the order of `bases`, their base offsets."""
        self.version = 0

    def place(self, held: Held[T]) -> int:
        number = bisect_left(self.bases, held.base_offset)
        while self.blocks[number] is not held:
            number += 1
        return number


class EvictionOrder(Generic[T]):
    """All blocks of a node that may go. Invariant: each shard that has some has one valid entry in the heap, or is
    among those that changed."""

    def __init__(self, readers: ShardReaders) -> None:
        self._readers = readers
        self._shards: dict[Hashable, _Shard[T]] = {}
        self._changed: set[Hashable] = set()
        self._heap: list[tuple[bool, float, int, Held[T]]] = []
        """Of each shard what goes first: whether a reader will want it; when it was used last, or minus its next use;
        the version of the shard that this is about, unlike any other; the block."""
        self._versions = 0

    # Blocks -----------------------------------------------------------------------------------------------------
    def add(self, held: Held[T]) -> None:
        shard = self._shards.get(held.shard)
        if shard is None:
            shard = self._shards[held.shard] = _Shard()
        number = bisect_left(shard.bases, held.base_offset)
        shard.bases.insert(number, held.base_offset)
        shard.blocks.insert(number, held)
        self._changed.add(held.shard)

    def remove(self, held: Held[T]) -> None:
        shard = self._shards[held.shard]
        number = shard.place(held)
        del shard.bases[number], shard.blocks[number]
        if not shard.blocks:
            del self._shards[held.shard]
        self._changed.add(held.shard)

    # Choosing ---------------------------------------------------------------------------------------------------
    def remove_first(self, size_bytes: int, later_than_ms: float, now_ms: int) -> list[Removed[T]]:
        """The first to go, removed, until they are `size_bytes` together; fewer where no more may go, because readers
        should reach the others by `later_than_ms`. What stays after all is added again."""
        taken: list[Removed[T]] = []
        while size_bytes > 0:
            first = self.first(now_ms)
            if first is None or (first.next_use_ms is not None and first.next_use_ms <= later_than_ms):
                break
            self.remove(first.held)
            taken.append(first)
            size_bytes -= first.held.size_bytes
        return taken

    def first(self, now_ms: int) -> Removed[T] | None:
        """What goes first, None if nothing may."""
        self._readers.pass_time(now_ms)
        self._compare_changed()
        heap = self._heap
        while heap:
            is_wanted, rank, _, held = heap[0]
            if self._is_valid(heap[0]):
                return Removed(held, -rank if is_wanted else None)
            heapq.heappop(heap)
        return None

    def _compare_changed(self) -> None:
        self._changed |= self._readers.changed
        self._readers.changed.clear()
        for key in self._changed:
            shard = self._shards.get(key)
            if shard is not None:
                held, next_use_ms = self._first_of(shard, self._readers.of(key))
                self._versions = shard.version = self._versions + 1
                is_wanted = next_use_ms is not None
                rank = float(held.used_ms) if next_use_ms is None else -next_use_ms
                heapq.heappush(self._heap, (is_wanted, rank, shard.version, held))
        self._changed.clear()
        if len(self._heap) > 2 * len(self._shards) + _FEW:
            self._heap = [entry for entry in self._heap if self._is_valid(entry)]
            heapq.heapify(self._heap)

    def _is_valid(self, entry: tuple[bool, float, int, Held[T]]) -> bool:
        shard = self._shards.get(entry[3].shard)
        return shard is not None and shard.version == entry[2]

    @staticmethod
    def _first_of(shard: _Shard[T], readers: Sequence[Reader]) -> Removed[T]:
        """`readers`: in the order of their positions."""
        bases, blocks = shard.bases, shard.blocks
        oldest = blocks[0]
        if not readers or oldest.end_offset <= readers[0].position:
            return Removed(oldest, None)
        furthest, furthest_ms = blocks[-1], -inf
        for number in range(len(readers)):
            place = len(blocks) - 1
            if number + 1 < len(readers):
                next_position = readers[number + 1].position
                place = bisect_left(bases, next_position) - 1
                if place >= 0 and blocks[place].end_offset > next_position:
                    place -= 1
            if place < 0 or blocks[place].end_offset <= readers[number].position:
                continue  # no block lies between the two
            next_use_ms = min(reader.reaches_ms(bases[place]) for reader in readers[: number + 1])
            if next_use_ms > furthest_ms:
                furthest, furthest_ms = blocks[place], next_use_ms
        # Blocks that overlap may hide behind one another; then the last one goes.
        return Removed(furthest, furthest_ms if furthest_ms > -inf else None)
