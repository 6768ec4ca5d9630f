"""The audit log: what is noted is written in order, and no failure of its place stops or slows who notes."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from stratalog.machines.audit.lines import Asker, AuditLine, Change, Outcome
from stratalog.telemetry import audit_log
from stratalog.telemetry.audit_log import AuditLog
from support.audit_lines import KeptAudit
from support.waiting import eventually_sync

ALICE = Asker("User:alice", "10.0.0.7")


def change(name: str = "orders") -> Change:
    return Change("CreateTopics", "TOPIC", name)


def test_changes_are_written_in_order_with_cluster_and_part() -> None:
    audit = KeptAudit(wall_ms=lambda: 1_000)
    for number in range(100):
        audit.change(ALICE, change(str(number)), Outcome.DONE)
    lines = audit.written()
    assert [line["resource"] for line in lines] == [str(number) for number in range(100)]
    assert (lines[0]["cluster"], lines[0]["part"]) == ("cluster", "node 1")
    assert (audit.stats.lines, audit.stats.lost, audit.stats.waiting) == (100, 0, 0)


def test_ten_thousand_denials_of_one_kind_are_two_lines_with_their_number() -> None:
    audit = KeptAudit()
    for _ in range(10_000):
        audit.denied(ALICE, "READ", "TOPIC", "orders", "TOPIC_AUTHORIZATION_FAILED")
    first, rest = audit.written()
    assert (first["outcome"], first["action"], first["resource"]) == ("denied", "READ", "orders")
    assert "count" not in first and rest["count"] == 9_999


def test_a_window_that_ends_is_reported_while_the_process_runs() -> None:
    steady = [0]
    audit = KeptAudit(window_ms=60_000, steady_ms=lambda: steady[0])
    for _ in range(3):
        audit.denied(ALICE, "READ", "TOPIC", "orders")
    eventually_sync(lambda: len(audit.sink.texts) == 1)
    steady[0] = 60_000
    eventually_sync(lambda: len(audit.sink.texts) == 2)
    assert [line.get("count") for line in audit.written()] == [None, 2]


@pytest.mark.fault("audit-log-cannot-written")
def test_what_cannot_be_written_waits_and_is_written_later() -> None:
    audit = KeptAudit()
    audit.sink.trouble = "No space left on device"
    with capture_logs() as logs:
        for number in range(50):
            audit.change(ALICE, change(str(number)), Outcome.DONE)
        eventually_sync(lambda: audit.sink.tries > 20)
        assert audit.stats.is_failing == 1 and audit.stats.waiting > 0
        audit.sink.trouble = ""
        eventually_sync(lambda: audit.stats.lines == 50)
        assert audit.stats.is_failing == 0
    assert [line["resource"] for line in audit.written()] == [str(number) for number in range(50)]
    assert audit.stats.lost == 0
    told = [one for one in logs if one["log_level"] == "error"]
    assert len(told) == 1 and told[0]["reason"] == "No space left on device", "once, and not each time"


@pytest.mark.fault("audit-log-cannot-written")
def test_beyond_its_bounds_lines_are_lost_counted_and_the_log_says_so_itself() -> None:
    audit = KeptAudit()
    audit.sink.trouble = "No space left on device"
    audit.change(ALICE, change("first"), Outcome.DONE)
    eventually_sync(lambda: audit.sink.tries > 0)
    for _ in range(audit_log.MOST_WAITING + 500):
        audit.change(ALICE, change(), Outcome.DONE)
    assert audit.stats.lost == 500
    audit.sink.trouble = ""
    eventually_sync(lambda: audit.stats.lines == audit_log.MOST_WAITING + 2)
    lines = audit.written()
    assert (lines[0]["action"], lines[0]["count"]) == ("LoseAuditLines", 500)
    assert lines[1]["resource"] == "first"


def test_notes_that_hold_much_memory_are_bounded_by_it() -> None:
    audit = KeptAudit()
    audit.sink.trouble = "away"
    audit.change(ALICE, change("first"), Outcome.DONE)
    eventually_sync(lambda: audit.sink.tries > 0)
    half = audit_log.MOST_WAITING_BYTES // 2 + 1
    audit.later(tuple, half)
    audit.later(tuple, half)
    assert audit.stats.lost == 1


@pytest.mark.fault("audit-log-cannot-written")
def test_a_stop_does_not_wait_long_for_a_place_that_takes_nothing() -> None:
    audit = KeptAudit()
    audit.sink.trouble = "away"
    for number in range(5):
        audit.change(ALICE, change(str(number)), Outcome.DONE)
    audit.denied(ALICE, "READ", "TOPIC", "orders")
    audit.denied(ALICE, "READ", "TOPIC", "orders")
    with capture_logs() as logs:
        assert audit.written() == []
    assert audit.stats.lost == 5 + 1 + 1, "those that waited, and the denial that was only counted"
    assert any("to its end" in one["event"] for one in logs)


def test_a_description_that_fails_ends_nothing() -> None:
    def broken() -> Iterator[AuditLine]:
        yield AuditLine(0, ALICE, change("before the fault"), Outcome.DONE)
        raise KeyError("a bug")

    audit = KeptAudit()
    with capture_logs():
        audit.later(broken)
        audit.change(ALICE, change("after it"), Outcome.DONE)
        first, loss, last = audit.written()
    assert (first["resource"], last["resource"]) == ("before the fault", "after it")
    assert (loss["action"], loss["count"]) == ("LoseAuditLines", 1)
    assert audit.stats.lost == 1


def test_lines_are_made_in_the_logs_own_thread() -> None:
    threads: list[str] = []

    def lines() -> Iterator[AuditLine]:
        threads.append(threading.current_thread().name)
        yield AuditLine(0, ALICE, change(), Outcome.DONE)

    audit = KeptAudit()
    audit.later(lines)
    audit.written()
    assert threads == ["audit"]


def test_a_log_that_is_off_notes_nothing() -> None:
    audit = AuditLog(None, "node 1")
    audit.start()
    audit.change(ALICE, change(), Outcome.DONE)
    audit.denied(ALICE, "READ", "TOPIC", "orders")
    audit.later(lambda: 1 / 0)  # type: ignore[arg-type,return-value]  # never called
    audit.close()
    assert (audit.stats.lines, audit.stats.waiting, audit.stats.lost) == (0, 0, 0)
