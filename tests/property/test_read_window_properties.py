"""The read-ahead window under any mix of readers, failures, evictions and time."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stratalog.machines.reading.read_window import Block, ReadWindow, WindowLimits

LIMITS = WindowLimits(floor_bytes=50, cap_bytes=600, unread_ttl_ms=1_000)
BUDGET = 700

SIZES = [30, 100, 70, 10, 200, 55, 90, 20]
BLOCKS = [Block(f"segment-{n // 6}.chunk", n % 6 * 300, n * 10, n * 10 + 10, SIZES[n % len(SIZES)]) for n in range(40)]


class WindowOfManyReaders(RuleBasedStateMachine):
    """Keeps its own books of what is on its way and held, and compares."""

    def __init__(self) -> None:
        super().__init__()
        self.window = ReadWindow(LIMITS)
        self.in_flight: list[Block] = []
        self.held: dict[Block, None] = {}
        self.now_ms = 0

    def allowance(self) -> int:
        return BUDGET - sum(block.size_bytes for block in [*self.in_flight, *self.held])

    @rule(at=st.integers(0, len(BLOCKS) - 1), reach=st.integers(0, 2_000))
    def look_ahead(self, at: int, reach: int) -> None:
        allowance = self.allowance()
        asked: list[Block] = []
        planned = self.window.plan(BLOCKS[at:], reach, allowance, lambda block: asked.append(block) is None)
        assert planned == asked, "room that was given is used"
        assert len(set(planned)) == len(planned)
        assert not set(planned) & {*self.in_flight, *self.held}, "asked for twice"
        assert sum(block.size_bytes for block in planned) <= max(0, allowance)
        if planned:
            distance = sum(block.size_bytes for block in BLOCKS[at : BLOCKS.index(planned[-1])])
            assert distance < reach, "beyond the window"
        self.in_flight += planned

    @rule(at=st.integers(0, len(BLOCKS) - 1))
    def wait_for(self, at: int) -> None:
        block = BLOCKS[at]
        assert self.window.demand(block) == (block not in self.in_flight and block not in self.held)
        if block not in self.in_flight and block not in self.held:
            self.in_flight.append(block)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), succeeds=st.booleans())
    def come_back(self, data: st.DataObject, succeeds: bool) -> None:
        block = self.in_flight.pop(data.draw(st.integers(0, len(self.in_flight) - 1)))
        if succeeds:
            self.window.arrived(block, self.now_ms)
            self.held[block] = None
        else:
            self.window.failed(block)

    @rule(at=st.integers(0, len(BLOCKS) - 1), upto=st.integers(1, 10))
    def use(self, at: int, upto: int) -> None:
        block = BLOCKS[at]
        before = self.window.window_bytes
        used_bytes = block.size_bytes * upto // 10
        self.window.used(block, used_bytes, block.base_offset + upto, self.now_ms)
        assert self.window.window_bytes == min(LIMITS.cap_bytes, before + used_bytes)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(list(self.held)))
        self.window.dropped(block)
        del self.held[block]

    @rule(ms=st.integers(0, 1_500))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        before = self.window.window_bytes
        waste = self.window.judge(self.now_ms)
        halved = max(LIMITS.floor_bytes, before // 2)
        assert self.window.window_bytes in ((before, halved) if waste.blocks else (before,))
        assert not self.window.judge(self.now_ms).blocks, "twice at the same time finds nothing more"

    @invariant()
    def books_agree(self) -> None:
        self.window.check_invariants()
        assert self.window.held_bytes == sum(block.size_bytes for block in self.held)
        assert self.window.in_flight_bytes == sum(block.size_bytes for block in self.in_flight)
        assert self.window.is_idle == (not self.held and not self.in_flight)


TestWindowOfManyReaders = WindowOfManyReaders.TestCase
TestWindowOfManyReaders.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
