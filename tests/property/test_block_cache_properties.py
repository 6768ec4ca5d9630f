"""The cold tier's memory under any use: never more than the budget, and what a reader still needs goes last."""

from __future__ import annotations

from array import array
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stratalog.machines.reading.read_window import Block
from stratalog.model.ids import SegmentKey
from stratalog_node.tier.cold.block_cache import BlockCache, HeldBlock

BUDGET = 500
PATIENCE_MS = 100
SEGMENT = SegmentKey(UUID(int=1), 0, 0, 0)


class MemoryOfManyBlocks(RuleBasedStateMachine):
    """Keeps its own account: the held blocks, when they were used, and the readers that wait for them."""

    def __init__(self) -> None:
        super().__init__()
        self.evicted: list[tuple[Block, bool]] = []
        self.cache = BlockCache(BUDGET, PATIENCE_MS, lambda held, is_read: self.evicted.append((held.block, is_read)))
        self.reserved: list[Block] = []
        self.held: dict[Block, bool] = {}
        """Block: whether it was read to its end."""
        self.used_ms: dict[Block, int] = {}
        self.pins: list[Block] = []
        self.leaving: set[Block] = set()
        self.made = 0
        self.now_ms = 0

    def counted(self) -> int:
        return sum(block.size_bytes for block in [*self.reserved, *self.held, *self.leaving])

    @rule(size=st.sampled_from([10, 60, 100, 200, 700]))
    def ask(self, size: int) -> None:
        before = self.counted()
        is_admitted = self.cache.try_reserve(size, self.now_ms)
        for block, is_read in self.evicted:
            assert is_admitted, "nothing goes in vain"
            assert block not in self.pins, "a reader waits for it"
            assert self.held.pop(block) == is_read
            if not is_read:
                assert self.now_ms - self.used_ms[block] >= PATIENCE_MS, "its reader may yet come"
                assert not any(read and other not in self.pins for other, read in self.held.items())
        self.evicted.clear()
        if is_admitted:
            self.made += 1
            self.reserved.append(Block("object", self.made, self.made, self.made + 1, size))
            assert self.counted() <= BUDGET or self.counted() == size, "one that is too large goes alone"
        else:
            assert before + size > BUDGET
            assert before > 0

    @precondition(lambda self: self.reserved)
    @rule(arrives=st.booleans(), is_awaited=st.booleans())
    def come_back(self, arrives: bool, is_awaited: bool) -> None:
        block = self.reserved.pop(0)
        if not arrives:
            self.cache.release(block.size_bytes)
            return
        if is_awaited:
            self.pin_it(block)
        batches = memoryview(bytes(block.size_bytes))
        held = HeldBlock(block, SEGMENT, batches, array("q", [block.base_offset]), array("q", [0, len(batches)]))
        self.cache.hold(held, self.now_ms)
        self.held[block] = False
        self.used_ms[block] = self.now_ms

    def pin_it(self, block: Block) -> None:
        self.cache.pin(block)
        self.pins.append(block)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def wait_for(self, data: st.DataObject) -> None:
        self.pin_it(data.draw(st.sampled_from(list(self.held))))

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def have_taken(self, data: st.DataObject) -> None:
        block = self.pins.pop(data.draw(st.integers(0, len(self.pins) - 1)))
        self.cache.unpin(block)
        if block not in self.pins:
            self.leaving.discard(block)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), is_read=st.booleans())
    def use(self, data: st.DataObject, is_read: bool) -> None:
        block = data.draw(st.sampled_from(list(self.held)))
        found = self.cache.get(block)
        assert found is not None
        assert found.block == block
        self.cache.touched(block, self.now_ms, is_read=is_read)
        if not self.held[block]:
            self.used_ms[block] = self.now_ms
        self.held[block] |= is_read

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(list(self.held)))
        self.cache.drop(block)
        self.cache.drop(block)
        del self.held[block]
        if block in self.pins:
            self.leaving.add(block)
        assert self.cache.get(block) is None

    @rule(ms=st.integers(0, 2 * PATIENCE_MS))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    @invariant()
    def books_agree(self) -> None:
        cache = self.cache
        assert cache.held_bytes == sum(block.size_bytes for block in [*self.held, *self.leaving])
        assert cache.reserved_bytes == sum(block.size_bytes for block in self.reserved)
        assert len(cache) == len(self.held)
        may_go = sum(block.size_bytes for block, is_read in self.held.items() if is_read and block not in self.pins)
        assert cache.allowance_bytes == BUDGET - self.counted() + may_go
        unread = [self.used_ms[b] for b, is_read in self.held.items() if not is_read and b not in self.pins]
        assert cache.next_lapse_ms() == (min(unread) + PATIENCE_MS if unread else None)


TestMemoryOfManyBlocks = MemoryOfManyBlocks.TestCase
TestMemoryOfManyBlocks.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
