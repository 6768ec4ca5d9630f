"""Verified blocks of the cold tier in memory, for all shards together: never more bytes than the budget.

A block keeps the whole fetched range alive, and counts with all of it from before the request until it is dropped. A
read that finds no room waits: nothing is fetched that cannot be held. A block stays until its room is needed; what goes
then says `machines.reading.eviction_order`. A block that a reader waits for, or looks into now (pinned), does not go.
Invariant: held_bytes + reserved_bytes <= budget, or a single block larger than that is all there is.
Cost of what a fetch does: that of `eviction_order`. Lives on the event loop.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from stratalog.machines.reading.eviction_order import EvictionOrder, Held, Removed
from stratalog.machines.reading.read_window import Block
from stratalog.machines.reading.shard_readers import ReaderLimits, ShardReaders
from stratalog.model.ids import SegmentKey

_BLOCKS_REMEMBERED: Final = 4_096
"""Of those that were dropped, so that it shows what is fetched again."""


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


class Eviction(Enum):
    """Why a block went."""

    PASSED = 1
    """Every known reader of its shard had passed it."""
    FAR = 2
    """A reader was on its way to it, and far away."""
    LATE = 3
    """A reader had read a part of it, or was to begin with it, and did not come in time."""


class _Kept:
    __slots__ = ("held", "is_read", "place")

    def __init__(self, held: HeldBlock, now_ms: int) -> None:
        block = held.block
        self.held = held
        self.is_read = False
        self.place = Held(self, held.segment.shard_key, block.base_offset, block.end_offset, block.size_bytes, now_ms)


class BlockCache:
    """See the module. `on_evicted` is called with each block that goes, whether it had been read to its end, and why it
    went."""

    def __init__(
        self, budget_bytes: int, limits: ReaderLimits, on_evicted: Callable[[HeldBlock, bool, Eviction], None]
    ) -> None:
        self.budget_bytes = budget_bytes
        self.readers = ShardReaders(limits)
        self._patience_ms = limits.patience_ms
        self._on_evicted = on_evicted
        self._kept: dict[Block, _Kept] = {}
        self._order: EvictionOrder[_Kept] = EvictionOrder(self.readers)
        """All that are not pinned."""
        self._pins: Counter[Block] = Counter()
        self._dropped: OrderedDict[int, None] = OrderedDict()
        """Hashes of blocks, those that went last at the end."""
        self.held_bytes = 0
        self.reserved_bytes = 0
        """On its way: counted before it is asked for."""

    def get(self, block: Block) -> HeldBlock | None:
        kept = self._kept.get(block)
        return kept.held if kept is not None else None

    def __contains__(self, block: Block) -> bool:
        return block in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def was_dropped(self, block: Block) -> bool:
        """Whether a block was held a short while ago, and is not any more."""
        return hash(block) in self._dropped

    # Room -------------------------------------------------------------------------------------------------------
    def try_reserve(self, size_bytes: int, needed_ms: float, now_ms: int) -> bool:
        """Make room for a block that is about to be fetched, and is needed at that time. Only what is needed later, by
        more than the patience, goes for it; nothing goes when that would not do."""
        lacking = self.held_bytes + self.reserved_bytes + size_bytes - self.budget_bytes
        taken = self._order.remove_first(lacking, max(needed_ms, now_ms) + self._patience_ms, now_ms)
        goes = sum(one.held.size_bytes for one in taken)
        # One larger than all of the memory goes alone.
        if goes < lacking and self.held_bytes + self.reserved_bytes > goes:
            for one in taken:
                self._order.add(one.held)
            return False
        for one in taken:
            self._drop(one.held.value, self._why(one))
        self.reserved_bytes += size_bytes
        return True

    def _why(self, one: Removed[_Kept]) -> Eviction:
        if one.next_use_ms is None:
            return Eviction.PASSED
        held = one.held
        is_in_it = any(held.base_offset <= reader.position < held.end_offset for reader in self.readers.of(held.shard))
        return Eviction.LATE if is_in_it else Eviction.FAR

    def _drop(self, kept: _Kept, why: Eviction) -> None:
        block = kept.held.block
        del self._kept[block]
        self.held_bytes -= block.size_bytes
        self._dropped[hash(block)] = None
        self._dropped.move_to_end(hash(block))
        if len(self._dropped) > _BLOCKS_REMEMBERED:
            self._dropped.popitem(last=False)
        self._on_evicted(kept.held, kept.is_read, why)

    def next_lapse_ms(self) -> int | None:
        """When a reader may be found to be late, so that a block may go; None while there is none."""
        return self.readers.next_check_ms()

    def release(self, size_bytes: int) -> None:
        """The fetch failed."""
        self.reserved_bytes -= size_bytes

    # Blocks -----------------------------------------------------------------------------------------------------
    def hold(self, held: HeldBlock, now_ms: int) -> None:
        """A reserved block arrived."""
        size_bytes = held.block.size_bytes
        self.reserved_bytes -= size_bytes
        self.held_bytes += size_bytes
        kept = self._kept[held.block] = _Kept(held, now_ms)
        if held.block not in self._pins:
            self._order.add(kept.place)

    def touched(self, block: Block, now_ms: int, *, is_read: bool) -> None:
        """A reader used it; `is_read`: to its end."""
        kept = self._kept.get(block)
        if kept is not None:
            kept.place.used_ms = now_ms
            kept.is_read |= is_read

    def pin(self, block: Block) -> None:
        """A reader waits for it, or looks into it now: until `unpin` it stays."""
        self._pins[block] += 1
        kept = self._kept.get(block)
        if kept is not None and self._pins[block] == 1:
            self._order.remove(kept.place)

    def unpin(self, block: Block) -> None:
        self._pins[block] -= 1
        if not self._pins[block]:
            del self._pins[block]
            kept = self._kept.get(block)
            if kept is not None:
                self._order.add(kept.place)
