"""Produce requests that were not answered within their turn, until their clients' patience ends.

One timer of the loop for all of them, for most are answered long before: a request joins those that are due in the same
tenth of a second, and leaves them once it is answered. Lives on the event loop.
Cost: two dictionary operations a request.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeAlias

_STEPS_PER_S = 10


class Impatient(Protocol):
    def expire(self) -> None:
        """Time is up. It is in no line any more."""
        ...


Line: TypeAlias = dict[Impatient, None]
"""Those that are due together. Who is answered takes itself out."""


class ProduceTimeouts:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lines: dict[int, Line] = {}
        """By the number of the step in which they are due."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_step = 0

    def add(self, request: Impatient, timeout_ms: int) -> Line:
        """Returns the line that it waits in: it expires at most a tenth of a second late."""
        step = int((self._loop.time() + timeout_ms / 1000) * _STEPS_PER_S) + 1
        line = self._lines.get(step)
        if line is None:
            line = self._lines[step] = {}
            if self._timer is None or step < self._timer_step:
                self._arm(step)
        line[request] = None
        return line

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
                line = self._lines[step]
                while line:
                    line.popitem()[0].expire()
                del self._lines[step]
        finally:  # one's fault must not leave all others waiting (F48)
            if self._lines:
                self._arm(min(self._lines))
