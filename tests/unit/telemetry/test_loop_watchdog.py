"""The watchdog sees a loop that is really blocked, and where (F90)."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Iterator

import pytest

from stratalog.telemetry.logs import configure_logs
from stratalog.telemetry.watchdog import LoopWatchdog
from support.waiting import eventually


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    configure_logs("info", stream=stream)
    yield stream
    configure_logs("info")


def the_culprit() -> None:
    time.sleep(0.3)


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
    assert line["blocked_ms"] >= 275
    assert watchdog.stats.blocked.count == 1


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def test_a_report_goes_to_a_terminal_too_and_the_watch_goes_on() -> None:
    """structlog's coloured lines take `stack` for a text: with a list there the watchdog's thread died."""
    screen = _Terminal()
    configure_logs("info", stream=screen)
    watchdog = LoopWatchdog(threshold_s=0.05, interval_s=0.01)
    watchdog.start()
    try:
        for expected in (1, 2):
            the_culprit()
            await eventually(lambda expected=expected: screen.getvalue().count("event loop was blocked") == expected)
    finally:
        watchdog.stop()
        configure_logs("info")

    assert "in the_culprit" in screen.getvalue()


async def test_one_block_is_one_line_and_each_block_has_one(lines: io.StringIO) -> None:
    watchdog = LoopWatchdog(threshold_s=0.05, interval_s=0.01)
    watchdog.start()
    try:
        for expected in (1, 2):
            the_culprit()
            await eventually(lambda expected=expected: watchdog.stats.blocks == expected)
    finally:
        watchdog.stop()

    assert len(lines.getvalue().splitlines()) == 2


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
