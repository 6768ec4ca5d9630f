"""Verified blocks of the cold tier in memory, for all shards together: never more bytes than the budget.

A block keeps the whole fetched range alive, and counts with all of it from before the request until it is no longer
used. A read that finds no room waits: nothing is fetched that cannot be held.
What may be evicted to make room: blocks that were read to their end, longest unused first; then others that were not
used for `patience_ms`, because their readers are slow, or gone. A block that a reader waits for (pinned) is not
evicted.
Invariant: held_bytes + reserved_bytes <= budget, or a single block larger than that is all there is.
Lives on the event loop.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stratalog.machines.reading.read_window import Block
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


class _Kept:
    __slots__ = ("held", "used_ms")

    def __init__(self, held: HeldBlock, used_ms: int) -> None:
        self.held = held
        self.used_ms = used_ms


class BlockCache:
    """See the module. `on_evicted` is called with each evicted block, and whether it had been read."""

    def __init__(self, budget_bytes: int, patience_ms: int, on_evicted: Callable[[HeldBlock, bool], None]) -> None:
        self.budget_bytes = budget_bytes
        self._patience_ms = patience_ms
        self._on_evicted = on_evicted
        self._unread: OrderedDict[Block, _Kept] = OrderedDict()
        self._read: OrderedDict[Block, _Kept] = OrderedDict()
        self._pins: Counter[Block] = Counter()
        self._leaving: dict[Block, int] = {}
        """Dropped while a reader waited for them: counted until the last reader has taken its data."""
        self._read_bytes = 0
        self.held_bytes = 0
        self.reserved_bytes = 0
        """On its way: counted before it is asked for."""

    def get(self, block: Block) -> HeldBlock | None:
        kept = self._unread.get(block) or self._read.get(block)
        return kept.held if kept is not None else None

    def __contains__(self, block: Block) -> bool:
        return block in self._unread or block in self._read

    def __len__(self) -> int:
        return len(self._unread) + len(self._read)

    # Room -------------------------------------------------------------------------------------------------------
    @property
    def allowance_bytes(self) -> int:
        """What may be fetched ahead now: free memory, and what holds only blocks that were read to their end."""
        waited_for = sum(block.size_bytes for block in self._pins if block in self._read)
        return self.budget_bytes - self.held_bytes - self.reserved_bytes + self._read_bytes - waited_for

    def try_reserve(self, size_bytes: int, now_ms: int) -> bool:
        """Make room for a block that is about to be fetched. Nothing goes when what may go would not do."""
        lacking = self.held_bytes + self.reserved_bytes + size_bytes - self.budget_bytes
        victims: list[_Kept] = []
        if lacking > 0:
            for kept in self._may_go(now_ms):
                victims.append(kept)
                lacking -= kept.held.block.size_bytes
                if lacking <= 0:
                    break
            goes = sum(kept.held.block.size_bytes for kept in victims)
            # One larger than all of the memory goes alone.
            if lacking > 0 and self.held_bytes + self.reserved_bytes > goes:
                return False
        for kept in victims:
            is_read = kept.held.block in self._read
            self.drop(kept.held.block)
            self._on_evicted(kept.held, is_read)
        self.reserved_bytes += size_bytes
        return True

    def _may_go(self, now_ms: int) -> Iterator[_Kept]:
        for block, kept in self._read.items():
            if block not in self._pins:
                yield kept
        for block, kept in self._unread.items():
            if kept.used_ms + self._patience_ms > now_ms:
                return
            if block not in self._pins:
                yield kept

    def next_lapse_ms(self) -> int | None:
        """When the next block that was not read may go; None while there is none that may."""
        for block, kept in self._unread.items():
            if block not in self._pins:
                return kept.used_ms + self._patience_ms
        return None

    def release(self, size_bytes: int) -> None:
        """The fetch failed."""
        self.reserved_bytes -= size_bytes

    # Blocks -----------------------------------------------------------------------------------------------------
    def hold(self, held: HeldBlock, now_ms: int) -> None:
        """A reserved block arrived."""
        size_bytes = held.block.size_bytes
        self.reserved_bytes -= size_bytes
        self.held_bytes += size_bytes
        self._unread[held.block] = _Kept(held, now_ms)

    def touched(self, block: Block, now_ms: int, *, is_read: bool) -> None:
        """A reader used it; `is_read`: to its end."""
        kept = self._unread.get(block)
        if kept is not None:
            kept.used_ms = now_ms
            if is_read:
                del self._unread[block]
                self._read[block] = kept
                self._read_bytes += block.size_bytes
            else:
                self._unread.move_to_end(block)
        elif block in self._read:
            self._read.move_to_end(block)

    def pin(self, block: Block) -> None:
        """A reader waits for it, or looks into it now: until `unpin` it stays, or is at least counted."""
        self._pins[block] += 1

    def unpin(self, block: Block) -> None:
        self._pins[block] -= 1
        if not self._pins[block]:
            del self._pins[block]
            self.held_bytes -= self._leaving.pop(block, 0)

    def drop(self, block: Block) -> None:
        kept = self._unread.pop(block, None)
        if kept is None:
            kept = self._read.pop(block, None)
            if kept is None:
                return
            self._read_bytes -= block.size_bytes
        if block in self._pins:
            self._leaving[block] = self._leaving.get(block, 0) + block.size_bytes
        else:
            self.held_bytes -= block.size_bytes
