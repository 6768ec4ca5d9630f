"""Open descriptors of segment files: limits their number, and decides which ones must stay open.

Linux reports a failed writeback once to each open file description that existed when it happened. A description opened
later gets the report only if no other one has got it yet and the kernel still holds the inode. After that `fdatasync`
succeeds over pages that never reached the disk. So, for every file that this node writes:

1. One owner of the verdict. A file is flushed by several threads (grouped flushes, background flushes, a journal that
retires, the seal) through one description, and the kernel reports the failure to only one of them. `SegmentFile.sync`
admits one at a time, and a failure that one of them gets holds for all, forever (`FlushLost`).
2. A file that holds unflushed bytes keeps its descriptor. The sweep skips it, because the report would be lost with the
descriptor. When too many such files wait, the flusher is asked to flush at once (`on_crowded`). Above a second limit no
further file is opened: appends are refused for a moment rather than a descriptor closed.
3. A later process has none of these descriptors, and reads the page cache, not the disk. So each file whose flush
failed is recorded before the failure is reported, and the next start copies it (`disk/lost_flushes.py`).

Small files (`write_durably`) and journals are created, written and flushed through one descriptor each, and abandoned
when that fails. Names: a failed flush of a directory has stopped the file system's journal, so all later flushes fail,
too. Lives on the event loop; `flush_lost` may be called on any disk thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

from stratalog.model.errors import Unavailable
from stratalog_node.disk.calls import DiskCalls

_LEAST_SPARE = 64
_VAIN_SWEEP_SHARE: Final = 20
_VAIN_SWEEP_PAUSE_NS: Final = 10_000_000


class OpenFile(Protocol):
    """What a sweep must know of a file; told apart by identity."""

    path: Path
    pins: int
    """Threads that are using its descriptor."""
    was_used: bool
    """Since the last sweep came by, which takes it back."""

    @property
    def must_stay_open(self) -> bool:
        """Whether news of a failed writeback would go with its descriptor."""

    def close(self) -> None: ...


def _ignore_loss(path: Path) -> None:
    """For files that no later process opens."""


class Descriptors:
    """Keeps the number of open descriptors below a limit by closing those not used since the last sweep.

    `flush_lost` is called with each file whose flush failed, before the caller of the flush gets the error;
    `on_crowded` is called when descriptors above the limit wait for a flush. `calls` records how appends end.
    """

    def __init__(
        self,
        limit: int,
        *,
        flush_lost: Callable[[Path], None] = _ignore_loss,
        on_crowded: Callable[[], None] = lambda: None,
        write_behind: Callable[[Any], object] = lambda file: None,
        calls: DiskCalls | None = None,
        steady_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.limit = limit
        self.calls = calls or DiskCalls()
        self.flush_lost = flush_lost
        self._on_crowded = on_crowded
        self.write_behind = write_behind
        """Called with a file when much was appended to it since its last write-back began."""
        self.most = limit + max(limit // 4, _LEAST_SPARE)
        """So many are open at most, those included that wait for a flush."""
        self.lost: dict[Path, str] = {}
        """Files with a failed flush in this process, and the reason: whatever opens them again must know."""
        self._sweep_above = limit
        self._open: dict[OpenFile, None] = {}
        self._steady_ns = steady_ns
        self._vain_until_ns = 0
        """Until then the search for files that may close is not repeated: the last one found none."""

    def note_lost(self, path: Path, reason: str) -> None:
        """On any thread."""
        self.lost[path] = reason
        self.flush_lost(path)

    @property
    def open_count(self) -> int:
        return len(self._open)

    def check_room(self) -> None:
        """Before one more is opened. Raises: Unavailable."""
        if len(self._open) >= self.most:
            self._make_room()
        if len(self._open) >= self.most:
            raise Unavailable(
                f"{len(self._open)} segment files are open and wait for their flush: try again, or let the process "
                "open more files"
            )

    def _make_room(self) -> None:
        """Thousands of shards may ask in one turn of the loop, again and again while their files wait for a flush:
        vain looks at all of them take at most a twentieth of the time."""
        began_ns = self._steady_ns()
        if began_ns < self._vain_until_ns:
            return
        self._sweep()
        self._sweep()  # now also those that were in use when the first one came by
        if len(self._open) >= self.most:
            now_ns = self._steady_ns()
            self._vain_until_ns = now_ns + max(_VAIN_SWEEP_SHARE * (now_ns - began_ns), _VAIN_SWEEP_PAUSE_NS)

    def opened(self, file: OpenFile) -> None:
        self._open[file] = None
        if len(self._open) > self._sweep_above:
            self._sweep()

    def made(self, file: OpenFile) -> None:
        """Opened, and new: what befell a file that was in its place is over."""
        self.lost.pop(file.path, None)
        self.opened(file)

    def closed(self, file: OpenFile) -> None:
        self._open.pop(file, None)

    def close(self) -> None:
        """Close all of them. Requires: no thread and no connection still uses one."""
        for file in list(self._open):
            file.close()

    def _sweep(self) -> None:
        waiting = 0
        for file in list(self._open):
            if len(self._open) <= self.limit * 3 // 4:
                break
            if file.was_used:
                file.was_used = False
                self._open.pop(file)
                self._open[file] = None
            elif file.must_stay_open:
                waiting += 1
            elif file.pins == 0:
                file.close()
        if waiting and len(self._open) > self.limit:
            self._on_crowded()
        # A sweep that could close little is not worth repeating for each file that follows.
        self._sweep_above = max(self.limit, len(self._open) + self.limit // 16)
