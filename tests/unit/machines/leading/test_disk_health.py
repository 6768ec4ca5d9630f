"""A disk is judged by whether its writes and flushes come to a good end."""

from __future__ import annotations

import pytest

from stratalog.machines.leading.disk_health import CHECKS_PER_STALL, WELL_AGAIN, CallInProgress, DiskCall, DiskHealth

STALL_MS = 10_000
POLL_MS = STALL_MS // CHECKS_PER_STALL
FLUSH = CallInProgress(DiskCall.FLUSH, "a.seg", 1_000)


def pass_time(
    health: DiskHealth,
    from_ms: int,
    until_ms: int,
    *,
    oldest: CallInProgress | None = None,
    no_room: str | None = None,
    works: bool = False,
) -> None:
    """Look as often as is asked for. `works`: writes and flushes succeed meanwhile, probes among them."""
    for now_ms in (*range(from_ms, until_ms, POLL_MS), until_ms):
        if works:
            for kind in DiskCall:
                health.succeeded(kind, now_ms)
        health.check(oldest, no_room, now_ms)


def test_a_disk_to_which_nothing_is_written_is_well() -> None:
    health = DiskHealth(STALL_MS)
    pass_time(health, 0, 10 * STALL_MS)
    assert health.trouble is None and not health.wants_probe


def test_a_flush_that_does_not_return_is_found_once_the_stall_is_over() -> None:
    health = DiskHealth(STALL_MS)
    pass_time(health, 1_000, 10_999, oldest=FLUSH)
    assert health.trouble is None, "a slow disk works"
    pass_time(health, 11_000, 13_000, oldest=FLUSH)
    assert health.trouble == "a flush of a.seg has not returned for 12 s" and health.wants_probe


@pytest.mark.fault("disk-slow-full-hangs")
def test_a_disk_that_is_slow_and_works_is_well() -> None:
    health = DiskHealth(STALL_MS)
    for number in range(20):
        began_ms = number * 9_000
        pass_time(health, began_ms, began_ms + 8_999, oldest=CallInProgress(DiskCall.FLUSH, "a.seg", began_ms))
        health.succeeded(DiskCall.FLUSH, began_ms + 9_000)
    assert health.trouble is None


def test_writes_that_all_fail_are_found_and_one_that_succeeds_clears_them() -> None:
    health = DiskHealth(STALL_MS)
    for now_ms in range(0, 9_000, 100):
        health.failed(DiskCall.WRITE, "Input/output error", now_ms)
    assert health.wants_probe
    health.succeeded(DiskCall.WRITE, 9_000)
    health.failed(DiskCall.WRITE, "Input/output error", 9_100)
    pass_time(health, 9_200, 19_000)
    assert health.trouble is None
    pass_time(health, 19_100, 20_000)
    assert health.trouble == "every write has failed for 10 s: Input/output error"


def test_flushes_that_succeed_say_nothing_of_writes_that_fail() -> None:
    health = DiskHealth(STALL_MS)
    for now_ms in range(0, 11_000, 100):
        health.failed(DiskCall.WRITE, "No space left on device", now_ms)
        health.succeeded(DiskCall.FLUSH, now_ms)
        health.check(None, None, now_ms)
    assert health.trouble is not None and "No space left on device" in health.trouble


@pytest.mark.fault("disk-slow-full-hangs")
def test_a_disk_that_is_full_for_a_moment_is_well_and_for_long_is_not() -> None:
    health = DiskHealth(STALL_MS)
    pass_time(health, 0, 9_000, no_room="full")
    pass_time(health, 9_100, 9_200)
    pass_time(health, 9_300, 19_000, no_room="full")
    assert health.trouble is None
    pass_time(health, 19_100, 20_000, no_room="full")
    assert health.trouble == "there has been no room for new data for 10 s: full"


@pytest.mark.fault("disk-slow-full-hangs")
def test_a_stuck_disk_is_well_again_only_after_it_has_worked_for_a_while() -> None:
    health = DiskHealth(STALL_MS)
    pass_time(health, 1_000, 11_000, oldest=FLUSH)
    assert health.trouble is not None
    pass_time(health, 11_100, 11_000 + WELL_AGAIN * STALL_MS - 1, works=True)
    assert health.trouble is not None, "it may hang again at once"
    pass_time(health, 11_000 + WELL_AGAIN * STALL_MS, 12_000 + WELL_AGAIN * STALL_MS, works=True)
    assert health.trouble is None and not health.wants_probe


@pytest.mark.fault("disk-slow-full-hangs")
def test_a_failure_meanwhile_begins_the_time_again() -> None:
    health = DiskHealth(STALL_MS)
    pass_time(health, 1_000, 11_000, oldest=FLUSH)
    pass_time(health, 11_100, 30_000, works=True)
    health.failed(DiskCall.FLUSH, "Input/output error", 30_100)
    pass_time(health, 30_200, 59_000, works=True)
    assert health.trouble is not None
    pass_time(health, 59_100, 61_000, works=True)
    assert health.trouble is None


def test_a_stuck_disk_to_which_nothing_succeeds_stays_stuck() -> None:
    health = DiskHealth(STALL_MS)
    pass_time(health, 1_000, 11_000, oldest=FLUSH)
    pass_time(health, 11_100, 200_000)
    assert health.trouble is not None and health.wants_probe


def test_room_counts_from_a_clock_that_begins_at_zero() -> None:
    health = DiskHealth(STALL_MS)
    pass_time(health, 0, STALL_MS, no_room="full")
    assert health.trouble is not None


READ = CallInProgress(DiskCall.READ, "a.seg", 1_000)


@pytest.mark.fault("disk-written-read-files")
def test_a_read_that_does_not_return_counts_unless_others_do() -> None:
    """A bad sector may take a disk a minute, which serves all else meanwhile."""
    health = DiskHealth(STALL_MS)
    for now_ms in range(1_000, 40_000, POLL_MS):
        health.check(None, None, now_ms, READ)
        if health.wants_probe:
            health.succeeded(DiskCall.READ, now_ms)
    assert health.trouble is None
    health = DiskHealth(STALL_MS)
    for now_ms in range(1_000, 13_000, POLL_MS):
        health.check(None, None, now_ms, READ)
    assert health.trouble == "a read of a.seg has not returned for 10 s" and health.wants_probe


@pytest.mark.fault("disk-written-read-files")
def test_reads_that_all_fail_are_found_and_a_disk_is_well_only_once_it_can_be_read() -> None:
    health = DiskHealth(STALL_MS)
    for now_ms in range(0, STALL_MS + 1, POLL_MS):
        health.failed(DiskCall.READ, "Input/output error", now_ms)
        health.check(None, None, now_ms)
    assert health.trouble == "every read has failed for 10 s: Input/output error"
    for now_ms in range(12_000, 60_000, POLL_MS):
        health.succeeded(DiskCall.WRITE, now_ms)
        health.succeeded(DiskCall.FLUSH, now_ms)
        health.check(None, None, now_ms)
    assert health.trouble is not None
    for now_ms in range(60_000, 100_000, POLL_MS):
        pass_time(health, now_ms, now_ms, works=True)
    assert health.trouble is None
