"""Where log lines go: a stream whose failures never reach the code that logs.

The disk under it may be full, or the reader of a pipe gone, or slow. A line that cannot be written is dropped and
counted, and the next line that can be written reports the count. Without this, a failed write would end the task that
logs, and everything that waits for that task would wait forever. A reader that stalls would stop all tasks, so a writer
waits for room a moment at most, and no more than a small share of the time.
A line bypasses the buffer of the stream, which would keep a failed line, and write it later, or half of it.

Thread: any; one line is written at a time.
"""

from __future__ import annotations

import os
import select
import threading
import time
from typing import ClassVar, Final, TextIO

_LONGEST_WAIT_S: Final = 0.25
_WAIT_SHARE: Final = 0.05
"""Of the time: what one wait used up comes back at this rate."""
_PIECE_BYTES: Final = 4_096
"""The most bytes that a pipe takes without waiting when it reports room."""


class LogStream:
    """Takes the place of a text stream."""

    lost_lines: ClassVar[int] = 0
    """Of all streams of the process: lines that could not be written."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self.untold = 0
        """Lines lost since the last one that was written: the next one says so."""
        self._lock = threading.RLock()  # what is thrown away while a line is written may have something to say
        self._is_torn = False
        """Of the last line a part was written."""
        self._wait_left_s, self._waited_at_s = _LONGEST_WAIT_S, time.monotonic()

    def write(self, text: str) -> int:
        with self._lock:
            try:
                self._put(text)
            except (OSError, ValueError):  # ValueError: it was closed
                LogStream.lost_lines += 1
                self.untold += 1
            else:
                self.untold = 0
        return len(text)

    def flush(self) -> None:
        """Each line was flushed when it was written."""

    def isatty(self) -> bool:
        return self._out.isatty()

    def _put(self, text: str) -> None:
        """Raises: OSError, ValueError."""
        try:
            descriptor = self._out.fileno()  # of one that was closed the number may be another file's by now
        except OSError:
            self._out.write(text)  # it is in memory
            self._out.flush()
            return
        line = text.encode("utf-8", "backslashreplace")
        data = memoryview(b"\n" + line if self._is_torn else line)
        own = _terminal_that_never_waits(descriptor)
        if own is None:
            self._put_in_pieces(descriptor, data)
            return
        try:
            self._put_in_pieces(own, data)
        finally:
            os.close(own)

    def _put_in_pieces(self, descriptor: int, data: memoryview) -> None:
        done = 0
        try:
            while done < len(data):
                self._wait_for_room(descriptor)
                done += os.write(descriptor, data[done : done + _PIECE_BYTES])
        finally:
            if done:
                self._is_torn = done < len(data)

    def _wait_for_room(self, descriptor: int) -> None:
        """Raises: OSError when there is none in time."""
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        if poll.poll(0):
            return
        now_s = time.monotonic()
        earned_s = _WAIT_SHARE * (now_s - self._waited_at_s)
        self._wait_left_s = min(_LONGEST_WAIT_S, self._wait_left_s + earned_s)
        has_room = bool(poll.poll(self._wait_left_s * 1_000))
        self._waited_at_s = time.monotonic()
        self._wait_left_s = max(0.0, self._wait_left_s - (self._waited_at_s - now_s))
        if not has_room:
            raise BlockingIOError("the reader of the log has stalled")


def _terminal_that_never_waits(descriptor: int) -> int | None:
    """A terminal reports room when it has room for one byte, and a write then waits for the rest. A write through an
    open file of its own never waits, and other processes' open files keep their mode. None: it is not a terminal, or
    cannot be opened here, such as one from outside a container."""
    if not os.isatty(descriptor):
        return None
    try:
        return os.open(os.ttyname(descriptor), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
