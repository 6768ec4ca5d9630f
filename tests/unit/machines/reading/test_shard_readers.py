"""Readers of cold data: known by where they are, expected by how fast they were, forgotten by age and number."""

from __future__ import annotations

from stratalog.machines.reading.shard_readers import Reader, ReaderLimits, ShardReaders

LIMITS = ReaderLimits(patience_ms=500, forget_ms=60_000, per_shard=4, in_all=10)


def make() -> ShardReaders:
    return ShardReaders(LIMITS)


def read(readers: ShardReaders, begin: int, end: int, now_ms: int, shard: str = "s", took_ms: int = 0) -> Reader:
    reader = readers.begin(shard, begin, now_ms)
    readers.moved(reader, end, now_ms + took_ms)
    readers.ended(reader, now_ms + took_ms)
    readers.check_invariants()
    return reader


def positions(readers: ShardReaders, shard: str = "s") -> list[int]:
    return [reader.position for reader in readers.of(shard)]


def test_a_read_that_begins_where_another_ended_is_the_same_reader() -> None:
    readers = make()
    first = read(readers, 0, 100, 0)
    assert read(readers, 100, 200, 10) is first
    assert positions(readers) == [200]


def test_a_read_anywhere_else_is_another_reader() -> None:
    readers = make()
    read(readers, 0, 100, 0)
    read(readers, 50, 80, 10)
    read(readers, 100, 200, 10, shard="other")
    assert positions(readers) == [80, 100]
    assert positions(readers, "other") == [200]


def test_two_groups_at_one_offset_are_two_readers_and_the_one_away_for_longest_reads_on() -> None:
    readers = make()
    first, second = read(readers, 0, 100, 0), read(readers, 50, 100, 5)
    assert first is not second
    assert read(readers, 100, 150, 20) is first
    assert read(readers, 100, 150, 30) is second


def test_a_read_at_the_offset_of_one_that_still_waits_is_another_group() -> None:
    readers = make()
    first = readers.begin("s", 0, 0)
    assert readers.begin("s", 0, 1) is not first


def test_a_reader_whose_read_was_given_up_is_continued_by_its_next_try() -> None:
    readers = make()
    first = readers.begin("s", 70, 0)
    readers.ended(first, 1_000)
    assert readers.begin("s", 70, 1_010) is first
    assert not first.has_moved


def test_a_reader_reaches_an_offset_by_the_speed_it_had() -> None:
    readers = make()
    for number in range(200):
        reader = read(readers, number * 10, number * 10 + 10, number * 100)
    assert reader.position == 2_000
    expected_ms = 199 * 100 + 100 + 1_000 / (10 / 100)
    assert abs(reader.reaches_ms(3_000) - expected_ms) < 0.05 * expected_ms


def test_a_reader_that_slows_down_is_believed_after_some_seconds() -> None:
    readers = make()
    for number in range(100):
        read(readers, number * 10, number * 10 + 10, number * 10)
    now_ms = 1_000
    for number in range(100, 130):
        now_ms += 1_000
        reader = read(readers, number * 10, number * 10 + 10, now_ms)
    per_offset_ms = (reader.reaches_ms(reader.position + 100) - reader.due_ms) / 100
    assert 80 < per_offset_ms <= 100, "10 offsets a second"


def test_a_new_reader_is_expected_to_be_as_fast_as_another_one() -> None:
    """Else all that lies before it would look as if it were needed at once, or never."""
    readers = make()
    for number in range(200):
        read(readers, number * 10, number * 10 + 10, number * 100)
    new = readers.begin("s", 500, 20_000)
    assert 20_900 < new.reaches_ms(600) < 21_100
    alone = readers.begin("other", 500, 20_000)
    assert alone.reaches_ms(500) == 20_000 < 20_500 < alone.reaches_ms(600)
    assert alone.soonest_ms(600) == 20_000, "what its first read asks for is fetched at once"


def test_a_reader_that_hurries_after_a_pause_is_soon_where_it_reads_ahead() -> None:
    readers = make()
    for number in range(8):
        reader = read(readers, number * 10, number * 10 + 10, 60_000 + number)
    assert reader.soonest_ms(reader.position + 100) < reader.due_ms + 30
    assert reader.reaches_ms(reader.position + 100) > reader.soonest_ms(reader.position + 100)


def test_the_time_that_the_store_takes_is_not_counted_as_the_readers_own_pause() -> None:
    """Else readers that wait for one another would look as if they did not come back soon."""
    readers = make()
    for number in range(10):
        reader = read(readers, number * 10, number * 10 + 10, number * 2_000, took_ms=1_990)
    assert reader.due_ms - reader.seen_ms <= 10


def test_a_late_reader_is_expected_after_as_long_again_as_it_has_been_away() -> None:
    readers = make()
    reader = read(readers, 0, 100, 0)
    readers.pass_time(499)
    assert reader.due_ms == 0
    for now_ms in (500, 1_000, 2_000, 4_000):
        assert readers.next_check_ms() == now_ms
        readers.pass_time(now_ms)
        assert reader.due_ms == 2 * now_ms
    assert read(readers, 100, 200, 5_000) is reader
    assert reader.due_ms < 10_000


def test_a_reader_that_waits_for_its_data_may_be_late_but_is_not_forgotten() -> None:
    """Else the data behind the block that it waits for would keep all room for good."""
    readers = make()
    reader = readers.begin("s", 0, 0)
    readers.pass_time(500)
    assert reader.due_ms == 1_000
    readers.pass_time(10 * LIMITS.forget_ms)
    assert reader.is_known


def test_readers_are_forgotten_by_age() -> None:
    readers = make()
    read(readers, 0, 100, 0)
    read(readers, 500, 600, 30_000)
    now_ms = 0
    while now_ms < LIMITS.forget_ms + 10_000:
        now_ms += 500
        readers.pass_time(now_ms)
        readers.check_invariants()
    assert positions(readers) == [600]
    assert read(readers, 100, 200, now_ms).position == 200


def test_the_readers_of_a_shard_and_of_a_node_are_bounded_by_those_away_for_longest() -> None:
    readers = make()
    for number in range(6):
        read(readers, number * 1_000, number * 1_000 + 10, number)
    assert positions(readers) == [2_010, 3_010, 4_010, 5_010]
    for number in range(20):
        read(readers, 0, 10, 100 + number, shard=f"shard-{number}")
    assert len(readers) == LIMITS.in_all
    assert positions(readers) == []
    assert readers.changed >= {"s", "shard-0", "shard-19"}


def test_a_reader_that_was_forgotten_while_it_read_changes_nothing_more() -> None:
    readers = make()
    reader = readers.begin("s", 0, 0)
    for number in range(1, 6):
        read(readers, number * 1_000, number * 1_000 + 10, number)
    assert not reader.is_known
    readers.moved(reader, 100, 50)
    readers.ended(reader, 50)
    readers.check_invariants()
    assert 100 not in positions(readers)


def test_checks_of_readers_that_were_forgotten_do_not_pile_up() -> None:
    readers = make()
    for number in range(10_000):
        read(readers, number * 10, number * 10 + 1, number)
    assert len(readers._checks) < 200
