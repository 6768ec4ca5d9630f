"""Whatever comes when, every event is in exactly one report, and neither memory nor lines exceed their bounds."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from stratalog.machines.audit.event_counts import VARIOUS, EventCounts, EventKind
from stratalog.machines.audit.lines import AuditLine, Outcome

WINDOW_MS, MOST_KINDS = 100, 8
EVENT = st.tuples(st.integers(0, 30), st.integers(0, 150))
"""Which kind, and how long after the one before."""
MOST_LINES = 3 * MOST_KINDS + 1


def due(counts: EventCounts, steady_ms: int, *, is_last: bool = False) -> list[AuditLine]:
    return [report.line() for report in counts.due(steady_ms, is_last=is_last)]


def kind(number: int) -> EventKind:
    return EventKind(f"User:{number % 7}", f"host {number % 2}", "READ", "TOPIC", str(number), Outcome.DENIED)


@given(st.lists(EVENT, max_size=200))
def test_every_event_is_reported_once_within_the_bounds(events: list[tuple[int, int]]) -> None:
    counts = EventCounts(WINDOW_MS, most_kinds=MOST_KINDS)
    happened: Counter[str] = Counter()
    reported: Counter[str] = Counter()
    now = 0
    for number, pause in events:
        now += pause
        lines = due(counts, now)
        assert len(lines) <= MOST_LINES
        reported.update({line.change.resource: 0 for line in lines})
        for line in lines:
            assert line.count > 0 and line.at_ms <= line.until_ms <= now
            reported[line.change.resource] += line.count
        happened[str(number)] += 1
        if counts.note(kind(number), now, now):
            reported[str(number)] += 1
        assert counts.known_kinds <= MOST_KINDS
    for line in due(counts, now, is_last=True):
        reported[line.change.resource] += line.count
    assert reported.total() == happened.total()
    assert all(reported[name] <= happened[name] for name in reported if name != VARIOUS)


@given(st.lists(st.integers(0, WINDOW_MS - 1), min_size=1, max_size=100), st.integers(1, 20))
def test_a_kind_has_at_most_one_line_a_window_after_its_first(pauses: list[int], kinds: int) -> None:
    counts = EventCounts(WINDOW_MS, most_kinds=100)
    now = lines = 0
    for number, pause in enumerate(pauses):
        now += pause
        lines += len(due(counts, now)) + counts.note(kind(number % kinds), now, now)
    windows = now // WINDOW_MS + 1
    assert lines <= kinds * (windows + 1)
