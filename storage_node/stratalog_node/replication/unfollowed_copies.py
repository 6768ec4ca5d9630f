"""Removes copies that are no longer followed: fences and checkpoints in groups, files in short steps.

When a topic of a thousand shards is deleted, all its copies are removed at once. If each removal waited its turn on the
disk threads, the first batch of another topic, or a promise that a new leader needs, would wait behind them for
seconds. Lives on the event loop. Invariant: a removal stays listed until it is done, and a copy's file goes after its
fence and checkpoint. Requires: a node that follows a segment again calls `settle` first, or the removal takes the new
copy.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence

from stratalog.model.errors import StratalogError
from stratalog.model.ids import SegmentKey
from stratalog.telemetry.logs import logger
from stratalog_node.disk.checkpoints import Checkpoints
from stratalog_node.disk.fences import FenceBook
from stratalog_node.replication.replica_copy import ReplicaCopy

log = logger(__name__)

FORGOTTEN_AT_ONCE = 512
_GATHER_S = 1.0
"""Between two rewrites of the list of fences: after a node died, thousands of segments are sealed one by one."""
_HELD_S = 0.02
"""So long files are removed before others may have the disk; one that takes longer is removed whole."""


class UnfollowedCopies:
    def __init__(
        self,
        on_disk: Callable[[Callable[[], object]], Awaitable[object]],
        on_disk_at_once: Callable[[Callable[[], object]], Awaitable[object]],
        start: Callable[[Coroutine[object, object, None]], None],
        fences: FenceBook,
        checkpoints: Checkpoints,
        gather: Callable[[], Awaitable[object]] = lambda: asyncio.sleep(_GATHER_S),
    ) -> None:
        """`on_disk` runs one thing at a time for all copies; `on_disk_at_once` does the same, ahead of work that no
        client waits for. `gather` returns when what came meanwhile may be forgotten, with one write."""
        self._on_disk = on_disk
        self._on_disk_at_once = on_disk_at_once
        self._start = start
        self._fences = fences
        self._checkpoints = checkpoints
        self._gather = gather
        self._known: dict[SegmentKey, None] = {}
        self._files: dict[SegmentKey, ReplicaCopy] = {}
        self._is_at_work = False
        self._one_at_a_time = threading.Lock()
        """A thread whose caller was cancelled continues."""

    def forget(self, key: SegmentKey) -> None:
        """Its fence and its checkpoint. Its file stays."""
        self._known[key] = None
        self._begin()

    def remove(self, copy: ReplicaCopy) -> None:
        """Remove its file. Requires: the copy is no longer followed."""
        self._files[copy.key] = copy
        self._begin()

    async def settle(self, key: SegmentKey) -> None:
        """Returns once nothing is due for this segment."""
        if key in self._known or key in self._files:
            await self._on_disk_at_once(lambda: self._settle(key))

    async def close(self) -> None:
        """Forget what is due; no later life would. Requires: what was started has ended, or was cancelled: a disk
        thread may still be at it."""
        if self._known:
            await self._on_disk(self._forget_all)

    def _begin(self) -> None:
        if not self._is_at_work:
            self._is_at_work = True
            self._start(self._work())

    async def _work(self) -> None:
        try:
            while self._known or self._files:
                await self._on_disk(self._take_some)
                if not self._files and len(self._known) < FORGOTTEN_AT_ONCE:
                    await self._gather()
        finally:
            self._is_at_work = False

    # On a disk thread, one at a time; additions to the lists come from the event loop ---------------------------------
    def _take_some(self) -> None:
        with self._one_at_a_time:
            self._forget(list(self._known)[:FORGOTTEN_AT_ONCE])
            until_s = time.monotonic() + _HELD_S
            for key in list(self._files):
                if key in self._known or time.monotonic() >= until_s:
                    break
                self._remove(key)

    def _settle(self, key: SegmentKey) -> None:
        with self._one_at_a_time:
            if key in self._known:
                self._forget([key])
            if key in self._files:
                self._remove(key)

    def _forget_all(self) -> None:
        with self._one_at_a_time:
            self._forget(list(self._known))

    def _forget(self, keys: Sequence[SegmentKey]) -> None:
        try:
            if keys:
                self._fences.forget(keys)
                self._checkpoints.delete(keys)
        except StratalogError as error:
            log.warning(
                "promises and checkpoints of segments that are not followed any more could not be deleted",
                segments=len(keys),
                error=str(error),
            )
        finally:
            for key in keys:
                del self._known[key]

    def _remove(self, key: SegmentKey) -> None:
        try:
            self._files[key].remove()
        except (StratalogError, OSError) as error:
            log.warning("the file of a copy that is not used any more stays", segment=str(key), error=str(error))
        finally:
            del self._files[key]
