"""Times out produce requests that were not answered within their turn.

All share one timer of the loop, because most are answered long before: a request joins those that are due in the same
tenth of a second, and leaves them once it is answered. Lives on the event loop.
Cost: two dictionary operations a request. Memory: that of the waiting requests, and of a few hundred empty groups.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeAlias

_STEPS_PER_S = 10
_EMPTY_LINES = 512
"""So many may be kept, or as many as there are others: clients choose their patience, and a month has 26 million
steps."""


class Expirable(Protocol):
    def expire(self) -> None:
        """The timeout has passed, and the request was removed from its group."""
        ...


Line: TypeAlias = dict[Expirable, None]
"""Requests that are due together. An answered one removes itself."""


class ProduceTimeouts:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lines: dict[int, Line] = {}
        """By the number of the step in which they are due."""
        self._most_lines = _EMPTY_LINES
        """With more of them those that are empty go."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_step = 0

    def add(self, request: Expirable, timeout_ms: int) -> Line:
        """Returns the line that it waits in: it expires at most a tenth of a second late."""
        step = int((self._loop.time() + max(timeout_ms, 0) / 1000) * _STEPS_PER_S) + 1
        line = self._lines.get(step)
        if line is None:
            if len(self._lines) >= self._most_lines:
                self._drop_empty_lines()
            line = self._lines[step] = {}
            if self._timer is None or step < self._timer_step:
                self._arm(step)
        line[request] = None
        return line

    def _drop_empty_lines(self) -> None:
        self._lines = {step: line for step, line in self._lines.items() if line}
        self._most_lines = 2 * len(self._lines) + _EMPTY_LINES

    def _arm(self, step: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_step = step
        self._timer = self._loop.call_at(step / _STEPS_PER_S, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time() * _STEPS_PER_S
        try:
            for step in sorted(step for step in self._lines if step <= now):
                line = self._lines.get(step)
                while line:
                    line.popitem()[0].expire()
                self._lines.pop(step, None)
        finally:  # one's fault must not leave all others waiting (F48)
            if self._lines:
                self._arm(min(self._lines))
