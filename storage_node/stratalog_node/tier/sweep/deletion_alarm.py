"""Rings when the grace of deletions is over: one timer for all of them, however many there are.

Lives on the event loop. Deletions that lie close together ring once, at the last one's time: never before a grace is
over, and at most a sixteenth of it late.
Cost: O(1) per deletion; memory for 16 rings.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

_RINGS_PER_GRACE: Final = 16


class DeletionAlarm:
    """`ring` is called on the loop, once per group of deletions."""

    def __init__(self, grace_s: float, ring: Callable[[], None]) -> None:
        self._grace_s = grace_s
        self._ring = ring
        self._begun: deque[float] = deque()
        """When the first deletion of each ring was told; at most `_RINGS_PER_GRACE` and one of them are ahead."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def deleted(self) -> None:
        """Something was deleted now."""
        if self._is_closed:
            return
        now = asyncio.get_running_loop().time()
        if not self._begun or now - self._begun[-1] >= self._grain_s:
            self._begun.append(now)
        if self._timer is None:
            self._arm()

    def close(self) -> None:
        self._is_closed = True
        self._begun.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def _grain_s(self) -> float:
        return self._grace_s / _RINGS_PER_GRACE

    def _arm(self) -> None:
        due = self._begun[0] + self._grain_s + self._grace_s
        self._timer = asyncio.get_running_loop().call_at(due, self._rung)

    def _rung(self) -> None:
        self._timer = None
        self._begun.popleft()
        if self._begun:
            self._arm()
        self._ring()
