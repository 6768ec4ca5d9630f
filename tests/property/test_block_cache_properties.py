"""The cold tier's memory under any use: it counts what it holds, and gives up what was read first."""

from __future__ import annotations

from array import array
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stratalog.machines.read_window import Block
from stratalog.model.ids import SegmentKey
from stratalog_node.tier.block_cache import BlockCache, HeldBlock

BUDGET = 500
SEGMENT = SegmentKey(UUID(int=1), 0, 0, 0)


class MemoryOfManyBlocks(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.evicted: list[Block] = []
        self.cache = BlockCache(BUDGET, lambda held: self.evicted.append(held.block))
        self.reserved: list[Block] = []
        self.held: dict[Block, bool] = {}
        """Block: whether it was read to its end."""
        self.made = 0

    def forget_evicted(self) -> None:
        unread = [block for block, is_read in self.held.items() if not is_read]
        for block in self.evicted:
            if not self.held.pop(block):
                assert not any(self.held.values()), "an unread block went while a read one was there"
                assert block == unread.pop(0), "the longest held goes first"
        self.evicted.clear()

    @rule(size=st.integers(1, 200))
    def fetch(self, size: int) -> None:
        self.made += 1
        block = Block("object", self.made, self.made, self.made + 1, size)
        self.cache.reserve(size)
        self.forget_evicted()
        self.reserved.append(block)
        total = sum(b.size_bytes for b in [*self.reserved, *self.held])
        assert total <= BUDGET or not self.held, "over the budget only by what is on its way"

    @precondition(lambda self: self.reserved)
    @rule(arrives=st.booleans())
    def come_back(self, arrives: bool) -> None:
        block = self.reserved.pop(0)
        if arrives:
            batches = memoryview(bytes(block.size_bytes))
            self.cache.hold(
                HeldBlock(block, SEGMENT, batches, array("q", [block.base_offset]), array("q", [0, len(batches)]))
            )
            self.held[block] = False
        else:
            self.cache.release(block.size_bytes)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), is_read=st.booleans())
    def use(self, data: st.DataObject, is_read: bool) -> None:
        block = data.draw(st.sampled_from(list(self.held)))
        found = self.cache.get(block)
        assert found is not None
        assert found.block == block
        self.cache.touched(block, is_read=is_read)
        self.held[block] |= is_read

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(list(self.held)))
        self.cache.drop(block)
        self.cache.drop(block)
        del self.held[block]
        assert self.cache.get(block) is None

    @invariant()
    def books_agree(self) -> None:
        assert self.cache.held_bytes == sum(block.size_bytes for block in self.held)
        assert self.cache.reserved_bytes == sum(block.size_bytes for block in self.reserved)
        assert len(self.cache) == len(self.held)
        unread = sum(block.size_bytes for block, is_read in self.held.items() if not is_read)
        assert self.cache.allowance_bytes == BUDGET - unread - self.cache.reserved_bytes


TestMemoryOfManyBlocks = MemoryOfManyBlocks.TestCase
TestMemoryOfManyBlocks.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
