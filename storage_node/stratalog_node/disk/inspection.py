"""Reads data files for people who look at them: `verify`, `dump`, `doctor`. Never writes, never locks.

Blocking; for disk threads and for the command line. Memory: one window at a time.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stratalog.model.errors import Corrupt, NotFound, Unavailable
from stratalog_node.disk.durable_files import read_exactly

WINDOW_BYTES = 4 << 20


class InspectedFile:
    """An open file of a known size; what is appended beyond that later is not seen, what fills its room ahead is."""

    __slots__ = ("_fd", "name", "size_bytes")

    def __init__(self, fd: int, name: str) -> None:
        self._fd = fd
        self.name = name
        self.size_bytes = os.fstat(fd).st_size

    def read(self, position: int, size_bytes: int) -> bytes:
        """At most `size_bytes`, fewer only at the end of the file. Raises: Corrupt, Unavailable."""
        return read_exactly(self._fd, position, max(0, min(size_bytes, self.size_bytes - position)), self.name)

    def notice_cut(self) -> None:
        """A node that seals the file cuts its room ahead."""
        self.size_bytes = min(self.size_bytes, os.fstat(self._fd).st_size)

    def windows(self, start: int, end: int | None = None) -> Iterator[bytes]:
        """The bytes of `[start, end)` in pieces of at most WINDOW_BYTES."""
        stop = self.size_bytes if end is None else min(end, self.size_bytes)
        for position in range(start, stop, WINDOW_BYTES):
            yield self.read(position, min(WINDOW_BYTES, stop - position))

    def holds_only_zeros_from(self, position: int) -> bool:
        """Whether all of the file from there on is room ahead (docs/formats.md, 3). Raises: Corrupt, Unavailable."""
        while position < self.size_bytes:
            held = self._next_data(position)
            if held is None:
                return True
            position, end = held, min(held + WINDOW_BYTES, self.size_bytes)
            if self.read(position, end - position).strip(b"\0"):
                return False
            position = end
        return True

    def _next_data(self, position: int) -> int | None:
        """The next position with data from `position` on, as far as the file system knows; None if only a hole is left:
        gigabytes that were never written need not be read."""
        try:
            return os.lseek(self._fd, position, os.SEEK_DATA)
        except OSError as error:
            return None if error.errno == errno.ENXIO else position


@contextmanager
def inspect_file(path: Path) -> Iterator[InspectedFile]:
    """Raises: NotFound, Unavailable."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotFound(f"{path}: no such file") from None
    except OSError as error:
        raise Unavailable(f"{path}: cannot be opened: {error.strerror}; check its owner and the volume") from None
    try:
        yield InspectedFile(fd, str(path))
    finally:
        os.close(fd)


def read_small_file(path: Path, limit_bytes: int = 64 << 20) -> bytes:
    """A whole file that is not meant to be large. Raises: NotFound, Unavailable, Corrupt when it is larger."""
    with inspect_file(path) as file:
        if file.size_bytes > limit_bytes:
            raise Corrupt(
                f"is {file.size_bytes} bytes long, expected at most {limit_bytes}", source=file.name, position=0
            )
        return file.read(0, file.size_bytes)
