"""Begins the write-back of what was appended to a segment's file, long before a caller waits for its flush.

The kernel would begin when memory is a tenth full of dirty pages, or after half a minute. A roll is reported, and what
follows it acknowledged, only once the ended segment is on the disk: with all of it still in memory, producers waited
until the disk had taken whole segments (docs/decisions/0016-memory-and-waits-beside-uploads.md).

This promises nothing: it does not flush, and does not report how a write went. The next flush gets the error of a
failed write, because a call that does not wait does not consume the descriptor's error.
"""

from __future__ import annotations

import ctypes
import os
import sys
from threading import BoundedSemaphore

from stratalog.model.errors import StratalogError
from stratalog_node.disk.files import SegmentFile
from stratalog_node.disk.threads import DiskThreads

_WRITE = 2  # SYNC_FILE_RANGE_WRITE: begin, and wait for nothing
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None) if sys.platform == "linux" else None
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


MOST_WAITING = 16
"""Files at a time: each stays open until its turn has come. The others try again with their next append."""


class WriteBehind:
    """Hand `begin` to `Descriptors`. On the event loop; at most one call a file is under way."""

    def __init__(self, threads: DiskThreads) -> None:
        self._threads = threads
        self._room = BoundedSemaphore(MOST_WAITING)

    def begin(self, file: SegmentFile) -> None:
        """Begin to write back what was appended since the last time, except for a page that is not full yet. Never
        raises: it is called in the middle of an append."""
        if not self._room.acquire(blocking=False):
            return
        file.is_written_behind = True
        try:
            self._threads.write_behind(file, lambda: self._begin(file))
        except RuntimeError:  # no more threads, for the node stops and flushes all; or no loop: the next append tries
            file.is_written_behind = False
            self._room.release()

    def _begin(self, file: SegmentFile) -> None:
        try:
            _begin(file)
        finally:
            self._room.release()


def _begin(file: SegmentFile) -> None:
    """Blocking while the disk's queue is full."""
    begin, end = file.written_behind_bytes, file.size_bytes - file.size_bytes % _PAGE_BYTES
    try:
        if end > begin:
            with file.descriptor() as fd:
                start_write_back(fd, begin, end - begin)
    except StratalogError:
        pass  # gone, or nothing can be opened: whoever flushes it says so
    finally:
        file.written_behind_bytes = max(begin, end)
        file.is_written_behind = False


def start_write_back(fd: int, position: int, size_bytes: int) -> None:
    """If a system has no such call, or refuses it, the kernel writes back in its own time.

    Source: sync_file_range(2).
    """
    if _sync_file_range is not None:
        _sync_file_range(fd, position, size_bytes, _WRITE)
