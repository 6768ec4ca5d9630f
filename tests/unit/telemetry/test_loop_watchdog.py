"""The watchdog sees a loop that is really blocked, and where (F90)."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Iterator

import pytest

from stratalog.telemetry.logs import configure_logs
from stratalog.telemetry.watchdog import BlockLines, Blocks, LoopWatchdog
from support.waiting import eventually


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    configure_logs("info", stream=stream)
    yield stream
    configure_logs("info")


def the_culprit() -> None:
    time.sleep(0.3)


@pytest.mark.fault("blocks-event-loop")
async def test_a_blocked_loop_is_reported_with_the_culprits_stack(lines: io.StringIO) -> None:
    watchdog = LoopWatchdog(threshold_s=0.1)
    watchdog.start()
    try:
        await asyncio.sleep(0)
        the_culprit()
        await eventually(lambda: watchdog.stats.blocks == 1)
        await eventually(lambda: lines.getvalue().endswith("\n"))
    finally:
        watchdog.stop()

    (line,) = (json.loads(text) for text in lines.getvalue().splitlines())
    assert line["event"] == "event loop was blocked"
    assert "in the_culprit" in line["where"] and "test_loop_watchdog.py" in line["where"]
    assert line["worst_ms"] >= 275 and line["blocks"] == 1
    assert watchdog.stats.blocked.count == 1


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def test_a_report_goes_to_a_terminal_too_and_the_watch_continues() -> None:
    """structlog's coloured lines take `stack` for a text: with a list there the watchdog's thread died."""
    screen = _Terminal()
    configure_logs("info", stream=screen)
    watchdog = LoopWatchdog(threshold_s=0.05, interval_s=0.01, period_s=0)
    watchdog.start()
    try:
        for expected in (1, 2):
            the_culprit()
            await eventually(lambda expected=expected: screen.getvalue().count("event loop was blocked") == expected)
    finally:
        watchdog.stop()
        configure_logs("info")

    assert "in the_culprit" in screen.getvalue()


@pytest.mark.fault("blocks-event-loop")
async def test_blocks_behind_one_that_has_its_line_share_one_and_the_metrics_count_each(lines: io.StringIO) -> None:
    watchdog = LoopWatchdog(threshold_s=0.05, interval_s=0.01, period_s=3_600)
    watchdog.start()
    try:
        for expected in (1, 2, 3):
            the_culprit()
            await eventually(lambda expected=expected: watchdog.stats.blocks == expected)
            await eventually(lambda: lines.getvalue().endswith("\n"))
        assert len(lines.getvalue().splitlines()) == 1
    finally:
        watchdog.stop()

    first, rest = (json.loads(text) for text in lines.getvalue().splitlines())
    assert (first["blocks"], rest["blocks"], watchdog.stats.blocked.count) == (1, 2, 3)


def test_a_line_reports_how_many_blocks_came_since_the_last_one_and_where_the_worst_was() -> None:
    lines = BlockLines(10.0)
    assert lines.due(100.0) is None
    lines.add(0.2, ["a"])
    assert lines.due(100.0) == Blocks(1, 0.2, ["a"])
    for seconds, where in ((0.3, "b"), (0.9, "c"), (0.4, "d")):
        lines.add(seconds, [where])
        assert lines.due(109.9) is None
    assert lines.due(110.0) == Blocks(3, 0.9, ["c"])
    assert lines.due(200.0) is None, "nothing blocked since"
    lines.add(0.5, [])
    assert lines.due(200.0) == Blocks(1, 0.5, [])


async def test_a_loop_that_waits_is_not_blocked(lines: io.StringIO) -> None:
    watchdog = LoopWatchdog(threshold_s=5.0, interval_s=0.005)
    watchdog.start()
    try:
        for _ in range(20):
            await asyncio.sleep(0.005)
    finally:
        watchdog.stop()

    assert watchdog.stats.blocks == 0
    assert lines.getvalue() == ""


async def test_stopping_during_a_block_does_not_hang_and_reports_nothing(lines: io.StringIO) -> None:
    watchdog = LoopWatchdog(threshold_s=0.02, interval_s=0.005)
    watchdog.start()
    the_culprit()
    watchdog.stop()

    assert watchdog.stats.blocks <= 1
    assert len(lines.getvalue().splitlines()) <= 1


def test_a_loop_that_was_closed_ends_the_watch() -> None:
    watchdog = LoopWatchdog(threshold_s=0.05, interval_s=0.005)

    async def start() -> None:
        watchdog.start()

    asyncio.run(start())
    thread = watchdog._thread
    assert thread is not None
    thread.join(timeout=5)
    assert not thread.is_alive()
