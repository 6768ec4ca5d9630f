"""Reads of a shard: from the page cache on the loop, from disk on a thread, else `shards/read/other_sources.py`.

`read_hot` is synchronous and never blocks: it raises `NotCached` for data that is not in the page cache, and `read`
then takes the slow way. It raises `NotChecked` for data that this process has not checked yet; `read` checks it once.
Requires: log start <= offset < high watermark.
Memory: hot reads fill pooled buffers, given back when the answer was sent; `outstanding_bytes` counts the whole buffers
and bounds them. A slice of a file takes no memory, but its file stays open as long as a client takes its time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from stratalog.formats.batches.record_batch import walk
from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.formats.segments.index_points import IndexPoints
from stratalog.machines.reading.read_policy import ReadFrom, ReadPolicy, choose
from stratalog.machines.restart.missing_copy import judge_missing
from stratalog.model.errors import Corrupt, NotFound, OutOfReach, Unavailable
from stratalog.model.ids import ShardKey
from stratalog.model.in_order import find
from stratalog.model.segment import RemoteState, Segment
from stratalog.telemetry.logs import logger
from stratalog_node.buffers import BufferPool
from stratalog_node.disk.file_slice import FileSlice
from stratalog_node.disk.files import SegmentFile
from stratalog_node.shards.copies.local_copy import Extent, LocalCopy, NotCached, NotChecked
from stratalog_node.shards.copies.local_shard import LocalShard
from stratalog_node.shards.copies.missing_files import copy_gone, look_for
from stratalog_node.shards.copies.sealed import SealedCopy
from stratalog_node.shards.read.other_sources import OtherSources, Sources

log = logger(__name__)

_SLICE_BYTES = 128 << 10
"""From here on a slice of the file stands for the bytes: cheaper than a copy (docs/decisions/0005)."""
_SHORT_SLICE_BYTES = 32 << 10
"""And from here on where memory is short."""


ReadBuffer: TypeAlias = bytes | memoryview | FileSlice
"""Some bytes of an answer. Slices come only from `read_hot(for_socket=True)`."""


@dataclass(slots=True)
class Read:
    """Whole batches. Call `give_back` once `buffers` are no longer used."""

    buffers: list[ReadBuffer]
    size_bytes: int
    release: Callable[[], None] | None = None
    next_offset: int = -1
    """First offset after it, of a read on the loop."""

    def give_back(self) -> None:
        """Return what `buffers` use to its pool."""
        if self.release is not None:
            self.release()

    def in_memory(self) -> list[bytes | memoryview]:
        """The buffers of a read that was not for a socket: none is a slice of a file."""
        return [piece for piece in self.buffers if not isinstance(piece, FileSlice)]


class ReadPosition(NamedTuple):
    """The position of an offset in a shard."""

    copy: LocalCopy | None
    end_position: int
    end_offset: int
    segment: Segment | None
    """As the catalog lists it. None if it does not yet (while a roll is being confirmed), or if the caller does not
    need it."""
    is_in_store: bool


class ShardReader:
    def __init__(self, pool: BufferPool, limit_bytes: int, most_sliced: int, other_sources: OtherSources) -> None:
        """`limit_bytes`: total size of all answers in memory; above it each gets a small share. `most_sliced`: the most
        files that may stay open for slow clients; the other descriptors are for appends."""
        self._pool = pool
        self._limit_bytes = limit_bytes
        self._most_sliced = most_sliced
        self._sliced: Counter[SegmentFile] = Counter()
        """Files with ranges on their way to sockets, and how many ranges each has: they share a descriptor."""
        self._other_sources = other_sources
        self.outstanding_bytes = 0
        self.outstanding_slices = 0
        self._barred: dict[ShardKey, None] = {}
        """Shards with a read that the topic's policy refused, until a read from another source succeeds."""

    @property
    def is_full(self) -> bool:
        """Answers hold all the memory that they may: read more only for a client that has no other data to receive."""
        return self.outstanding_bytes >= self._limit_bytes

    def room_bytes(self, wanted: int) -> int:
        """How much one more answer may hold."""
        return min(wanted, max(self._limit_bytes - self.outstanding_bytes, 64 << 10))

    # Where ----------------------------------------------------------------------------------------------------------
    def where(self, shard: LocalShard, offset: int) -> ReadPosition:
        """Raises: NotFound when no segment holds the offset."""
        active = shard.active
        segments = shard.segments
        if active is not None and offset >= active.key.base_offset:
            listed = segments[-1] if segments else None
            if listed is not None and listed.epoch != active.key.epoch:
                listed = find(segments, active.key)
            in_store = listed is not None and self._is_in_store(listed, offset)
            return ReadPosition(active, active.hw_position, active.hw_offset, listed, in_store)
        index = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
        for ended in reversed(shard.ended):
            if ended.key.base_offset <= offset < ended.leader.end_offset:
                listed = segments[index] if index >= 0 and segments[index].key == ended.key else None
                in_store = listed is not None and self._is_in_store(listed, offset)
                return ReadPosition(ended, ended.hw_position, ended.hw_offset, listed, in_store)
        if index < 0:
            raise NotFound(f"{shard.topic.name}-{shard.key.shard}: no segment holds offset {offset}")
        segment = segments[index]
        copy = shard.copies.get(segment.epoch)
        if isinstance(copy, SealedCopy):
            return ReadPosition(
                copy, copy.seal.size_bytes, copy.seal.end_offset, segment, self._is_in_store(segment, offset)
            )
        committed = shard.context.followed.committed(segment) if segment.seal is None else None
        if committed is not None and offset < committed[1]:
            followed, end_offset = committed
            return ReadPosition(followed, followed.size_bytes, end_offset, segment, self._is_in_store(segment, offset))
        end_offset = segment.end_offset if segment.end_offset is not None else segment.remote.commit_offset
        return ReadPosition(None, 0, end_offset, segment, self._is_in_store(segment, offset))

    @staticmethod
    def _is_in_store(segment: Segment, offset: int) -> bool:
        remote = segment.remote
        return remote.state is RemoteState.COMPLETE or remote.commit_offset > offset

    def _source(self, shard: LocalShard, where: ReadPosition) -> ReadFrom:
        in_store = where.is_in_store and self._other_sources.has_store
        # A copy known to be damaged is passed over where another one is; else what is whole in it is still served.
        copy = where.copy
        has_local = copy is not None and (copy.damage is None or not (in_store or self._others(shard, where)))
        return choose(shard.rules.read_policy.value, has_local=has_local, is_in_store=in_store)

    def _others(self, shard: LocalShard, where: ReadPosition) -> Sources:
        segment = _as_listed(shard, where)
        return () if segment is None else self._other_sources.sources(shard, segment, is_in_store=where.is_in_store)

    # On the loop ----------------------------------------------------------------------------------------------------
    def read_hot(
        self,
        shard: LocalShard,
        offset: int,
        max_bytes: int,
        *,
        for_socket: bool = False,
        where: ReadPosition | None = None,
    ) -> Read:
        """Bytes; with `for_socket` a slice of the file if it is large, or half of what answers may hold is taken.
        `where`: read just there, whatever the high watermark and the policy say.

        Raises: NotCached, NotChecked (use `read`), NotFound.
        """
        if where is not None:
            copy = where.copy
        else:
            where = self.where(shard, offset)
            copy = None if self._source(shard, where) is ReadFrom.COLD else where.copy
        if copy is None:
            raise NotCached
        cut_offset = shard.cut_offset
        if cut_offset is not None and where.end_offset > cut_offset:
            raise NotCached  # where to stop is found on the slow way
        points = copy.points
        if points is None or copy.damage is not None:
            raise NotCached
        if isinstance(copy, SealedCopy):
            shard.context.sealed_points.touch(copy)
        try:
            extent = copy.find(points, offset, max_bytes, where.end_position, where.end_offset, copy.read_header_cached)
            if not copy.checked.covers(extent.position, extent.end_position):
                raise _not_as_it_is(copy, extent)
            if for_socket and self._goes_as_slice(copy.file, extent.size_bytes):
                return self._slice(shard, copy, extent)
        except (Corrupt, NotFound, Unavailable):
            raise NotCached from None  # the slow way remembers the damage, and goes to the object store if it can
        size = extent.size_bytes
        buffer = self._pool.lend(size)
        view = buffer.view[:size]
        try:
            if copy.file.read_cached(view, SEGMENT_HEADER_BYTES + extent.position) < size:
                raise NotCached
        except (NotFound, Unavailable):
            self._pool.give_back(buffer)
            raise NotCached from None  # as above
        except BaseException:
            self._pool.give_back(buffer)
            raise
        copy.remember(extent.next_offset, extent.end_position)
        held = len(buffer.view)
        self.outstanding_bytes += held
        shard.context.stats.cached_read_bytes += size

        def release() -> None:
            self.outstanding_bytes -= held
            self._pool.give_back(buffer)

        return Read([view], size, release, extent.next_offset)

    def _goes_as_slice(self, file: SegmentFile, size_bytes: int) -> bool:
        if len(self._sliced) >= self._most_sliced and file not in self._sliced:
            return False
        is_short = self.outstanding_bytes + size_bytes > self._limit_bytes // 2
        return size_bytes >= (_SHORT_SLICE_BYTES if is_short else _SLICE_BYTES)

    def _slice(self, shard: LocalShard, copy: LocalCopy, extent: Extent) -> Read:
        position, size = SEGMENT_HEADER_BYTES + extent.position, extent.size_bytes
        if not copy.file.is_cached(position, size):
            raise NotCached
        copy.remember(extent.next_offset, extent.end_position)
        shard.context.stats.cached_read_bytes += size
        file, sliced = copy.file, self._sliced
        piece = FileSlice(file, position, size)
        self.outstanding_slices += 1
        sliced[file] += 1

        def release() -> None:
            self.outstanding_slices -= 1
            sliced[file] -= 1
            if not sliced[file]:
                del sliced[file]
            piece.release()

        return Read([piece], size, release, extent.next_offset)

    # Off the loop ---------------------------------------------------------------------------------------------------
    async def read_to_keep(self, shard: LocalShard, offset: int, max_bytes: int) -> list[bytes | memoryview]:
        """As `read`, but the caller may keep the result. Raises: Unavailable, Corrupt, NotFound."""
        read = await self.read(shard, offset, max_bytes)
        try:
            # A view is of a pooled buffer, which goes back now.
            return [bytes(piece) if isinstance(piece, memoryview) else piece for piece in read.in_memory()]
        finally:
            read.give_back()

    async def read(self, shard: LocalShard, offset: int, max_bytes: int, client: str = "") -> Read:
        """From wherever the policy says. `client`: for whose client id; none: for the node's own work. Raises:
        Unavailable, Corrupt, NotFound."""
        read = await self._read(shard, offset, max_bytes, client)
        cut_offset = shard.cut_offset
        return read if cut_offset is None else _before(read, cut_offset)

    async def _read(self, shard: LocalShard, offset: int, max_bytes: int, client: str) -> Read:
        where = self.where(shard, offset)
        source = self._source(shard, where)
        if source is ReadFrom.MEMORY_THEN_COLD:
            try:
                return self.read_hot(shard, offset, max_bytes)
            except NotChecked:
                source = ReadFrom.LOCAL  # it lies in memory: a check costs less than a request
            except NotCached:
                pass
        if source is ReadFrom.LOCAL:
            try:
                return await self.read_local(shard, where, offset, max_bytes)
            except Corrupt as damage:
                self.mark_damaged(shard, where, damage)
                if not self._others(shard, where):
                    raise
            except NotFound as missing:
                self._without_file(shard, where, offset, missing)
            except Unavailable as error:
                if not self._others(shard, where):
                    raise
                self._tell_unreadable(where, error)
        elif source is ReadFrom.NOWHERE and await self._find_file(shard, where):
            return await self._read(shard, offset, max_bytes, client)
        return await self._read_elsewhere(shard, where, offset, max_bytes, client)

    async def _read_elsewhere(
        self, shard: LocalShard, where: ReadPosition, offset: int, max_bytes: int, client: str
    ) -> Read:
        segment, others = _as_listed(shard, where), self._others(shard, where)
        if segment is None or not others:
            if self._is_barred(shard, where):
                raise self._tell_barred(shard, offset, segment)
            self._tell_missing(shard, where)
            raise Unavailable(
                f"{shard.topic.name}-{shard.key.shard}: offset {offset} is not on this node, no node that proved "
                "a copy can be asked now, and it is not in the object store, or no bucket is set"
            )
        pieces = await self._other_sources.read(shard, segment, others, offset, max_bytes, self.room_bytes, client)
        self._barred.pop(shard.key, None)
        return self._counted(list(pieces))

    def _is_barred(self, shard: LocalShard, where: ReadPosition) -> bool:
        """Whether the object store has it, and the topic's policy alone keeps readers out."""
        return (
            where.is_in_store and self._other_sources.has_store and shard.rules.read_policy.value == ReadPolicy.DISABLE
        )

    def _tell_barred(self, shard: LocalShard, offset: int, segment: Segment | None) -> OutOfReach:
        """Count each such read; log the first of a shard, until one succeeds."""
        shard.context.stats.barred_reads += 1
        holders = segment.local_nodes if segment is not None else ()
        start = f"start one of the nodes {holders}, or " if holders else ""
        error = OutOfReach(
            f"{shard.topic.name}-{shard.key.shard}: offset {offset} is on no node that is alive; the object store has "
            f"it, and remote.read.policy=Disable keeps readers out: {start}set remote.read.policy=NotInDisk"
        )
        if shard.key not in self._barred:
            self._barred[shard.key] = None
            log.error("a consumer asks for data that its topic's policy lets no reader have", reason=str(error))
        return error

    async def _find_file(self, shard: LocalShard, where: ReadPosition) -> bool:
        """Whether a missing file is there again."""
        segment = _as_listed(shard, where)
        return segment is not None and segment.key in shard.missing and await look_for(shard, segment.key)

    def _tell_missing(self, shard: LocalShard, where: ReadPosition) -> None:
        """Raises: Unavailable for a file that is missing, with what is lost."""
        segment = _as_listed(shard, where)
        if segment is not None and segment.key in shard.missing:
            verdict = judge_missing(segment, shard.context.node_id, has_store=self._other_sources.has_store)
            raise Unavailable(f"segment {segment.key}: {verdict.words}")

    def _without_file(self, shard: LocalShard, where: ReadPosition, offset: int, error: NotFound) -> None:
        """The file is gone. Raises: Unavailable when the offset is nowhere else."""
        assert where.copy is not None
        copy_gone(shard, where.copy)
        if not self._others(shard, where) and not self._is_barred(shard, where):
            # Retriable: that a file is gone says nothing about the offset (F40).
            raise Unavailable(
                f"{shard.topic.name}-{shard.key.shard}: offset {offset} cannot be read: {error}"
            ) from error

    @staticmethod
    def _tell_unreadable(where: ReadPosition, error: Unavailable) -> None:
        """Once, until a read succeeds again: each asks the disk first, for its fault may have passed."""
        copy = where.copy
        assert copy is not None
        if not copy.is_unreadable:
            copy.is_unreadable = True
            log.warning("a local copy cannot be read, others are asked", segment=str(copy.key), error=str(error))

    def _counted(self, pieces: list[ReadBuffer]) -> Read:
        """Memory of its own: counted until it was sent, so that many slow readers leave one another less room; a view
        with all that it keeps alive."""
        held = sum(memoryview(piece.obj).nbytes if isinstance(piece, memoryview) else len(piece) for piece in pieces)
        self.outstanding_bytes += held

        def release() -> None:
            self.outstanding_bytes -= held

        return Read(pieces, sum(map(len, pieces)), release)

    def mark_damaged(self, shard: LocalShard, where: ReadPosition, error: Corrupt) -> None:
        """Once checked and found wrong, the bytes lie in the page cache, where reads are not checked: remember it."""
        copy = where.copy
        assert copy is not None
        if copy.damage is None:
            copy.damage = str(error)
            shard.context.stats.damaged_copies += 1
            next_step = (
                "reads go to the object store, or to another node; free or restore the local copy"
                if self._others(shard, where)
                else "restore the file from another copy; reads before the damage still work"
            )
            log.error(
                "local copy is damaged", topic=shard.topic.name, shard=shard.key.shard, error=str(error), next=next_step
            )

    async def read_local(self, shard: LocalShard, where: ReadPosition, offset: int, max_bytes: int) -> Read:
        """Just there, with every batch checked. Raises: Unavailable, Corrupt, NotFound."""
        copy = where.copy
        assert copy is not None

        def work(points: IndexPoints) -> tuple[Extent, bytes]:
            extent = copy.find(points, offset, max_bytes, where.end_position, where.end_offset, copy.read_blocking)
            return extent, copy.read_verified(extent)

        extent, data = await shard.context.sealed_points.read(copy, work)
        copy.was_checked(extent)
        copy.is_unreadable = False
        shard.context.stats.disk_read_bytes += len(data)
        return self._counted([data])


def _as_listed(shard: LocalShard, where: ReadPosition) -> Segment | None:
    """By now: while a read waited it may have changed, older ones may have been deleted, and it with them."""
    return None if where.segment is None else find(shard.segments, where.segment.key)


def _before(read: Read, cut_offset: int) -> Read:
    """The batches below an offset at which one begins."""
    pieces = read.in_memory()
    data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    for position, header in walk(data, source="batches that were read", verify=False):
        if header.base_offset >= cut_offset:
            return Read([memoryview(data)[:position]], position, read.release)
    return read


def _not_as_it_is(copy: LocalCopy, extent: Extent) -> NotCached:
    """Why bytes that this process has not checked since its start cannot be served from the page cache."""
    is_cached = copy.file.is_cached(SEGMENT_HEADER_BYTES + extent.position, extent.size_bytes)
    return NotChecked() if is_cached else NotCached()
