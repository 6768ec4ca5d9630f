"""Where lines of the audit log go: standard error, or a file of bounded size beside a bounded number of earlier ones.

`FILE` is the newest, `FILE.1` the one before it, and so on. A file is renamed once the next line would exceed its
size; the oldest is deleted. The file is locked, because two processes that rename the same files lose lines. A line is
one write; what a failed write left of a line is ended before the next one. Nothing is flushed to the disk: a crash of
the process loses nothing that was written, one of the machine may.

Thread: the one of the audit log. Blocking.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Final, Protocol, TextIO

from stratalog.telemetry.log_stream import LogStream
from stratalog.telemetry.logs import logger

_MODE: Final = 0o640

log = logger(__name__)


class AuditSink(Protocol):
    def write(self, line: str) -> None:
        """Raises: OSError, with the line not written."""
        ...

    def close(self) -> None: ...


class AuditStream:
    """Standard error, between the lines of the log. Its reader may stall. A person at a terminal gets text."""

    def __init__(self, out: TextIO) -> None:
        self._out = LogStream(out)
        self._is_terminal = self._out.isatty()

    def write(self, line: str) -> None:
        if self._is_terminal:
            said = json.loads(line)
            log.info("audit", **{name: said[name] for name in said.keys() - {"time", "level", "event"}})
            return
        self._out.write(line)
        if self._out.untold:
            raise OSError("standard error takes no lines")

    def close(self) -> None:
        """It belongs to the process."""


class AuditFile:
    def __init__(self, path: Path, *, most_bytes: int, most_files: int) -> None:
        """Opened by the first line. `most_files` includes the one that is written."""
        self._path = path
        self._most_bytes = most_bytes
        self._most_files = most_files
        self._descriptor: int | None = None
        self._is_torn = False

    def write(self, line: str) -> None:
        data = line.encode()
        try:
            descriptor = self._opened()
            if os.fstat(descriptor).st_size + len(data) > self._most_bytes:
                descriptor = self._rotated(descriptor)
            self._put(descriptor, data)
        except OSError:
            self.close()  # the next line opens it again: another file may be there by then
            raise

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _opened(self) -> int:
        """The file that has the name: an administrator may have moved it away."""
        descriptor = self._descriptor
        if descriptor is not None and _is_at(descriptor, self._path):
            return descriptor
        self.close()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)
        self._descriptor = descriptor
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(f"another process writes to {self._path}: give each process its own audit.log.dir") from None
        size = os.fstat(descriptor).st_size
        self._is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        return descriptor

    def _rotated(self, descriptor: int) -> int:
        if os.fstat(descriptor).st_size == 0:
            return descriptor  # a line larger than a file: it has one alone
        for number in range(self._first_free(), 0, -1):
            earlier = self._path if number == 1 else self._numbered(number - 1)
            os.replace(earlier, self._numbered(number))
        if self._most_files == 1:
            self._path.unlink(missing_ok=True)
        for number in range(self._most_files, self._most_files + 100):  # of a larger number that was set before
            if not self._numbered(number).exists():
                break
            self._numbered(number).unlink(missing_ok=True)
        self.close()
        return self._opened()

    def _first_free(self) -> int:
        """The number up to which files move by one; the oldest is overwritten only where none is free. A rotation that
        failed leaves one free, so that however often it is tried again no further file is lost."""
        last = self._most_files - 1
        return next((number for number in range(1, last) if not self._numbered(number).exists()), last)

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _put(self, descriptor: int, data: bytes) -> None:
        if self._is_torn:
            data = b"\n" + data
        done = os.write(descriptor, data)
        self._is_torn = False
        if done < len(data):
            raise OSError(f"{self._path} took {done} of {len(data)} bytes: is its disk full?")


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        named = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), named)
