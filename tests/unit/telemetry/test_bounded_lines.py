"""Log lines that others can cause any number of are few, and say how many were left out."""

from __future__ import annotations

import structlog
from structlog.testing import capture_logs

from stratalog.telemetry.bounded_lines import BoundedLines


def test_any_number_of_lines_in_a_window_costs_few_and_the_next_window_says_how_many_were_left_out() -> None:
    now_ms = 5_000
    lines = BoundedLines(structlog.get_logger(), lambda: now_ms, "the metric counts them")
    with capture_logs() as logged:
        for number in range(1_000):
            lines.warning("closed", number=number)
        assert [one["event"] for one in logged] == ["closed"] * 20 + [
            "further lines are left out: the metric counts them"
        ]
        now_ms += 9_999
        lines.info("closed")
        assert len(logged) == 21
        now_ms += 1
        lines.info("closed")
        now_ms += 10_000
        lines.info("closed")
    assert logged[21:] == [
        {"event": "closed", "left_out": 981, "log_level": "info"},
        {"event": "closed", "log_level": "info"},
    ]
