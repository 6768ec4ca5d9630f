"""Moves sealed copies between the directories of the node, one at a time, within a budget of bytes per second.

`machines.copies.copy_moves` decides which; `copy_move.py` makes the new file and proves it. Here the shard
changes over to it, in one step on the event loop, and the old file is removed after that. If the copy was freed or
deleted meanwhile, the new file is removed again. If it was found damaged, the shard changes over to the proven one.
First of all, second files that the start found (`copy_places.py`) are removed, each once the file that counts
has been proven; if that one is damaged, the second one takes its place.
Lives on the event loop; files are read and written on the threads of the further directory that is concerned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar
from uuid import UUID

from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.machines.copies.copy_moves import DirectoryRoom, PlacedCopy, plan_moves
from stratalog.machines.restart.restart_events import TakeSealed
from stratalog.machines.restart.shard_restart import judge_sealed
from stratalog.machines.token_bucket import TokenBucket
from stratalog.model.errors import Corrupt, DiskFull, StratalogError, Unavailable
from stratalog.model.ids import SegmentKey
from stratalog.telemetry.logs import logger
from stratalog.telemetry.metrics import counter, gauge
from stratalog_node.disk.directory_calls import background_at
from stratalog_node.disk.files import SegmentFile
from stratalog_node.disk.layout import segment_path
from stratalog_node.shards.copies.context import ShardContext
from stratalog_node.shards.copies.missing_files import look_for, take_sealed
from stratalog_node.shards.copies.sealed import SealedCopy
from stratalog_node.shards.log.directory import ShardDirectory
from stratalog_node.shards.log.disk_usage import usage_of
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.shards.moves.copy_move import CopyMove, prove
from stratalog_node.shards.moves.copy_places import SecondFile
from stratalog_node.slices import Slices

log = logger(__name__)

T = TypeVar("T")

_LONGEST_PAUSE_S: Final = 30.0
_SHORTEST_PAUSE_S: Final = 1.0
_PAUSE_PER_PASS: Final = 100
"""A search for what is due takes at most one percent of the time."""
_FULL_PAUSE_S: Final = 10.0
_BURST_BYTES: Final = 1 << 20
_MOST_AT_ONCE: Final = 256
"""Moves of one plan: what was freed or written meanwhile is looked at again after that."""


@dataclass(slots=True)
class MoveStats:
    copies: int = counter("Sealed copies moved to another data directory.")
    bytes: int = counter("Bytes of sealed copies moved to another data directory.")
    draining: int = gauge("Sealed copies in data directories that are drained.")
    failures: int = counter("Moves to another data directory that failed: the old copy stays in use.")
    second_files: int = counter("Second files of a segment that a start found and that were removed.")


@dataclass(frozen=True, slots=True)
class MovePolicy:
    """When copies leave the first directory, and how fast."""

    after_ms: Callable[[UUID], int]
    """From which age on, for a topic; -1: not by age."""
    least_free_bytes: int
    """While less is free in the first directory, copies leave it earlier."""
    bytes_per_s: int
    """Written to targets and read back there."""


NO_MOVES: Final = MovePolicy(after_ms=lambda topic_id: -1, least_free_bytes=0, bytes_per_s=1)


class CopyMover:
    def __init__(
        self,
        context: ShardContext,
        directory: ShardDirectory,
        seconds: Iterable[SecondFile],
        policy: MovePolicy,
        *,
        steady_ms: Callable[[], int],
    ) -> None:
        self.stats = MoveStats()
        self._context = context
        self._directory = directory
        self._seconds = list(seconds)
        self._steady_ms = steady_ms
        self._policy = policy
        self._task: asyncio.Task[None] | None = None
        rate = policy.bytes_per_s
        self._budget = TokenBucket(rate, max(_BURST_BYTES, rate / 10), steady_ms())

    def start(self) -> None:
        if self._context.layout.further:
            self._task = asyncio.get_running_loop().create_task(self.run(), name="copy-mover")

    async def close(self) -> None:
        """A move that this cuts short leaves what the next start removes."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def run(self) -> None:
        """Without an end."""
        while True:
            began_ms = self._steady_ms()
            try:
                await self.move_due()
            except Exception:  # a fault in one pass must not end all moves (F48)
                log.exception("copies cannot be moved between data directories now")
            took_s = (self._steady_ms() - began_ms) / 1_000
            await asyncio.sleep(min(max(took_s * _PAUSE_PER_PASS, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S))

    async def move_due(self) -> None:
        """One pass: settle what a start found twice, then make the moves that are due."""
        if not self._context.layout.further:
            return
        await self._settle_seconds()
        rooms = await self._rooms()
        if len(rooms) < 2:
            return
        moves = plan_moves(await self._placed(), rooms, least_free_bytes=self._policy.least_free_bytes)
        for move in moves[:_MOST_AT_ONCE]:
            await self._move(move.key, self._root(move.target))

    # What there is --------------------------------------------------------------------------------------------------
    def _root(self, number: int) -> Path:
        layout = self._context.layout
        return layout.root if number == 0 else layout.further[number - 1].root

    async def _at(self, path: Path, work: Callable[[], T]) -> T:
        return await background_at(self._context.layout, self._context.threads, path, work)

    async def _rooms(self) -> list[DirectoryRoom]:
        layout, settings = self._context.layout, self._context.settings
        first = await self._at(layout.root, partial(usage_of, layout.root))
        found = [DirectoryRoom(0, first.usable_bytes, settings.disk_reserve_bytes * 2)]
        for number, one in enumerate(layout.further, 1):
            if one.trouble is None:
                try:
                    usage = await self._at(one.root / "segments", partial(usage_of, one.root))
                except (Unavailable, OSError) as error:
                    log.warning("a data directory does not say what is free", directory=str(one.root), error=str(error))
                else:
                    found.append(
                        DirectoryRoom(number, usage.usable_bytes, settings.disk_reserve_bytes, one.is_draining)
                    )
        return found

    async def _placed(self) -> list[PlacedCopy]:
        layout, now_ms, slices = self._context.layout, self._context.clock_ms(), Slices()
        numbers = {one.root: number for number, one in enumerate(layout.further, 1)}
        draining_copies = 0
        unsettled = {second.key for second in self._seconds}
        found: list[PlacedCopy] = []
        for shard in list(self._directory.all()):
            if shard.copies:
                after_ms = self._policy.after_ms(shard.key.topic_id)
            for copy in list(shard.copies.values()):
                if isinstance(copy, SealedCopy) and copy.damage is None and copy.key not in unsettled:
                    number = numbers.get(layout.moved.get(copy.key, layout.root), 0)
                    draining_copies += number > 0 and layout.further[number - 1].is_draining
                    age_ms = max(0, now_ms - copy.seal.sealed_ms)
                    found.append(PlacedCopy(copy.key, copy.file.size_bytes, age_ms, number, after_ms))
            await slices.did(1 + len(shard.copies))
        self.stats.draining = draining_copies
        return found

    # One move -------------------------------------------------------------------------------------------------------
    def _copy_of(self, key: SegmentKey) -> tuple[ShardLog, SealedCopy] | None:
        """The copy in use, unless it is being removed."""
        shard = self._directory.get(key.shard_key)
        copy = shard.copies.get(key.epoch) if shard is not None else None
        if shard is None or not isinstance(copy, SealedCopy) or copy.key != key:
            return None
        return None if self._context.removal.is_under_way(key) else (shard, copy)

    async def _move(self, key: SegmentKey, root: Path) -> None:
        found = self._copy_of(key)
        if found is None or found[1].damage is not None:
            return
        shard, copy = found
        move = CopyMove(key, copy.seal, copy.file.path, root)
        slow = copy.file.path if root == self._context.layout.root else move.path
        try:
            is_done = await self._do_steps(slow, move.steps(), lambda: self._copy_of(key) == (shard, copy))
        except StratalogError as error:
            self.stats.failures += 1
            log.warning("a copy cannot be moved", segment=str(key), to=str(root), error=str(error))
            if isinstance(error, DiskFull):
                await asyncio.sleep(_FULL_PAUSE_S)
            return
        if key in shard.missing and await look_for(shard, key):
            return  # the source failed meanwhile, and the new file was proven before
        if not is_done or self._copy_of(key) != (shard, copy) or not self._change_over(shard, copy, root):
            used = shard.copies.get(key.epoch)
            if used is None or used.file.path != move.path:  # else a reader found it first
                with suppress(Unavailable):  # its directory failed: the next start removes it
                    await self._at(move.path, move.undo)
            return
        self.stats.copies += 1
        self.stats.bytes += copy.file.size_bytes

    async def _do_steps(self, path: Path, steps: Iterator[int], is_due: Callable[[], bool] = lambda: True) -> bool:
        """All steps, within the budget, on the threads of the directory of `path`. Returns: False if it was not due any
        more. Raises: Unavailable when the directory has failed, and what the steps raise."""
        while is_due():
            done_bytes = await self._at(path, lambda: next(steps, None))
            if done_bytes is None:
                return True
            wait_ms = self._budget.consume(done_bytes, self._steady_ms()) if done_bytes else 0
            if wait_ms > 0:
                await asyncio.sleep(wait_ms / 1_000)
        return False

    def _change_over(self, shard: ShardLog, copy: SealedCopy, root: Path) -> bool:
        """From now on the file in the directory with that root counts; the old one goes. Nothing else runs meanwhile.
        Returns: whether it did."""
        context, key = self._context, copy.key
        segment = context.catalog.segment(key)
        if segment is None or segment.seal is None or segment.seal.digest != copy.seal.digest:
            return False
        if copy.damage is not None and not isinstance(
            judge_sealed(segment, context.node_id, has_file=True), TakeSealed
        ):  # it was reported, and others have it: a copy of theirs comes
            return False
        if root not in context.layout.roots:  # it failed meanwhile: its copies were counted as gone already
            return False
        points = copy.points
        shard.take_out(key)
        context.sealed_points.forget(copy)
        if root == context.layout.root:
            context.layout.moved.pop(key, None)
        else:
            context.layout.moved[key] = root
        take_sealed(shard, segment, points)
        context.removal.begin_moved(key, copy.file)
        return True

    # Second files ---------------------------------------------------------------------------------------------------
    async def _settle_seconds(self) -> None:
        for second in list(self._seconds):
            found = self._copy_of(second.key)
            if found is None:
                continue  # not sealed here yet, or being removed: later, or never
            shard, copy = found
            if copy.file.path == segment_path(second.root, second.key):
                self._seconds.remove(second)
                continue
            try:
                if copy.damage is None and await self._is_proven(copy.file.path, copy):
                    if self._copy_of(second.key) != (shard, copy) or copy.damage is not None:
                        continue  # it was freed, or its directory failed: then the second one is needed
                    await self._remove_second(second)
                elif await self._is_proven(segment_path(second.root, second.key), copy):
                    if self._copy_of(second.key) != (shard, copy):
                        continue
                    log.error("a copy is damaged: its second file takes its place", file=str(copy.file.path))
                    if not self._change_over(shard, copy, second.root):
                        continue
                else:
                    log.error("two files of a segment, and neither is whole: both stay", segment=str(second.key))
                self._seconds.remove(second)
            except (StratalogError, OSError) as error:
                log.warning("a second file stays for now", segment=str(second.key), error=str(error))

    async def _is_proven(self, path: Path, copy: SealedCopy) -> bool:
        """Raises: Unavailable: the disk did not say."""
        try:
            return await self._do_steps(path, prove(path, copy.key, copy.seal))
        except Corrupt as error:
            log.error("a file is not what its seal record says", file=str(path), error=str(error))
            return False

    async def _remove_second(self, second: SecondFile) -> None:
        file = SegmentFile(segment_path(second.root, second.key), self._context.descriptors, SEGMENT_HEADER_BYTES)

        def remove() -> None:
            file.path.with_suffix(".idx").unlink(missing_ok=True)
            file.remove()

        await self._at(file.path, remove)
        self.stats.second_files += 1
