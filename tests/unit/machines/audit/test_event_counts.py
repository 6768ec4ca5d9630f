"""Events of one kind: the first is reported at once, those after it are counted and reported once a window."""

from __future__ import annotations

from stratalog.machines.audit.event_counts import VARIOUS, EventCounts, EventKind
from stratalog.machines.audit.lines import AuditLine, Outcome

WINDOW_MS = 60_000


def due(counts: EventCounts, steady_ms: int, *, is_last: bool = False) -> list[AuditLine]:
    return [report.line() for report in counts.due(steady_ms, is_last=is_last)]


def kind(name: str = "orders", principal: str = "User:alice") -> EventKind:
    return EventKind(principal, "10.0.0.7", "READ", "TOPIC", name, Outcome.DENIED)


def test_the_first_event_of_a_kind_is_reported_at_once_and_the_next_ones_at_the_windows_end() -> None:
    counts = EventCounts(WINDOW_MS)
    assert counts.note(kind(), 1_000, 10)
    assert not counts.note(kind(), 2_000, 20) and not counts.note(kind(), 3_000, 30)
    assert counts.note(kind("payments"), 3_500, 35), "another kind"
    assert due(counts, 10 + WINDOW_MS - 1) == []
    (line,) = due(counts, 10 + WINDOW_MS)
    assert (line.at_ms, line.until_ms, line.count) == (2_000, 3_000, 2)
    assert (line.asker.principal, line.change.resource, line.outcome) == ("User:alice", "orders", Outcome.DENIED)


def test_a_client_that_goes_on_costs_one_line_a_window() -> None:
    counts = EventCounts(WINDOW_MS)
    lines = 0
    for second in range(600):
        lines += counts.note(kind(), second, second * 1_000)
        lines += len(due(counts, second * 1_000))
    assert lines == 1 + 9


def test_a_kind_that_was_quiet_for_a_window_is_reported_at_once_again() -> None:
    counts = EventCounts(WINDOW_MS)
    assert counts.note(kind(), 0, 0)
    assert due(counts, WINDOW_MS) == [] and counts.known_kinds == 1
    assert not counts.note(kind(), 0, WINDOW_MS + 1), "in the next window it is known"
    assert len(due(counts, 2 * WINDOW_MS)) == 1
    assert due(counts, 3 * WINDOW_MS) == [] and counts.known_kinds == 0
    assert counts.note(kind(), 0, 3 * WINDOW_MS + 1)


def by(principal: str, number: int = 0, address: str = "10.0.0.7") -> EventKind:
    return EventKind(principal, address, "READ", "TOPIC", f"topic-{number}", Outcome.DENIED)


def test_an_asker_has_a_quarter_of_the_kinds_and_the_rest_of_its_events_has_its_name() -> None:
    counts = EventCounts(WINDOW_MS, most_kinds=40)
    reported = [counts.note(by("User:bob", number), number, 0) for number in range(100)]
    assert reported == [True] * 10 + [False] * 90
    assert counts.note(by("User:mallory"), 5, 0), "others are not hidden"
    (line,) = due(counts, WINDOW_MS)
    assert (line.asker.principal, line.asker.address) == ("User:bob", "10.0.0.7")
    assert (line.change.action, line.change.resource, line.count) == ("READ", VARIOUS, 90)


def test_a_principal_has_half_of_the_kinds_from_however_many_addresses() -> None:
    counts = EventCounts(WINDOW_MS, most_kinds=40)
    reported = [counts.note(by("User:ANONYMOUS", 1, f"10.0.0.{number}"), 0, 0) for number in range(100)]
    assert sum(reported) == 20
    assert counts.note(by("User:mallory"), 5, 0)


def test_beyond_the_bound_of_all_kinds_an_asker_is_still_named() -> None:
    counts = EventCounts(WINDOW_MS, most_kinds=40)
    for number in range(40):
        assert counts.note(by(f"User:{number}"), 0, 0)
    assert not counts.note(by("User:mallory"), 5, 0)
    (line,) = due(counts, WINDOW_MS)
    assert (line.asker.principal, line.asker.address, line.change.resource) == ("User:mallory", "10.0.0.7", VARIOUS)


def test_beyond_the_bound_of_askers_the_principal_is_named_and_beyond_that_nothing_is() -> None:
    counts = EventCounts(WINDOW_MS, most_kinds=4)
    for number in range(100):
        counts.note(by("User:bob", number, f"10.0.0.{number}"), 0, 0)
    for number in range(100):
        counts.note(by(f"User:{number}"), 0, 0)
    lines = due(counts, WINDOW_MS)
    assert len(lines) <= 3 * 4 + 1
    named = {(line.asker.principal, line.asker.address): line.count for line in lines}
    assert named["User:bob", VARIOUS] > 80
    assert named[VARIOUS, VARIOUS] > 80


def test_kinds_of_an_asker_that_were_quiet_make_room_for_others_of_it() -> None:
    counts = EventCounts(WINDOW_MS, most_kinds=4)
    assert counts.note(by("User:bob", 1), 0, 0) and not counts.note(by("User:bob", 2), 0, 0)
    due(counts, WINDOW_MS)
    due(counts, 2 * WINDOW_MS)
    assert counts.note(by("User:bob", 2), 0, 2 * WINDOW_MS)


def test_a_clock_that_is_set_back_makes_no_report_that_ends_before_it_began() -> None:
    counts = EventCounts(WINDOW_MS)
    for at_ms in (50_000, 40_000, 1_000):
        counts.note(kind(), at_ms, 0)
    (line,) = due(counts, WINDOW_MS)
    assert (line.at_ms, line.until_ms, line.count) == (40_000, 40_000, 2)


def test_a_process_that_ends_reports_what_it_counted() -> None:
    counts = EventCounts(WINDOW_MS)
    counts.note(kind(), 0, 0)
    counts.note(kind(), 5, 5)
    assert [line.count for line in due(counts, 6, is_last=True)] == [1]


def test_names_of_any_length_are_held_within_a_bound() -> None:
    counts = EventCounts(WINDOW_MS)
    long = "g" * 30_000
    assert counts.note(kind(long, long), 0, 0) and not counts.note(kind(long, long), 1, 1)
    (line,) = due(counts, WINDOW_MS)
    assert len(line.change.resource) < 300 and len(line.asker.principal) < 300
