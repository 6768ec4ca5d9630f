"""The read-ahead window: grows by use, halves on waste, asks once, stays in its bounds."""

from __future__ import annotations

from stratalog.machines.reading.read_window import Block, ReadWindow, WindowLimits

LIMITS = WindowLimits(floor_bytes=100, cap_bytes=1_000, unread_ttl_ms=10_000)
PLENTY = 1 << 40


def room(_: Block) -> bool:
    return True


def segment(number: int) -> str:
    return f"segment-{number}.chunk"


def blocks(count: int, size: int = 100, first: int = 0) -> list[Block]:
    """Ten blocks to a segment, ten offsets to a block."""
    return [Block(segment(n // 10), n % 10 * size, n * 10, n * 10 + 10, size) for n in range(first, first + count)]


def fetched(window: ReadWindow, ahead: list[Block], now_ms: int = 0, reach: int = PLENTY) -> list[Block]:
    planned = window.plan(ahead, reach, PLENTY, room)
    for block in planned:
        window.arrived(block, now_ms)
    window.check_invariants()
    return planned


def test_a_use_grows_the_window_by_its_bytes_up_to_the_cap() -> None:
    window = ReadWindow(LIMITS)
    [block] = fetched(window, blocks(1))
    assert window.window_bytes == 100
    window.used(block, 40, 4, now_ms=0)
    assert window.window_bytes == 140
    for _ in range(50):
        window.used(block, 60, 10, now_ms=0)
    assert window.window_bytes == 1_000


def test_what_was_fetched_ahead_and_is_not_read_in_time_halves_the_window_once() -> None:
    window = ReadWindow(LIMITS)
    ahead = fetched(window, blocks(5))
    for _ in range(9):
        window.used(ahead[0], 100, 10, now_ms=0)
    assert window.window_bytes == 1_000
    assert window.judge(9_999) == (0, 0)
    assert window.judge(10_000) == (4, 400), "the first one was read to its end"
    assert window.window_bytes == 500
    assert window.judge(30_000) == (0, 0), "what was judged is not judged again"
    fetched(window, blocks(2, first=20), now_ms=30_000)
    assert window.judge(40_000) == (2, 200)
    assert window.window_bytes == 250


def test_what_was_not_read_in_time_is_held_and_expected_no_longer() -> None:
    window = ReadWindow(LIMITS)
    ahead = fetched(window, blocks(3))
    assert window.unread_bytes == 300
    window.judge(10_000)
    window.check_invariants()
    assert (window.held_bytes, window.unread_bytes) == (300, 0)
    assert not window.demand(ahead[1]), "it is there"
    assert not window.is_waiting
    assert not window.is_idle


def test_blocks_that_came_together_halve_the_window_together() -> None:
    window = ReadWindow(LIMITS)
    for block in blocks(5):
        window.used(block, 200, block.end_offset, now_ms=0)
    fetched(window, blocks(1, first=10), now_ms=0)
    fetched(window, blocks(1, first=11), now_ms=500)
    window.judge(10_000)
    window.judge(10_500)
    assert window.window_bytes == 500


def test_the_window_never_falls_below_its_floor() -> None:
    window = ReadWindow(LIMITS)
    for round_number in range(5):
        now_ms = round_number * 20_000
        fetched(window, blocks(2, first=2 * round_number), now_ms=now_ms)
        assert window.judge(now_ms + 10_000).blocks == 2
    assert window.window_bytes == 100


def test_a_shard_that_nobody_reads_begins_again_with_the_floor() -> None:
    window = ReadWindow(LIMITS)
    [block] = fetched(window, blocks(1))
    window.used(block, 500, 10, now_ms=0)
    window.rest()
    assert window.window_bytes == 100


def test_a_block_that_a_reader_waited_for_is_not_a_waste_of_the_window() -> None:
    window = ReadWindow(LIMITS)
    [block] = blocks(1)
    assert window.demand(block)
    window.arrived(block, 0)
    window.used(block, 50, 5, now_ms=0)
    before = window.window_bytes
    assert window.judge(10_000) == (0, 0)
    assert window.window_bytes == before


def test_a_block_that_is_being_read_has_its_time_from_each_use() -> None:
    window = ReadWindow(LIMITS)
    first, second = fetched(window, blocks(2))
    window.used(first, 10, 6, now_ms=9_000)
    assert window.judge(18_999) == (1, second.size_bytes)
    assert window.judge(19_000) == (1, first.size_bytes)


def test_a_block_is_asked_for_once_while_it_is_on_its_way_or_held() -> None:
    window = ReadWindow(LIMITS)
    first, second = blocks(2)
    assert window.demand(first)
    assert not window.demand(first)
    assert window.plan([first, second], PLENTY, PLENTY, room) == [second]
    assert window.plan([first, second], PLENTY, PLENTY, room) == []
    assert not window.demand(second)
    window.arrived(first, 0)
    window.arrived(second, 0)
    assert window.plan([first, second], PLENTY, PLENTY, room) == []
    window.dropped(first)
    assert window.demand(first)


def test_a_plan_reaches_as_far_as_asked_and_crosses_the_end_of_a_segment() -> None:
    window = ReadWindow(LIMITS)
    ahead = blocks(10, first=8)
    planned = window.plan(ahead, 350, PLENTY, room)
    assert planned == ahead[:4]
    assert {block.object_key for block in planned} == {segment(0), segment(1)}
    assert window.plan(ahead, 450, PLENTY, room) == ahead[4:5], "what is on its way counts as reached"


def test_a_plan_keeps_to_the_memory_that_is_left_and_skips_nothing() -> None:
    window = ReadWindow(LIMITS)
    near, far = blocks(2)
    large = Block(segment(0), 7, 10, 20, 500)
    assert window.plan([near, large, far], PLENTY, 300, room) == [near]
    assert window.plan([near, large, far], PLENTY, 99, room) == []
    assert ReadWindow(LIMITS).plan([near, large, far], PLENTY, PLENTY, lambda block: block is not large) == [near]


def test_a_plan_reads_no_further_than_it_needs() -> None:
    window = ReadWindow(LIMITS)
    ahead = iter(blocks(10))
    window.plan(ahead, 200, PLENTY, room)
    assert len(list(ahead)) == 8, "two blocks taken, none looked at beyond: it might have to be learned first"


def test_after_a_failure_only_readers_ask_until_one_succeeds() -> None:
    window = ReadWindow(LIMITS)
    first, second = blocks(2)
    assert window.plan([first], PLENTY, PLENTY, room) == [first]
    window.failed(first)
    assert window.plan([first, second], PLENTY, PLENTY, room) == []
    assert window.demand(first)
    window.arrived(first, 0)
    assert window.plan([first, second], PLENTY, PLENTY, room) == [second]


def test_a_use_of_a_block_that_was_dropped_meanwhile_only_grows_the_window() -> None:
    window = ReadWindow(LIMITS)
    [block] = blocks(1)
    window.used(block, 30, 5, now_ms=0)
    assert window.window_bytes == 130
    assert window.is_idle
