"""What goes first from a cache, against a model that looks at every block and every reader."""

from __future__ import annotations

from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stratalog.machines.reading.eviction_order import EvictionOrder, Held
from stratalog.machines.reading.shard_readers import ReaderLimits, ShardReaders

LIMITS = ReaderLimits(patience_ms=100, forget_ms=5_000, per_shard=5, in_all=8)
SHARDS = ("a", "b", "c")
BLOCK = 10
NUMBERS = 12


class OrderOfManyBlocks(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.readers = ShardReaders(LIMITS)
        self.order: EvictionOrder[tuple[str, int]] = EvictionOrder(self.readers)
        self.held: dict[tuple[str, int], Held[tuple[str, int]]] = {}
        self.now_ms = 0

    def next_use_ms(self, held: Held[tuple[str, int]]) -> float:
        """The plain rule: when the first reader that has not passed it should reach it."""
        behind = [one for one in self.readers.of(held.shard) if one.position < held.end_offset]
        return min((reader.reaches_ms(held.base_offset) for reader in behind), default=inf)

    @rule(shard=st.sampled_from(SHARDS), number=st.integers(0, NUMBERS - 1))
    def hold(self, shard: str, number: int) -> None:
        if (shard, number) not in self.held:
            held = Held((shard, number), shard, number * BLOCK, (number + 1) * BLOCK, 1, self.now_ms)
            self.held[shard, number] = held
            self.order.add(held)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.order.remove(self.held.pop(data.draw(st.sampled_from(sorted(self.held)))))

    @rule(shard=st.sampled_from(SHARDS), data=st.data(), length=st.integers(1, 3 * BLOCK), answers=st.booleans())
    def read(self, shard: str, data: st.DataObject, length: int, answers: bool) -> None:
        known = [reader.position for reader in self.readers.of(shard)]
        begin = data.draw(st.sampled_from([*known, 0, 5, 40, 77]))
        reader = self.readers.begin(shard, begin, self.now_ms)
        self.now_ms += data.draw(st.integers(0, 20))
        if answers:
            self.readers.moved(reader, begin + length, self.now_ms)
        self.readers.ended(reader, self.now_ms)

    @rule(ms=st.integers(0, 300))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    @rule(size=st.integers(1, 5), slack_ms=st.integers(0, 500), goes=st.booleans())
    def need_room(self, size: int, slack_ms: int, goes: bool) -> None:
        before = dict(self.held)
        taken = self.order.remove_first(size, self.now_ms + slack_ms, self.now_ms)
        left = dict(before)
        for one in taken:
            uses = {key: self.next_use_ms(held) for key, held in left.items()}
            assert (uses[one.held.value] if one.next_use_ms is not None else inf) == max(uses.values())
            assert one.next_use_ms is None or one.next_use_ms == uses[one.held.value] > self.now_ms + slack_ms
            del left[one.held.value]
        assert len(taken) <= size
        if len(taken) < size:
            assert all(self.next_use_ms(held) <= self.now_ms + slack_ms for held in left.values())
        if goes:
            self.held = left
        else:
            for one in taken:
                self.order.add(one.held)

    @invariant()
    def the_first_to_go_is_the_one_that_is_needed_last(self) -> None:
        first = self.order.first(self.now_ms)
        self.readers.check_invariants()
        if first is None:
            assert not self.held
            return
        uses = {key: self.next_use_ms(held) for key, held in self.held.items()}
        assert uses[first.held.value] == max(uses.values())
        assert (first.next_use_ms is None) == (uses[first.held.value] == inf)
        if first.next_use_ms is None:
            passed = [one for one in self.held.values() if uses[one.value] == inf]
            lowest = [
                min((p for p in passed if p.shard == s), key=lambda p: p.base_offset) for s in {p.shard for p in passed}
            ]
            assert first.held.used_ms == min(one.used_ms for one in lowest)


TestOrderOfManyBlocks = OrderOfManyBlocks.TestCase
TestOrderOfManyBlocks.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
