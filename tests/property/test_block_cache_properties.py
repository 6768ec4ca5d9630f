"""The cold tier's memory under any use: never more than the budget, and what a reader still needs stays. In which order
blocks go, `test_eviction_order_properties` compares."""

from __future__ import annotations

from array import array
from math import inf
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stratalog.machines.reading.read_window import Block
from stratalog.machines.reading.shard_readers import ReaderLimits
from stratalog.model.ids import SegmentKey
from stratalog_node.tier.cold.block_cache import BlockCache, Eviction, HeldBlock

BUDGET = 500
PATIENCE_MS = 100
SEGMENT = SegmentKey(UUID(int=1), 0, 0, 0)


class MemoryOfManyBlocks(RuleBasedStateMachine):
    """Keeps its own account: the held blocks, and the readers that wait for them."""

    def __init__(self) -> None:
        super().__init__()
        self.evicted: list[tuple[Block, bool, Eviction]] = []
        self.cache = BlockCache(
            BUDGET,
            ReaderLimits(PATIENCE_MS, per_shard=4),
            lambda held, is_read, why: self.evicted.append((held.block, is_read, why)),
        )
        self.reserved: list[Block] = []
        self.held: dict[Block, bool] = {}
        """Block: whether it was read to its end."""
        self.pins: list[Block] = []
        self.made = 0
        self.now_ms = 0

    def counted(self) -> int:
        return sum(block.size_bytes for block in [*self.reserved, *self.held])

    def next_use_ms(self, block: Block) -> float:
        behind = [one for one in self.cache.readers.of(SEGMENT.shard_key) if one.position < block.end_offset]
        return min((reader.reaches_ms(block.base_offset) for reader in behind), default=inf)

    @rule(size=st.sampled_from([10, 60, 100, 200, 700]), later_ms=st.sampled_from([0, 0, 300]))
    def ask(self, size: int, later_ms: int) -> None:
        before = self.counted()
        needed_ms = self.now_ms + later_ms
        is_admitted = self.cache.try_reserve(size, needed_ms, self.now_ms)
        for block, is_read, why in self.evicted:
            assert is_admitted, "nothing goes in vain"
            assert block not in self.pins, "a reader waits for it"
            assert self.held.pop(block) == is_read
            assert self.next_use_ms(block) > needed_ms + PATIENCE_MS, "it is needed sooner than what comes"
            assert (why is Eviction.PASSED) == (self.next_use_ms(block) == inf)
            assert self.cache.was_dropped(block)
        self.evicted.clear()
        if is_admitted:
            self.made += 1
            self.reserved.append(Block("object", self.made, self.made * 10, self.made * 10 + 10, size))
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
        self.cache.unpin(self.pins.pop(data.draw(st.integers(0, len(self.pins) - 1))))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), is_read=st.booleans())
    def use(self, data: st.DataObject, is_read: bool) -> None:
        block = data.draw(st.sampled_from(list(self.held)))
        found = self.cache.get(block)
        assert found is not None
        assert found.block == block
        self.cache.touched(block, self.now_ms, is_read=is_read)
        self.held[block] |= is_read

    @rule(data=st.data(), length=st.integers(1, 30))
    def read(self, data: st.DataObject, length: int) -> None:
        known = [one.position for one in self.cache.readers.of(SEGMENT.shard_key)]
        begin = data.draw(st.sampled_from([*known, 0, self.made * 5]))
        reader = self.cache.readers.begin(SEGMENT.shard_key, begin, self.now_ms)
        self.cache.readers.moved(reader, begin + length, self.now_ms)
        self.cache.readers.ended(reader, self.now_ms)

    @rule(ms=st.integers(0, 2 * PATIENCE_MS))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    @precondition(lambda self: len(self.held) > 3)
    @rule()
    def nobody_comes_for_long(self) -> None:
        """Then each block may go that no reader waits for: no queue is stuck."""
        for _ in range(20):
            self.now_ms += 2 * PATIENCE_MS
            self.cache.readers.pass_time(self.now_ms)
        free = BUDGET - sum(block.size_bytes for block in [*self.reserved, *set(self.pins) & set(self.held)])
        if free >= 10:
            assert self.cache.try_reserve(10, self.now_ms, self.now_ms)
            self.cache.release(10)
            for block, _, _ in self.evicted:
                del self.held[block]
            self.evicted.clear()

    @invariant()
    def books_agree(self) -> None:
        cache = self.cache
        assert cache.held_bytes == sum(block.size_bytes for block in self.held)
        assert cache.reserved_bytes == sum(block.size_bytes for block in self.reserved)
        assert len(cache) == len(self.held)
        assert all(block in cache for block in self.held)


TestMemoryOfManyBlocks = MemoryOfManyBlocks.TestCase
TestMemoryOfManyBlocks.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
