"""Whether a client that seems to be silent is: before a port ends a connection for its silence, it asks here if the
port itself was late.

Lives on the event loop. Cost: a system call for a socket, a reading of the clock for a timer.
"""

from __future__ import annotations

import select
from collections.abc import Callable


def has_unread(fd: int) -> bool:
    """Whether something lies in this socket that the loop has not read yet: bytes, or the end."""
    return _is(fd, select.POLLIN)


def is_left(fd: int) -> bool:
    """Whether the other side sends nothing more, where no read tells."""
    return _is(fd, select.POLLRDHUP)


def _is(fd: int, event: int) -> bool:
    if fd < 0:  # closed, which its owner is about to hear
        return False
    poll = select.poll()
    poll.register(fd, event)
    return bool(poll.poll(0))


class TimedChecks:
    """The checks of all clients by one timer. One that comes late by a whole period spares them all: the loop was
    blocked, and what they sent may be unread. The next one does not, so that a loop that is always slow still ends
    those that are silent."""

    def __init__(self, clock_s: Callable[[], float], period_s: float) -> None:
        self._clock_s = clock_s
        self._period_s = period_s
        self._due_s = clock_s() + period_s
        self._has_spared = False

    def is_late(self) -> bool:
        """Ask once in each check."""
        now_s = self._clock_s()
        self._has_spared = not self._has_spared and now_s - self._due_s > self._period_s
        self._due_s = now_s + self._period_s
        return self._has_spared
