"""Verified blocks of the cold tier in memory, all shards together, bounded by the bytes they really hold.

A block keeps the whole range that was fetched for it alive, and is counted with all of it; views handed to readers
keep it alive beyond its life here (at most one block each: no large parent is pinned by a small slice).
When memory is needed, blocks that were read to their end go first, oldest use first, then the longest held others.
Lives on the event loop.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stratalog.machines.read_window import Block
from stratalog.model.ids import SegmentKey


@dataclass(frozen=True, slots=True)
class HeldBlock:
    """A block's batches, checked. `positions` has one entry more than `base_offsets`: where the last batch ends."""

    block: Block
    segment: SegmentKey
    batches: memoryview
    base_offsets: array[int]
    positions: array[int]

    def cut(self, offset: int, max_bytes: int, *, at_least_one: bool) -> tuple[memoryview, int]:
        """Whole batches from the one that contains `offset`, and the offset after them.

        Empty when the first one is larger than `max_bytes` and not `at_least_one`.
        """
        first = bisect_right(self.base_offsets, offset) - 1
        start = self.positions[first]
        stop = bisect_right(self.positions, start + max_bytes) - 1
        if stop <= first:
            stop = first + 1 if at_least_one else first
        return self.batches[start : self.positions[stop]], self.end_of(stop)

    def end_of(self, stop: int) -> int:
        """The offset after batch `stop - 1`."""
        return self.base_offsets[stop] if stop < len(self.base_offsets) else self.block.end_offset

    def batches_from(self, offset: int) -> Iterator[memoryview]:
        """Each batch from the one that contains `offset` on."""
        first = max(0, bisect_right(self.base_offsets, offset) - 1)
        for index in range(first, len(self.base_offsets)):
            yield self.batches[self.positions[index] : self.positions[index + 1]]


class BlockCache:
    """Invariant: held_bytes is the sum over the blocks held."""

    def __init__(self, budget_bytes: int, on_evicted: Callable[[HeldBlock], None]) -> None:
        self._budget_bytes = budget_bytes
        self._on_evicted = on_evicted
        self._unread: OrderedDict[Block, HeldBlock] = OrderedDict()
        self._read: OrderedDict[Block, HeldBlock] = OrderedDict()
        self._read_bytes = 0
        self.held_bytes = 0
        self.reserved_bytes = 0
        """On its way: counted before it is asked for."""

    def get(self, block: Block) -> HeldBlock | None:
        return self._unread.get(block) or self._read.get(block)

    @property
    def allowance_bytes(self) -> int:
        """What may be fetched ahead now: free memory, and what holds only blocks that were read to their end."""
        return self._budget_bytes - self.held_bytes - self.reserved_bytes + self._read_bytes

    def reserve(self, size_bytes: int) -> None:
        """Make room for a block that is about to be fetched; it is fetched also when that much cannot be had."""
        self.reserved_bytes += size_bytes
        self._shrink()

    def release(self, size_bytes: int) -> None:
        """The fetch failed."""
        self.reserved_bytes -= size_bytes

    def hold(self, held: HeldBlock) -> None:
        """A reserved block arrived."""
        size_bytes = held.block.size_bytes
        self.reserved_bytes -= size_bytes
        self.held_bytes += size_bytes
        self._unread[held.block] = held

    def touched(self, block: Block, *, is_read: bool) -> None:
        """A reader used it; `is_read`: to its end."""
        held = self._unread.get(block)
        if held is not None and is_read:
            del self._unread[block]
            self._read[block] = held
            self._read_bytes += block.size_bytes
        elif held is None and block in self._read:
            self._read.move_to_end(block)

    def drop(self, block: Block) -> None:
        if self._unread.pop(block, None) is not None:
            self.held_bytes -= block.size_bytes
        elif self._read.pop(block, None) is not None:
            self.held_bytes -= block.size_bytes
            self._read_bytes -= block.size_bytes

    def _shrink(self) -> None:
        while self.held_bytes + self.reserved_bytes > self._budget_bytes:
            victims = self._read or self._unread
            if not victims:
                return
            held = next(iter(victims.values()))
            self.drop(held.block)
            self._on_evicted(held)

    def __len__(self) -> int:
        return len(self._unread) + len(self._read)
