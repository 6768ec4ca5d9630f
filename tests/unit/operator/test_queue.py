"""Which cluster is looked at next, and when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog_operator.queue import FAILED_PAUSE_S, LONGEST_BACKOFF_S, NAMED_ONLY_S, PAUSE_S, Key, WakeQueue

A, B = ("data", "a"), ("data", "b")


def test_waking_a_key_again_and_again_is_one_look() -> None:
    queue = WakeQueue()
    for _ in range(5):
        queue.wake(A, 0.0)

    assert queue.start_next(0.0) == A
    assert queue.start_next(100.0) is None
    queue.done(A, 0.0, None)
    assert queue.start_next(100.0) is None


def test_a_key_is_never_looked_at_twice_at_once_and_what_woke_it_meanwhile_is_not_forgotten() -> None:
    queue = WakeQueue()
    queue.wake(A, 0.0)
    queue.start_next(0.0)
    queue.wake(A, 1.0)

    assert queue.start_next(1.0) is None
    queue.done(A, 2.0, 60.0)
    assert queue.start_next(2.0) is None
    assert queue.start_next(2.0 + PAUSE_S) == A


def test_keys_do_not_wait_for_one_another_and_the_longest_waiting_goes_first() -> None:
    queue = WakeQueue()
    queue.wake(B, 0.0)
    queue.wake(A, 1.0)

    assert [queue.start_next(2.0), queue.start_next(2.0), queue.start_next(2.0)] == [B, A, None]


@pytest.mark.fault("objects-name-no-clusters")
def test_clusters_do_not_wait_for_thousands_of_names_that_no_cluster_has() -> None:
    queue = WakeQueue()
    for number in range(2_000):
        queue.wake(("data", f"none-{number:04}"), 0.0, is_named_only=True)
    queue.wake(A, 1.0)
    queue.wake(B, 1.0)

    assert [queue.start_next(2.0) for _ in range(4)] == [A, B, ("data", "none-0000"), None]
    assert queue.next_due() is None, "nothing can be started before that one has ended"
    queue.done(("data", "none-0000"), 3.0, None)
    assert (queue.next_due(), queue.start_next(3.0)) == (0.0, ("data", "none-0001"))
    queue.done(A, 3.0, 0.0)
    assert queue.start_next(4.0) == A


def test_a_name_without_a_cluster_does_not_wait_for_ever_while_clusters_are_always_due() -> None:
    queue = WakeQueue()
    queue.wake(A, 0.0, is_named_only=True)
    queue.wake(B, NAMED_ONLY_S)

    assert queue.start_next(NAMED_ONLY_S) == A


def test_a_name_is_that_of_a_cluster_once_the_cluster_or_its_pass_says_so() -> None:
    queue = WakeQueue()
    queue.wake(A, 0.0, is_named_only=True)
    queue.wake(B, 0.0, is_named_only=True)
    assert [queue.start_next(0.0), queue.start_next(0.0)] == [A, None]
    queue.wake(B, 0.0)
    assert queue.start_next(0.0) == B
    queue.done(A, 0.0, 60.0)
    queue.done(B, 0.0, 60.0)
    queue.wake(A, 1.0, is_named_only=True)
    queue.wake(B, 1.0, is_named_only=True)
    assert {queue.start_next(1.0), queue.start_next(1.0)} == {A, B}


def test_a_key_is_looked_at_again_when_its_pass_said_so_and_not_before() -> None:
    queue = WakeQueue()
    queue.wake(A, 0.0)
    queue.start_next(0.0)
    queue.done(A, 0.0, 60.0)

    assert queue.next_due() == 60.0
    assert queue.start_next(59.9) is None
    assert queue.start_next(60.0) == A


@pytest.mark.fault("pass-cluster-fails")
def test_each_failure_waits_longer_up_to_a_bound_and_a_success_begins_anew() -> None:
    queue, now = WakeQueue(), 0.0
    waits = []
    queue.wake(A, now)
    for _ in range(12):
        assert queue.start_next(now) == A
        waits.append(queue.failed(A, now, chance=0.0))
        now += waits[-1]
    assert queue.start_next(now) == A
    queue.done(A, now, 0.0)
    assert queue.start_next(now + PAUSE_S) == A

    assert waits[:4] == [1.0, 2.0, 4.0, 8.0]
    assert waits[-1] == LONGEST_BACKOFF_S
    assert queue.failed(A, now, chance=0.0) == 1.0
    assert queue.failing() == 1


@pytest.mark.fault("pass-cluster-fails")
def test_whoever_changes_a_key_that_fails_is_heard_soon_and_cannot_hurry_it() -> None:
    queue, now = WakeQueue(), 0.0
    queue.wake(A, now)
    for _ in range(10):
        queue.start_next(now)
        now += queue.failed(A, now, chance=0.0)
    queue.start_next(now)
    queue.failed(A, now, chance=0.0)
    queue.wake(A, now + 0.1)

    assert queue.start_next(now + FAILED_PAUSE_S - 0.1) is None
    assert queue.start_next(now + FAILED_PAUSE_S) == A


@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0])
def test_keys_that_failed_together_do_not_come_together(chance: float) -> None:
    queue = WakeQueue()
    queue.wake(A, 0.0)
    queue.start_next(0.0)

    assert queue.failed(A, 0.0, chance) == 1.0 - chance / 2


_KEYS = st.sampled_from([A, B, ("other", "a")])


@given(st.lists(st.tuples(_KEYS, st.sampled_from(["wake", "take", "done", "again", "failed"]), st.floats(0, 10))))
def test_whatever_happens_a_key_that_was_woken_is_looked_at_afterwards(steps: list[tuple[Key, str, float]]) -> None:
    queue, now = WakeQueue(), 0.0
    running: set[Key] = set()
    owed: set[Key] = set()
    for key, what, passed in steps:
        now += passed
        if what == "wake":
            queue.wake(key, now)
            owed.add(key)
        elif what == "take":
            taken = queue.start_next(now)
            if taken is not None:
                assert taken not in running
                running.add(taken)
                owed.discard(taken)
        elif key in running:
            running.discard(key)
            if what == "failed":
                queue.failed(key, now, 0.5)
            else:
                queue.done(key, now, 60.0 if what == "again" else None)
    for key in list(running):
        queue.done(key, now, None)
    seen = set()
    later = now + LONGEST_BACKOFF_S
    while (taken := queue.start_next(later)) is not None:
        seen.add(taken)

    assert owed <= seen
