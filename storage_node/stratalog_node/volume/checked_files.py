"""The sealed segments in a retired node's directory: each file is checked before its first range is read, and again
when another file is in its place.

The check is remembered with the file's mark: its inode, size and times. Each read compares the mark afterwards, so
bytes of a file that was swapped meanwhile are never returned. A file that is not the sealed one is not checked again
for a minute, unless its mark changes. Few are checked at a time: each check reads headers all over a large file, beside
the reads of checked files.
Files are opened for reading alone, on disk threads. Lives on the event loop.
Limit: a file that is overwritten in place, in the same tick of the file system's clock as the check and to the same
size, has the same mark; its CRCs are still checked.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES, decode_segment_header
from stratalog.formats.segments.digest import EMPTY_DIGEST, extend_digest_past
from stratalog.formats.segments.index_points import IndexPoints
from stratalog.model.errors import Corrupt, NotFound, Unavailable
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import SealRecord
from stratalog_node.disk.descriptors import Descriptors
from stratalog_node.disk.durable_files import read_front
from stratalog_node.disk.files import SegmentFile
from stratalog_node.disk.layout import NodeLayout
from stratalog_node.disk.threads import DiskThreads
from stratalog_node.shards.copies.sealed import SealedCopy
from stratalog_node.shards.copies.sealed_points import SealedPoints
from stratalog_node.single_flight import SingleFlight

T = TypeVar("T")

_MOST_COPIES: Final = 100_000
_MOST_VERDICTS: Final = 10_000
_VERDICT_MS: Final = 60_000
_CHECKS_AT_ONCE: Final = 2
_LOOK_BYTES: Final = 64 << 10
"""Bytes of a file that are read at once for the headers in them."""


class Mark(NamedTuple):
    """Identifies the content of a file: another file in its place has another mark, and so has one that was written
    to."""

    device: int
    inode: int
    size_bytes: int
    changed_ns: int
    """When its bytes were."""
    touched_ns: int
    """When anything of it was: a copy may bring the other time along."""


class _Verdict(NamedTuple):
    """A file that is not the one that was sealed."""

    mark: Mark
    until_ms: int
    why: Corrupt


class CheckedFiles:
    def __init__(
        self,
        layout: NodeLayout,
        cluster_id: str,
        threads: DiskThreads,
        descriptors: Descriptors,
        index_cache_bytes: int,
        steady_ms: Callable[[], int],
    ) -> None:
        self._layout = layout
        self._cluster_id = cluster_id
        self._threads = threads
        self._descriptors = descriptors
        self._steady_ms = steady_ms
        self._points = SealedPoints(threads, index_cache_bytes)
        self._copies: OrderedDict[SegmentKey, tuple[SealedCopy, Mark]] = OrderedDict()
        self._verdicts: OrderedDict[SegmentKey, _Verdict] = OrderedDict()
        self._places = asyncio.Semaphore(_CHECKS_AT_ONCE)
        self._checks: SingleFlight[SegmentKey, None] = SingleFlight()
        """A client that asks for a large file gives up before the check ends; its next request finds the file
        checked."""

    async def close(self) -> None:
        await self._checks.close()

    async def check(self, key: SegmentKey, seal: SealRecord) -> None:
        """Wait until it is checked; the check continues if the caller is cancelled. Raises: NotFound, Corrupt,
        Unavailable."""
        if key not in self._copies:
            await self._checks.join(key, lambda: self._check(key, seal))

    async def read(self, key: SegmentKey, work: Callable[[SealedCopy, IndexPoints], T]) -> T | None:
        """Read a checked file on a disk thread; None if it is not (or no longer) the one that was checked: check it
        first. Raises: NotFound, Corrupt, Unavailable."""
        known = self._copies.get(key)
        if known is None:
            return None
        copy, mark = known
        path = copy.file.path

        def marked(points: IndexPoints) -> tuple[T, Mark]:
            done = work(copy, points)
            return done, mark_of(path)  # behind the read: whatever was read lay there before

        try:
            done, now = await self._points.read(copy, marked)
        except Corrupt:
            if await self._threads.read(lambda: mark_of(path)) == mark:
                raise
            now = None
        if now == mark:
            return done
        if self._copies.get(key) is known:
            self._forget(key)
        return None

    def _forget(self, key: SegmentKey) -> None:
        copy, _ = self._copies.pop(key)
        self._points.forget(copy)
        copy.file.close_when_unused()

    async def _check(self, key: SegmentKey, seal: SealRecord) -> None:
        path = self._layout.segment(key)
        known = self._verdicts.get(key)
        is_told = known is not None and self._steady_ms() < known.until_ms
        if known is not None and is_told and await self._threads.read(lambda: mark_of(path)) == known.mark:
            raise Corrupt(known.why.reason, source=known.why.source, position=known.why.position)
        async with self._places:
            await self._check_now(key, seal)

    async def _check_now(self, key: SegmentKey, seal: SealRecord) -> None:
        path = self._layout.segment(key)
        file = SegmentFile(path, self._descriptors, SEGMENT_HEADER_BYTES + seal.size_bytes)
        copy = SealedCopy(key, file, self._layout.index(key), seal)

        def check() -> tuple[Mark, Corrupt | None]:
            mark, why = mark_of(path), None
            try:
                _check_header(path, self._cluster_id, key, seal, mark)
                _check_digest(copy)
            except Corrupt as error:
                why = error
            if mark_of(path) != mark:
                raise Unavailable(f"{path} changes while it is checked: ask again")
            return mark, why

        try:
            mark, why = await self._threads.read_file(file, check)
        except BaseException:
            file.close_when_unused()
            raise
        self._verdicts.pop(key, None)
        if why is not None:
            file.close_when_unused()
            self._verdicts[key] = _Verdict(mark, self._steady_ms() + _VERDICT_MS, why.with_traceback(None))
            if len(self._verdicts) > _MOST_VERDICTS:
                self._verdicts.popitem(last=False)
            raise why
        self._copies[key] = copy, mark
        if len(self._copies) > _MOST_COPIES:
            self._forget(next(iter(self._copies)))


def mark_of(path: Path) -> Mark:
    """Blocking. Raises: NotFound, Unavailable."""
    try:
        found = path.stat()
    except FileNotFoundError:
        raise NotFound(f"{path} is not there") from None
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}") from error
    return Mark(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _check_header(path: Path, cluster_id: str, key: SegmentKey, seal: SealRecord, mark: Mark) -> None:
    """Blocking: that the file is this segment's, and as long as its seal record says."""
    front = read_front(path, SEGMENT_HEADER_BYTES)
    if front is None:
        raise NotFound(f"{path} is not there")
    identity = decode_segment_header(front, source=str(path))
    if (identity.cluster_id, identity.key) != (cluster_id, key):
        raise Corrupt(
            f"it is segment {identity.key} of cluster {identity.cluster_id}, expected {key} of {cluster_id}",
            source=str(path),
            position=0,
        )
    if mark.size_bytes < SEGMENT_HEADER_BYTES + seal.size_bytes:
        raise Corrupt(
            f"it has {mark.size_bytes} bytes, its seal record needs {SEGMENT_HEADER_BYTES + seal.size_bytes}",
            source=str(path),
            position=mark.size_bytes,
        )


def _check_digest(copy: SealedCopy) -> None:
    """Blocking: that its batches are those that were sealed, as their headers tell. Raises: Corrupt, Unavailable."""
    seal, digest, position = copy.seal, EMPTY_DIGEST, 0
    while position < seal.size_bytes:
        data = copy.read_blocking(position, min(_LOOK_BYTES, seal.size_bytes - position))
        try:
            digest, behind = extend_digest_past(digest, data)
        except ValueError as error:
            raise Corrupt(str(error), source=str(copy.file.path), position=position) from error
        if not behind:
            raise Corrupt("it ends within the header of a batch", source=str(copy.file.path), position=position)
        position += behind
    if position != seal.size_bytes or digest != seal.digest:
        reason = f"its batches have digest {digest.hex()}, the seal record says {seal.digest.hex()}"
        raise Corrupt(f"{reason}: put the right file there", source=str(copy.file.path), position=0)
