"""The last change sets, and the watchers that wait for the next one. Watchers pull: each holds a version and no queue,
so a slow watcher costs nothing. A watcher that falls behind the kept sets must take a new snapshot.

Lives on the event loop. Memory: at most `max_changes` changes (and the newest set, however large).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from stratalog.model.errors import NotFound, Unavailable
from stratalog.model.metadata import ChangeSet
from stratalog_meta.stats import MetaStats

MAX_CHANGES = 16_384
SETS_BEFORE_OTHERS = 64


class ChangeHistory:
    """Invariant: the kept versions are `_first_version .. _version`, one set each."""

    def __init__(
        self,
        version: int,
        max_changes: int = MAX_CHANGES,
        stats: MetaStats | None = None,
        sets: Sequence[ChangeSet] = (),
    ) -> None:
        """`sets` are known from before: up to `version`, without a gap."""
        self._stats = stats or MetaStats()
        self._max_changes = max_changes
        self._moved = asyncio.Event()
        self._closed = False
        self._begin(version, sets)

    def _begin(self, version: int, sets: Sequence[ChangeSet]) -> None:
        assert not sets or sets[-1].version == version, "they reach up to the present"
        self._version = self._stats.version = version
        self._first_version = version + 1 - len(sets)
        self._sets: dict[int, ChangeSet] = {one.version: one for one in sets}
        self._change_count = sum(len(one.changes) for one in sets)

    @property
    def version(self) -> int:
        """Of the newest change set."""
        return self._version

    def publish(self, change_set: ChangeSet) -> None:
        assert change_set.version == self._version + 1, "versions follow one another"
        self._version = change_set.version
        self._stats.version = change_set.version
        self._stats.changes += len(change_set.changes)
        self._sets[change_set.version] = change_set
        self._change_count += len(change_set.changes)
        while self._change_count > self._max_changes and self._first_version < self._version:
            self._change_count -= len(self._sets.pop(self._first_version).changes)
            self._first_version += 1
        self._wake()

    def restart(self, version: int, sets: Sequence[ChangeSet] = ()) -> None:
        """Not all changes up to `version` were published: watchers continue with `sets`; those that are further behind
        need a snapshot."""
        self._begin(version, sets)
        self._wake()

    def close(self) -> None:
        """Watchers get `Unavailable` once they have seen all there is."""
        self._closed = True
        self._wake()

    async def watch(self, after_version: int) -> AsyncIterator[ChangeSet]:
        if after_version > self._version:
            raise NotFound(
                f"version {after_version} is ahead of this service's, {self._version} (its store was put back?): "
                "take a new snapshot"
            )
        while True:
            if after_version + 1 < self._first_version:
                self._stats.watches_lagged += 1
                raise NotFound(
                    f"changes after version {after_version} are not kept any more, only those from "
                    f"{self._first_version} on: "
                    "take a new snapshot"
                )
            change_set = self._sets.get(after_version + 1)
            if change_set is not None:
                after_version = change_set.version
                if after_version % SETS_BEFORE_OTHERS == 0:
                    await asyncio.sleep(0)  # a long history must not hold the loop
                yield change_set
            elif self._closed:
                raise Unavailable("the meta service stops: watch another instance, or this one when it is back")
            else:
                await self._moved.wait()

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()
