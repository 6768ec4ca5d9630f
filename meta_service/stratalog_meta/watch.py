"""The last change sets, and the watchers that wait for the next one. Watchers pull: each holds a version and no queue,
so a slow watcher costs nothing. A watcher that falls behind the kept sets must take a new snapshot.

Change sets that become durable together reach watchers as one set, up to `CHANGES_TOGETHER` changes. When a node dies,
the nodes that stay send thousands of small commands, and each change set would cost every watcher a line to read.

Lives on the event loop. Memory: at most `max_changes` changes (and the newest set, however large).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

from stratalog.model.errors import NotFound, Unavailable
from stratalog.model.metadata import Change, ChangeSet
from stratalog_meta.stats import MetaStats

MAX_CHANGES = 16_384
SETS_BEFORE_OTHERS = 64
CHANGES_TOGETHER: Final = 256
"""In one set that several commands made: one line of a watch holds them (`meta_api.watch_lines.RECORDS_PER_LINE`)."""


class ChangeHistory:
    """Invariant: `_sets` has the versions `_first_version .. _version`. The versions that reach watchers together have
    the same set, under the last of them. A watcher whose version lies inside such a set gets the changes after that
    version alone: its state never goes back."""

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
        self._sets: dict[int, tuple[ChangeSet, int]] = {one.version: (one, 0) for one in sets}
        """For each version the set that has it, and the place of its first change there."""
        self._change_count = sum(len(one.changes) for one in sets)

    @property
    def version(self) -> int:
        """Of the newest change set."""
        return self._version

    def publish(self, change_sets: Sequence[ChangeSet]) -> None:
        """Sets that became durable together, oldest first."""
        for together, starts in _merged(change_sets):
            for version, start in enumerate(starts, self._version + 1):
                self._sets[version] = together, start
            self._version = self._stats.version = together.version
            self._stats.changes += len(together.changes)
            self._change_count += len(together.changes)
        while self._change_count > self._max_changes:
            oldest, _ = self._sets[self._first_version]
            if oldest.version == self._version:
                break
            for version in range(self._first_version, oldest.version + 1):
                del self._sets[version]
            self._first_version = oldest.version + 1
            self._change_count -= len(oldest.changes)
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
        given = 0
        while True:
            if after_version + 1 < self._first_version:
                self._stats.watches_lagged += 1
                raise NotFound(
                    f"changes after version {after_version} are not kept any more, only those from "
                    f"{self._first_version} on: "
                    "take a new snapshot"
                )
            found = self._sets.get(after_version + 1)
            if found is not None:
                change_set, start = found
                if start:
                    change_set = ChangeSet(change_set.version, change_set.changes[start:])
                after_version = change_set.version
                given += 1
                if given % SETS_BEFORE_OTHERS == 0:
                    await asyncio.sleep(0)  # a long history must not hold the loop
                yield change_set
            elif self._closed:
                raise Unavailable("the meta service stops: watch another instance, or this one when it is back")
            else:
                await self._moved.wait()

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()


def _merged(change_sets: Sequence[ChangeSet]) -> Iterator[tuple[ChangeSet, list[int]]]:
    """The same changes in as few sets as `CHANGES_TOGETHER` allows; a larger set stays as it is. With each set: where
    the changes of each of its versions start."""
    changes: list[Change] = []
    starts: list[int] = []
    version = None
    for one in change_sets:
        assert version is None or one.version == version + 1, "versions follow one another"
        if version is not None and len(changes) + len(one.changes) > CHANGES_TOGETHER:
            yield ChangeSet(version, tuple(changes)), starts
            changes, starts = [], []
        starts.append(len(changes))
        changes += one.changes
        version = one.version
    if version is not None:
        yield ChangeSet(version, tuple(changes)), starts
