"""One shard of the group log: appended to in order, one append at a time, many entries per append.

Whatever is submitted in one turn of the event loop, or during an append, goes into the next append together. `done` is
called in the order of submission, with NONE once the shard's HW has passed the entries; so state that changes only
there is exactly what a restart would read.

Instead of compaction: when the log since the last snapshot is long enough, the whole live state is written again
between two marks, a piece per append with the new entries behind it, so that requests do not wait for the snapshot;
then everything before the first mark is trimmed. So a reload reads at most a few times the live state.

Durability: an entry is durable as the shard is: `ShardView.append` returns when the HW has passed it.
Thread: the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from stratalog.formats.groups.group_log import KeyValue, LogOpened, encode_entry
from stratalog.model.errors import Fenced, OutcomeUnknown, StratalogError, Unavailable
from stratalog.model.groups.group import GroupError
from stratalog.model.mounts import OffsetRange
from stratalog.model.segment import GapReason, Segment
from stratalog.telemetry.logs import logger
from stratalog_node.groups.batches import batch_of, batches_in, cut, size_of
from stratalog_node.groups.replay import Replay
from stratalog_node.groups.snapshot import LiveState, SnapshotInProgress
from stratalog_node.groups.stats import GroupStats
from stratalog_node.shards.copies.shard_view import ShardView

Done: TypeAlias = Callable[[GroupError], None]
Trim: TypeAlias = Callable[[int, int], Awaitable[None]]
"""`await trim(shard, offset)`: what is below the offset may go."""

_log = logger(__name__)

_FEW_BYTES = 4_096
"""Average size of an entry."""


def _given_up(segments: Sequence[Segment], log_start_offset: int) -> list[OffsetRange]:
    """What ended by a person's word before it was whole: in its place are batches without records, or none."""
    return [
        OffsetRange(gap.base_offset, gap.end_offset)
        for segment in segments
        for gap in segment.handed.given_up
        if gap.reason is GapReason.UNCLEAN and gap.base_offset >= log_start_offset
    ]


@dataclass(frozen=True, slots=True)
class LogLimits:
    snapshot_min_bytes: int = 4 << 20
    """No snapshot before this much was appended since the last one."""
    snapshot_growth: int = 3
    """... nor before the log since the last snapshot is this many times as long as that one."""
    chunk_entries: int = 1_000
    """Entries of a snapshot per append: about 10 ms of the loop."""
    append_bytes: int = 256 << 10
    max_pending_bytes: int = 32 << 20
    """What waits or is on its way, over all shards of the node; what is submitted beyond this is refused at once."""
    read_bytes: int = 128 << 10
    most_openings: int = 16
    """A log that was opened more often since its beginning gets a snapshot, however short it is: after a start that was
    not clean each opening is a segment."""


class Backlog:
    """Bytes submitted to all group logs of the node and not answered yet."""

    __slots__ = ("size_bytes",)

    def __init__(self) -> None:
        self.size_bytes = 0


class _Submission:
    __slots__ = ("done", "pairs", "size_bytes")

    def __init__(self, pairs: Sequence[KeyValue], done: Done) -> None:
        self.pairs = pairs
        self.done = done
        self.size_bytes = size_of(pairs)


class GroupLog:
    """Submit entries; they are acknowledged in order."""

    def __init__(
        self,
        index: int,
        view: ShardView,
        live: LiveState,
        *,
        wall_ms: Callable[[], int],
        trim: Trim,
        on_fenced: Callable[[], None],
        backlog: Backlog,
        limits: LogLimits,
        stats: GroupStats,
        is_lost: Callable[[Segment], bool] = lambda _: False,
    ) -> None:
        """`is_lost`: all that nodes had of a sealed segment was given up by a person."""
        self.index = index
        self._backlog = backlog
        self._view = view
        self._live = live
        self._wall_ms = wall_ms
        self._trim = trim
        self._on_fenced = on_fenced
        self._limits = limits
        self._stats = stats
        self._pending: deque[_Submission] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._trimmer: asyncio.Task[None] | None = None
        self._snapshot: SnapshotInProgress | None = None
        self._since_snapshot_bytes = 0
        self._last_snapshot_bytes = 0
        self._is_closed = False
        self._is_snapshot_wanted = False
        self._is_lost = is_lost
        self._opened_at: int | None = None

    # Loading ----------------------------------------------------------------------------------------------------
    async def load(self, node_id: int) -> Replay:
        """Take the shard over and read it: all entries whose append any node acknowledged lie below the opening record.
        A retry reads up to the existing record, because no other node has written since.

        Raises: Unavailable, Fenced, OutcomeUnknown, Corrupt.
        """
        source = f"group log shard {self.index}"
        if self._opened_at is None:
            now_ms = self._wall_ms()
            opening = [batch_of([encode_entry(LogOpened(node_id, now_ms))], now_ms)]
            self._opened_at = await self._view.append(opening)
        opened_at = self._opened_at
        self._since_snapshot_bytes = 0
        offset = self._view.log_start_offset
        replay = Replay(offset)
        gaps = deque(_given_up(self._view.segments, offset))
        while offset <= opened_at:
            before = offset
            for piece in await self._read(offset):
                self._since_snapshot_bytes += len(piece)
                for header, batch in batches_in(piece, source):
                    while gaps and gaps[0].base_offset <= header.base_offset:
                        replay.pass_over(gaps.popleft())
                    offset = max(offset, header.end_offset)
                    if not header.is_control:
                        self._stats.foreign_batches += 1
                        continue
                    if len(batch) > _FEW_BYTES * header.record_count and len(batch) > self._limits.append_bytes // 4:
                        # Large groups: a thread reads them, for one of ten thousand members takes a while.
                        await asyncio.to_thread(replay.apply_batch, batch, header, source)
                    else:
                        replay.apply_batch(batch, header, source)
                    await asyncio.sleep(0)
            if offset == before:
                if (end_offset := self._lost_until(offset)) is None:
                    words = f"{source}: nothing to read at offset {offset}, below {opened_at}: it is tried again"
                    raise Unavailable(words)
                replay.pass_over(OffsetRange(offset, end_offset))
                offset = end_offset
        # A snapshot makes the log begin behind what was given up, so that later reads do not meet the gap.
        self._is_snapshot_wanted = replay.openings > self._limits.most_openings or bool(replay.given_up)
        return replay

    async def _read(self, offset: int) -> Sequence[bytes | memoryview]:
        """Nothing, where there is nothing and never will be."""
        try:
            return await self._view.read(offset, self._limits.read_bytes)
        except Unavailable:
            if self._lost_until(offset) is None:
                raise
            return ()

    def _lost_until(self, offset: int) -> int | None:
        """The end of the lost range that begins at `offset`, if no readable copy of it is left. A range in the object
        store is not lost: the read waits for it."""
        for segment in self._view.segments:
            if segment.end_offset is not None and segment.base_offset <= offset < segment.end_offset:
                is_stored = offset < segment.remote.commit_offset
                return segment.end_offset if not is_stored and self._is_lost(segment) else None
        return None

    def loaded(self) -> None:
        """The live state equals what was read: a snapshot of it may begin."""
        if self._is_snapshot_wanted and not self._is_closed and self._snapshot is None:
            self._is_snapshot_wanted = False
            self._snapshot = SnapshotInProgress(self._wall_ms(), self._live)
            self._go_on_writing()

    # Appending --------------------------------------------------------------------------------------------------
    def submit(self, pairs: Sequence[KeyValue], done: Done) -> None:
        """Encoded entries. `done` is called exactly once, never before this returns."""
        submission = _Submission(pairs, done)
        loop = asyncio.get_running_loop()
        if self._is_closed:
            loop.call_soon(done, GroupError.NOT_COORDINATOR)
            return
        backlog = self._backlog
        if backlog.size_bytes and backlog.size_bytes + submission.size_bytes > self._limits.max_pending_bytes:
            loop.call_soon(done, GroupError.COORDINATOR_NOT_AVAILABLE)
            return
        self._pending.append(submission)
        backlog.size_bytes += submission.size_bytes
        self._go_on_writing()

    def _go_on_writing(self) -> None:
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write(), name=f"group-log-{self.index}")

    def close(self) -> None:
        """What waits to be appended is refused; an append under way is still reported."""
        self._is_closed = True
        self._snapshot = None
        refused = list(self._pending)
        self._pending.clear()
        self._finish(refused, GroupError.NOT_COORDINATOR)

    async def drained(self) -> None:
        """Returns when no append and no trim is under way."""
        while tasks := {task for task in (self._writer, self._trimmer) if task is not None}:
            await asyncio.wait(tasks)

    async def _write(self) -> None:
        try:
            while not self._is_closed and (self._pending or self._snapshot is not None):
                await self._append_once()
        finally:
            self._writer = None

    async def _append_once(self) -> None:
        snapshot = self._snapshot
        pairs = (
            snapshot.next_chunk(self._limits.chunk_entries, self._limits.append_bytes) if snapshot is not None else []
        )
        taken = self._next_submissions()
        for submission in taken:
            pairs += submission.pairs
        base_offset, error = await self._append(pairs)
        self._finish(taken, error)
        if self._is_closed:
            return
        if snapshot is not None:
            self._go_on_with(snapshot, base_offset, len(pairs), error)
        elif error is GroupError.NONE and self._is_snapshot_due():
            self._snapshot = SnapshotInProgress(self._wall_ms(), self._live)
        if error is GroupError.NOT_COORDINATOR:
            self._on_fenced()

    async def _append(self, pairs: list[KeyValue]) -> tuple[int, GroupError]:
        try:
            batches: list[bytes] = []
            now_ms = self._wall_ms()
            for piece in cut(pairs, self._limits.append_bytes):
                if batches:
                    await asyncio.sleep(0)  # a batch takes some milliseconds
                batches.append(batch_of(piece, now_ms))
            base_offset = await self._view.append(batches)
        except Fenced:
            return -1, GroupError.NOT_COORDINATOR
        except (Unavailable, OutcomeUnknown) as failure:
            # What may or may not be in the log changes nothing here: the client tries again, and a restart may take
            # either for true.
            _log.warning("group log append failed", shard=self.index, reason=str(failure))
        except Exception:  # the waiting requests must be answered, whatever failed
            _log.exception("group log append failed", shard=self.index)
        else:
            self._stats.appends += 1
            size_bytes = sum(len(batch) for batch in batches)
            self._stats.append_bytes += size_bytes
            self._since_snapshot_bytes += size_bytes
            return base_offset, GroupError.NONE
        self._stats.append_failures += 1
        return -1, GroupError.COORDINATOR_NOT_AVAILABLE

    def _next_submissions(self) -> list[_Submission]:
        taken: list[_Submission] = []
        size = 0
        while self._pending and (not taken or size + self._pending[0].size_bytes <= self._limits.append_bytes):
            submission = self._pending.popleft()
            taken.append(submission)
            size += submission.size_bytes
        return taken

    def _finish(self, submissions: list[_Submission], error: GroupError) -> None:
        for submission in submissions:
            self._backlog.size_bytes -= submission.size_bytes
            try:
                submission.done(error)
            except Exception:
                _log.exception("an acknowledged group log entry could not be applied", shard=self.index)

    # Snapshots --------------------------------------------------------------------------------------------------
    def _is_snapshot_due(self) -> bool:
        due_bytes = max(self._limits.snapshot_min_bytes, self._limits.snapshot_growth * self._last_snapshot_bytes)
        return self._since_snapshot_bytes >= due_bytes

    def _go_on_with(self, snapshot: SnapshotInProgress, base_offset: int, entries: int, error: GroupError) -> None:
        if error is not GroupError.NONE:
            _log.warning("group log snapshot given up; the next one begins after as many bytes again", shard=self.index)
            self._snapshot = None
            self._since_snapshot_bytes = 0
            return
        snapshot.appended(base_offset, entries)
        if snapshot.is_complete:
            self._snapshot = None
            self._since_snapshot_bytes = 0
            self._last_snapshot_bytes = snapshot.size_bytes
            self._stats.snapshots += 1
            if self._trimmer is None:
                self._trimmer = asyncio.get_running_loop().create_task(self._trim_below(snapshot.base_offset))

    async def _trim_below(self, offset: int) -> None:
        try:
            await self._trim(self.index, offset)
        except StratalogError as failure:
            _log.warning("group log not trimmed; the next snapshot will do it", shard=self.index, reason=str(failure))
        except Exception:
            _log.exception("group log not trimmed; the next snapshot will do it", shard=self.index)
        finally:
            self._trimmer = None
