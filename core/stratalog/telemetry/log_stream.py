"""Where log lines go: a stream whose failures reach nobody who logs.

The disk under it may be full, or the reader of a pipe gone. A line that cannot be written is dropped and counted, and
the next line that can be written tells the count. Without this, a failed write would end whatever task had something
to say, and all who wait for that task would wait for ever.

Thread: any; a line is one write.
"""

from __future__ import annotations

from typing import ClassVar, TextIO


class LogStream:
    """Takes the place of a text stream."""

    lost_lines: ClassVar[int] = 0
    """Of all streams of the process: lines that could not be written."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self.untold = 0
        """Lines lost since the last one that was written: the next one says so."""

    def write(self, text: str) -> int:
        try:
            self._out.write(text)
            self._out.flush()
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
