"""What a node asks of its disk: calls in progress, and how the last ones ended. The evidence for `DiskHealth`.

The disk threads of a node belong to its `DiskCalls` (`DiskThreads` sees to it), so a caller that writes or flushes
names only the path: `disk_call`. Threads that belong to no node are not watched. The event loop counts its own writes.
Any thread may call; `DiskCalls` is read on the event loop.
Cost: about a microsecond for each flush, a counter for each append.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from stratalog.machines.leading.disk_health import CallInProgress, DiskCall, DiskHealth
from stratalog.model.errors import DiskFull, StratalogError, Unavailable


def steady_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class _Ended:
    """Calls of one kind that ended since they were last looked at."""

    __slots__ = ("has_succeeded", "reason")

    def __init__(self) -> None:
        self.has_succeeded = False
        self.reason: str | None = None
        """Why the last one failed; None: it succeeded, or there was none."""


class DiskCalls:
    def __init__(self, clock_ms: Callable[[], int] = steady_ms) -> None:
        self.clock_ms = clock_ms
        self._in_progress: dict[int, CallInProgress] = {}
        """By the thread that waits for it."""
        self._ended = {kind: _Ended() for kind in DiskCall}
        self._unwritable: dict[Path, int] = {}
        """Files to which no append has succeeded since one failed for another reason than room, and since when."""
        self._unwatched: tuple[str, ...] = ()

    def leave_out(self, root: Path) -> None:
        """What is asked of this directory says nothing of the node's first disk. Before any thread calls."""
        self._unwatched += (f"{root}/",)

    def is_left_out(self, path: Path) -> bool:
        return bool(self._unwatched) and str(path).startswith(self._unwatched)

    @contextmanager
    def call(self, kind: DiskCall, path: Path) -> Iterator[None]:
        """One call that blocks this thread; or one in the middle of another, as where a copy is written piece by piece.
        OSError, Unavailable: it failed."""
        thread = threading.get_ident()
        around = self._in_progress.get(thread)
        self._in_progress[thread] = CallInProgress(kind, str(path), self.clock_ms())
        try:
            yield
        except OSError as error:
            self.failed(kind, f"{path}: {error.strerror}")
            raise
        except Unavailable as error:
            self.failed(kind, str(error))
            raise
        else:
            self.succeeded(kind)
        finally:
            if around is None:
                del self._in_progress[thread]
            else:
                self._in_progress[thread] = around

    def succeeded(self, kind: DiskCall) -> None:
        ended = self._ended[kind]
        ended.has_succeeded, ended.reason = True, None

    def failed(self, kind: DiskCall, reason: str) -> None:
        self._ended[kind].reason = reason

    # Appends of the event loop --------------------------------------------------------------------------------------
    def appended(self, path: Path) -> None:
        self.succeeded(DiskCall.WRITE)
        if self._unwritable:
            self._unwritable.pop(path, None)

    def append_failed(self, path: Path, error: StratalogError) -> None:
        self.failed(DiskCall.WRITE, str(error))
        if not isinstance(error, DiskFull):
            self._unwritable.setdefault(path, self.clock_ms())

    def unwritable(self, for_ms: int) -> list[Path]:
        """Files to which all writes have failed for `for_ms`, although others on this disk may succeed."""
        since_ms = self.clock_ms() - for_ms
        return [path for path, failed_ms in self._unwritable.items() if failed_ms <= since_ms]

    def forget(self, path: Path) -> None:
        """Nothing more is appended there."""
        self._unwritable.pop(path, None)

    # What is known --------------------------------------------------------------------------------------------------
    def oldest(self, *kinds: DiskCall) -> CallInProgress | None:
        """The call of these kinds in progress that began first."""
        calls = [call for call in list(self._in_progress.values()) if call.kind in kinds]
        return min(calls, key=lambda call: call.since_ms, default=None)

    def report_to(self, health: DiskHealth, now_ms: int) -> None:
        """What ended since the last report."""
        for kind in DiskCall:
            ended, self._ended[kind] = self._ended[kind], _Ended()
            if ended.has_succeeded:
                health.succeeded(kind, now_ms)
            if ended.reason is not None:
                health.failed(kind, ended.reason, now_ms)


class _OfThread(threading.local):
    calls: DiskCalls | None = None


_of_thread: Final = _OfThread()


def watch_this_thread(calls: DiskCalls) -> None:
    """From now on `disk_call` in this thread counts there."""
    _of_thread.calls = calls


@contextmanager
def disk_call(kind: DiskCall, path: Path) -> Iterator[None]:
    """Around one write, flush or read."""
    calls = _of_thread.calls
    if calls is None or calls.is_left_out(path):
        yield
        return
    with calls.call(kind, path):
        yield
