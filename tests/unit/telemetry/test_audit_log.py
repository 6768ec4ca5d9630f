"""The audit log: what is noted is written in order, and no failure of its place stops or slows who notes."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from stratalog.machines.audit.lines import Asker, AuditLine, Change, Outcome
from stratalog.telemetry import audit_log
from stratalog.telemetry.audit_log import AuditLog
from support.audit_lines import KeptAudit, KeptLines
from support.waiting import eventually_sync

ALICE = Asker("User:alice", "10.0.0.7")
BOB = Asker("User:bob", "10.0.0.8")


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
    for number in range(audit_log.MOST_WAITING + 500):
        audit.change(Asker(f"User:{number % 10}", "10.0.0.7"), change(), Outcome.DONE)
    assert audit.stats.lost == 500
    audit.sink.trouble = ""
    eventually_sync(lambda: audit.stats.lines == audit_log.MOST_WAITING + 2)
    lines = audit.written()
    assert (lines[0]["action"], lines[0]["count"]) == ("LoseAuditLines", 500)
    assert lines[1]["resource"] == "first"


def test_one_asker_takes_no_more_than_a_quarter_of_the_places_and_so_loses_no_line_of_another() -> None:
    audit = KeptAudit()
    audit.sink.trouble = "away"
    audit.change(ALICE, change("first"), Outcome.DONE)
    eventually_sync(lambda: audit.sink.tries > 0)
    for _ in range(audit_log.MOST_WAITING):
        audit.change(BOB, change(), Outcome.DONE)
    assert audit.stats.lost == audit_log.MOST_WAITING - audit_log.MOST_WAITING // 4
    for number in range(100):
        audit.change(ALICE, change(str(number)), Outcome.DONE)
    assert audit.stats.lost == audit_log.MOST_WAITING - audit_log.MOST_WAITING // 4
    audit.sink.trouble = ""
    lines = audit.written()
    assert [line["resource"] for line in lines if line["principal"] == "User:alice"] == ["first", *map(str, range(100))]


def test_changes_that_failed_are_counted_by_kind_and_changes_that_were_done_are_not() -> None:
    audit = KeptAudit()
    for _ in range(50):
        audit.change(ALICE, change("refused"), Outcome.FAILED, "INVALID_REQUEST")
        audit.change(ALICE, change("made"), Outcome.DONE)
        audit.change(ALICE, change("left"), Outcome.UNKNOWN)
        audit.change(ALICE, change("late"), Outcome.UNKNOWN, "REQUEST_TIMED_OUT")
    lines = audit.written()
    assert [line["outcome"] for line in lines if line["resource"] == "made"] == ["done"] * 50
    assert [line["error"] for line in lines if line["resource"] == "late"] == ["REQUEST_TIMED_OUT"] * 50
    assert [line.get("count", 1) for line in lines if line["resource"] == "refused"] == [1, 49]
    assert [line.get("count", 1) for line in lines if line["resource"] == "left"] == [1, 49]


def test_an_event_that_is_reported_at_once_is_counted_once() -> None:
    audit = KeptAudit()
    for _ in range(3):
        audit.event(ALICE, change("offsets"), Outcome.FAILED, "UNKNOWN_MEMBER_ID")
    assert [line.get("count", 1) for line in audit.written()] == [1, 2]


def test_a_request_with_thousands_of_names_that_fail_has_few_lines_and_hides_no_change() -> None:
    def refused() -> Iterator[AuditLine]:
        for number in range(5_000):
            yield AuditLine(1, BOB, change(str(number)), Outcome.FAILED, "INVALID_REQUEST")

    audit = KeptAudit()
    audit.later(BOB, refused)
    audit.change(ALICE, change("orders"), Outcome.DONE)
    *named, done, rest = audit.written()
    assert len(named) == 250
    assert (rest["principal"], rest["action"], rest["resource"], rest["count"]) == (
        "User:bob",
        "CreateTopics",
        "*",
        4_750,
    )
    assert done["resource"] == "orders"


def test_notes_that_hold_much_memory_are_bounded_by_it() -> None:
    audit = KeptAudit()
    audit.sink.trouble = "away"
    audit.change(ALICE, change("first"), Outcome.DONE)
    eventually_sync(lambda: audit.sink.tries > 0)
    half = audit_log.MOST_WAITING_BYTES // 8 + 1
    audit.later(ALICE, tuple, half)
    audit.later(BOB, tuple, half)
    assert audit.stats.lost == 0
    audit.later(ALICE, tuple, half)
    assert audit.stats.lost == 1


def test_a_request_that_is_larger_than_the_share_of_its_asker_has_its_line() -> None:
    audit = KeptAudit()
    line = AuditLine(1, BOB, change("orders"), Outcome.DONE)
    for _ in range(3):
        before = audit.stats.lines
        audit.later(BOB, lambda: (line,), 2 * audit_log.MOST_WAITING_BYTES)
        eventually_sync(lambda lines=before: audit.stats.lines > lines or audit.stats.lost > 0)
    assert audit.stats.lost == 0
    assert [one["resource"] for one in audit.written()] == ["orders"] * 3


def test_one_request_at_a_time_waits_that_is_larger_than_the_share_of_its_asker() -> None:
    audit = KeptAudit()
    audit.sink.trouble = "away"
    audit.change(ALICE, change("first"), Outcome.DONE)
    eventually_sync(lambda: audit.sink.tries > 0)
    for asker in (ALICE, BOB):
        audit.later(asker, tuple, audit_log.MOST_WAITING_BYTES)
    assert audit.stats.lost == 1
    audit.change(BOB, change(), Outcome.DONE)
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


@pytest.mark.fault("audit-log-cannot-written")
def test_what_is_being_written_when_a_stop_gives_up_is_counted_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that hangs holds a note that waits no longer, and is not written."""
    monkeypatch.setattr(audit_log, "_LAST_LINES_S", 0.0)
    monkeypatch.setattr(audit_log, "_GRACE_S", 0.01)
    goes_on, hangs = threading.Event(), threading.Event()

    class Hanging(KeptLines):
        def write(self, line: str) -> None:
            hangs.set()
            goes_on.wait()

    audit = AuditLog(Hanging(), "node 1")
    audit.start()
    audit.change(ALICE, change("in hand"), Outcome.DONE)
    assert hangs.wait(60)
    for _ in range(9):
        audit.change(ALICE, change(), Outcome.DONE)
    with capture_logs():
        audit.close()
    assert (audit.stats.lines, audit.stats.lost) == (0, 10)
    goes_on.set()


def test_a_description_that_fails_ends_nothing() -> None:
    def broken() -> Iterator[AuditLine]:
        yield AuditLine(0, ALICE, change("before the fault"), Outcome.DONE)
        raise KeyError("a bug")

    audit = KeptAudit()
    with capture_logs():
        audit.later(ALICE, broken)
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
    audit.later(ALICE, lines)
    audit.written()
    assert threads == ["audit"]


def test_a_log_that_is_off_notes_nothing() -> None:
    audit = AuditLog(None, "node 1")
    audit.start()
    audit.change(ALICE, change(), Outcome.DONE)
    audit.denied(ALICE, "READ", "TOPIC", "orders")
    audit.later(ALICE, lambda: 1 / 0)  # type: ignore[arg-type,return-value]  # never called
    audit.close()
    assert (audit.stats.lines, audit.stats.waiting, audit.stats.lost) == (0, 0, 0)
