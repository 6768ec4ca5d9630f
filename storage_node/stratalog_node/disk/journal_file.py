"""The write-ahead file that fsync topics of one disk share: many files' new bytes, one flush.

Bytes are in their segment files already (page cache); the journal holds a second copy until those files are flushed,
which happens once the journal is full and another one has begun. After a crash `replay` writes back what a segment file
lost.
Blocking; used by the flush thread alone. Durability: `write` returns when the entries are on the disk.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from stratalog.formats.disk.journal import (
    JOURNAL_HEADER_BYTES,
    JournalEntry,
    JournalHeader,
    decode_journal_header,
    encode_entry_header,
    encode_journal_header,
    scan_journal,
)
from stratalog.machines.leading.disk_health import DiskCall
from stratalog.model.errors import Corrupt, DiskFull, StratalogError, Unavailable
from stratalog.model.ids import SegmentKey
from stratalog.telemetry.logs import logger
from stratalog_node.disk.calls import disk_call
from stratalog_node.disk.durable_files import read_exactly, sync_directory

log = logger(__name__)

_IOV_MAX = 1024
_SUFFIX = ".journal"


class JournalFile:
    """One journal, open for appending."""

    def __init__(self, directory: Path, header: JournalHeader) -> None:
        self.number = header.number
        self.path = directory / f"{header.number:012d}{_SUFFIX}"
        data = encode_journal_header(header)
        self.size_bytes = len(data)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise self._failure(error) from error
        try:
            if os.write(self._fd, data) != len(data):
                raise OSError(errno.ENOSPC, "short write")
            sync_directory(directory)
        except OSError as error:
            os.close(self._fd)
            raise self._failure(error) from error
        except StratalogError:
            os.close(self._fd)
            raise

    def write(self, entries: Sequence[tuple[SegmentKey, int, bytes]]) -> None:
        """Append entries (segment, position, bytes) and flush. Raises: DiskFull, Unavailable; then nothing of it
        counts."""
        buffers: list[bytes] = []
        for key, position, payload in entries:
            buffers += (encode_entry_header(self.number, key, position, [payload]), payload)
        position = self.size_bytes
        try:
            with disk_call(DiskCall.WRITE, self.path):
                for start in range(0, len(buffers), _IOV_MAX):
                    group = buffers[start : start + _IOV_MAX]
                    wanted = sum(map(len, group))
                    if os.pwritev(self._fd, group, position) != wanted:
                        raise OSError(errno.ENOSPC, "short write")
                    position += wanted
            with disk_call(DiskCall.FLUSH, self.path):
                os.fdatasync(self._fd)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._fd, self.size_bytes)
            raise self._failure(error) from error
        self.size_bytes = position

    def _failure(self, error: OSError) -> DiskFull | Unavailable:
        kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else Unavailable
        return kind(f"{self.path}: journal write failed: {error.strerror}")

    def close(self) -> None:
        """What was written is flushed, or given up: what the kernel says now is not about it."""
        with suppress(OSError):
            os.close(self._fd)


def list_journals(directory: Path) -> list[Path]:
    """Journals left by an earlier life, oldest first."""
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if path.suffix == _SUFFIX and path.stem.isdecimal())


def read_journal(path: Path) -> Iterator[JournalEntry]:
    """Entries that were flushed, in order; stops at the first one that was not."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = read_exactly(fd, 0, os.fstat(fd).st_size, str(path))
    finally:
        os.close(fd)
    try:
        header = decode_journal_header(data, source=str(path))
    except Corrupt as error:
        # A crash while it was being made: nothing was flushed through it.
        log.warning("journal without a whole header", error=str(error))
        return
    scan = scan_journal(memoryview(data)[JOURNAL_HEADER_BYTES:], header.number, source=str(path))
    if scan.reason is not None:
        log.info("journal ends in an entry that was not flushed", reason=scan.reason)
    yield from scan.entries


def remove_journal(path: Path) -> None:
    """Blocking. Raises: Unavailable."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise Unavailable(f"{path}: the journal cannot be removed: {error.strerror}; remove it yourself") from error


def replay(directory: Path, apply: Callable[[JournalEntry], None]) -> int:
    """Give every flushed entry to `apply` (which writes what the segment file lacks); returns how many. The entries of
    one journal come segment by segment, each one's in their order, so that each file needs to be open once."""
    count = 0
    for path in list_journals(directory):
        for entry in sorted(read_journal(path), key=lambda entry: entry.segment):
            apply(entry)
            count += 1
    return count
