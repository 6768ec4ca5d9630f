"""Notices that something blocks the event loop, and says where (F90).

A thread asks the loop for a sign of life every `interval_s`. No sign within the threshold: it takes the stack of the
loop's thread while the culprit is still on it, waits for the loop to come back, and reports the stack and how long it
took. A step that blocks for the threshold or longer is always noticed; one that is shorter by less than the interval
may be.

The first block is a line at once. What follows within `period_s` is one line at the end of that time, with the number
of blocks, and the stack of the worst: a busy machine blocks every loop ten times a second. The metrics count each.

Cost: 40 wake-ups a second, about 0.2 % of a core. Thread: `start` and `stop` on the loop; its own thread otherwise.
"""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from types import FrameType

from stratalog.telemetry.histogram import Histogram
from stratalog.telemetry.logs import logger
from stratalog.telemetry.metrics import counter, histogram

THRESHOLD_S = 0.1
INTERVAL_S = 0.025
PERIOD_S = 10.0

_OWN_LIBRARIES = ("/asyncio/", "/uvloop/", "/threading.py", "/selectors.py")


@dataclass(slots=True)
class WatchdogStats:
    blocks: int = counter("Times the event loop was blocked longer than the threshold.")
    blocked: Histogram = field(
        default_factory=Histogram,
        metadata=histogram("How long the event loop was blocked, blocks above the threshold only."),
    )


@dataclass(frozen=True, slots=True)
class Blocks:
    """What one log line reports: blocks since the last line."""

    count: int
    worst_s: float
    stack: list[str]
    """Of the worst; empty where it was not seen."""


class BlockLines:
    """Gathers blocks so that no more than one line comes in `period_s`."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._quiet_until_s = -math.inf
        self._gathered: Blocks | None = None

    def add(self, blocked_s: float, stack: list[str]) -> None:
        before = self._gathered or Blocks(0, -1.0, [])
        worst = (blocked_s, stack) if blocked_s > before.worst_s else (before.worst_s, before.stack)
        self._gathered = Blocks(before.count + 1, *worst)

    def due(self, now_s: float) -> Blocks | None:
        """What is to be written now; it counts as written."""
        if self._gathered is None or now_s < self._quiet_until_s:
            return None
        self._quiet_until_s = now_s + self._period_s
        return self.remaining()

    def remaining(self) -> Blocks | None:
        """What no line has told, whenever the last one was."""
        gathered, self._gathered = self._gathered, None
        return gathered


class LoopWatchdog:
    def __init__(
        self, *, threshold_s: float = THRESHOLD_S, interval_s: float = INTERVAL_S, period_s: float = PERIOD_S
    ) -> None:
        assert interval_s < threshold_s, "the watchdog must look more often than the threshold it guards"
        self.stats = WatchdogStats()
        self._threshold_s = threshold_s
        self._interval_s = interval_s
        self._alive = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread_id = 0
        self._lines = BlockLines(period_s)
        self._log = logger(__name__)

    def start(self) -> None:
        """Watch the running loop; called on it."""
        assert self._thread is None, "the watchdog is already running"
        self._loop = asyncio.get_running_loop()
        self._loop_thread_id = threading.get_ident()
        self._thread = threading.Thread(target=self._watch, name="loop-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns within one interval; a block that is being timed is no longer reported, those before it are."""
        self._stopping.set()
        self._alive.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=1.0)
        self._write(self._lines.remaining())

    def _watch(self) -> None:
        loop = self._loop
        assert loop is not None
        patience_s = self._threshold_s - self._interval_s
        while not self._stopping.wait(self._interval_s):
            self._write(self._lines.due(time.monotonic()))
            self._alive.clear()
            asked = time.monotonic()
            try:
                loop.call_soon_threadsafe(self._alive.set)
            except RuntimeError:  # the loop is closed: nothing left to watch
                return
            if self._alive.wait(patience_s):
                # The report is late anyway: the same block also kept this thread from running.
                self._note_if_long(time.monotonic() - asked, [])
                continue
            frame = sys._current_frames().get(self._loop_thread_id)
            stack = _stack_of(frame)
            del frame
            while not self._alive.wait(1.0):
                if self._stopping.is_set():
                    return
            if not self._stopping.is_set():
                self._note_if_long(time.monotonic() - asked, stack)

    def _note_if_long(self, waited_s: float, stack: list[str]) -> None:
        blocked_s = waited_s + self._interval_s
        if blocked_s < self._threshold_s:
            return
        self.stats.blocks += 1
        self.stats.blocked.observe(int(blocked_s * 1e6))
        self._lines.add(blocked_s, stack)

    def _write(self, blocks: Blocks | None) -> None:
        if blocks is None:
            return
        self._log.warning(
            "event loop was blocked",
            blocks=blocks.count,
            worst_ms=int(blocks.worst_s * 1000),
            threshold_ms=int(self._threshold_s * 1000),
            where=blocks.stack[-1] if blocks.stack else "not seen: a call held the interpreter lock",
            frames=blocks.stack,
        )


def _stack_of(frame: FrameType | None) -> list[str]:
    """The frames of a thread, outermost first, without the loop's own ones."""
    if frame is None:
        return []
    lines = []
    for entry in traceback.extract_stack(frame):
        if any(part in entry.filename for part in _OWN_LIBRARIES):
            continue
        lines.append(f"{entry.filename}:{entry.lineno} in {entry.name}: {entry.line or ''}".rstrip(": "))
    return lines
