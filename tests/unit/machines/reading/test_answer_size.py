"""What one answer of another node is asked to hold follows what the link between the two carries."""

from __future__ import annotations

import pytest

from stratalog.machines.reading.answer_size import AnswerSize

MIB = 1 << 20


def carried(size: AnswerSize, bytes_per_s: int, answers: int) -> list[int]:
    """What is asked for, over a link of this rate, by a peer that always has enough."""
    asked = []
    for _ in range(answers):
        asked.append(size.size_bytes)
        size.answered(size.size_bytes, 1_000 * size.size_bytes / bytes_per_s)
    return asked


def test_a_fast_link_carries_the_largest_answers_from_the_start() -> None:
    assert carried(AnswerSize(8 * MIB), 100 * MIB, 5) == [8 * MIB] * 5


@pytest.mark.fault("link-two-nodes-slow")
def test_on_a_slow_link_an_answer_takes_about_a_second() -> None:
    assert carried(AnswerSize(8 * MIB), 1 * MIB, 4) == [8 * MIB, 1 * MIB, 1 * MIB, 1 * MIB]


def test_it_never_shrinks_below_what_an_answer_needs_to_be_worth_a_request() -> None:
    assert carried(AnswerSize(8 * MIB), 1_000, 3) == [8 * MIB, 64 << 10, 64 << 10]
    assert carried(AnswerSize(1_000), 10, 3) == [1_000] * 3


def test_it_grows_again_once_the_link_is_fast_again() -> None:
    size = AnswerSize(8 * MIB)
    carried(size, 1 * MIB, 2)
    assert carried(size, 100 * MIB, 5) == [1 * MIB, 2 * MIB, 4 * MIB, 8 * MIB, 8 * MIB]


def test_small_answers_say_nothing_about_how_much_a_link_carries() -> None:
    size = AnswerSize(8 * MIB)
    carried(size, 1 * MIB, 2)
    for _ in range(10):
        size.answered(1_000, 0)
    assert size.size_bytes == 1 * MIB


def test_one_batch_that_is_larger_than_was_asked_for_counts_with_its_own_size() -> None:
    size = AnswerSize(1 * MIB)
    size.answered(16 * MIB, 4_000)
    assert size.size_bytes == 1 * MIB, "4 MiB a second is more than enough"
