"""Asks the object store which batches of a segment it has, and fills the holes with batches without records.

Only what the store lacks is given up: what it has behind a hole is written back behind it.
`machines.restart.shard_healing` decides what a hole is and whether it is given up. A store that is unreachable, or that
is another store, does not make holes: that raises an error.
The file ends at the first hole for every scan until all behind it is flushed: the batch that fills the first hole is
written last. So a crash leaves either a file that is healed from the beginning, or one that is whole.
What was in the file from the first hole on is kept under another name, for a human.
Requires: the file is pinned and its descriptor is open; nothing else appends to it. Memory: one part.
Lives on the event loop; the file is written on the background threads.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from functools import partial

from stratalog.formats.batches.records import encode_empty_batches
from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.formats.segments.digest import extend_digest_over
from stratalog.machines.restart.shard_healing import OffsetRange
from stratalog.model.errors import Conflict, Corrupt, NotFound, Unavailable
from stratalog.model.segment import Segment
from stratalog_node.disk.durable_files import write_durably
from stratalog_node.disk.files import SegmentFile
from stratalog_node.disk.layout import GIVEN_UP_SUFFIX
from stratalog_node.disk.segment_scan import SegmentScan
from stratalog_node.shards.copies.cold_reads import CommittedRange, RemoteBatches
from stratalog_node.shards.copies.context import ShardContext

_READ_BYTES = 1 << 20


class GivingUp:
    def __init__(self, context: ShardContext, remote: RemoteBatches | None, segment: Segment) -> None:
        """`remote` is None on a node without an object store: then the segment has no parts."""
        self._context = context
        self._remote = remote
        self._segment = segment

    async def ask_for(self, ranges: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
        """Returns: what of them could not be had, by the part.

        Cost: each part is read once. Raises: Unavailable; Conflict.
        """
        return tuple([missed for begin, end in ranges for missed in await self._ask_for(begin, end)])

    async def _ask_for(self, offset: int, end_offset: int) -> list[OffsetRange]:
        """Returns: the parts of it that could not be had, each by itself."""
        missed: list[OffsetRange] = []
        while offset < end_offset:
            try:
                async for found in self._read(offset, end_offset):
                    offset = found.end_offset
            except (Corrupt, NotFound):
                # A failed read has not got beyond the part that holds `offset`.
                parts = self._segment.remote.parts
                part_end = next((part.end_offset for part in parts if part.end_offset > offset), end_offset)
                missed.append((offset, min(part_end, end_offset)))
                offset = part_end
        return missed

    async def _read(self, offset: int, end_offset: int) -> AsyncGenerator[CommittedRange]:
        """Raises: Corrupt, NotFound, Unavailable; Conflict if parts are not contiguous."""
        if offset >= end_offset:
            return
        if self._remote is None:
            raise NotFound("no object store is known to this node")
        digest: bytes | None = None
        async with aclosing(self._remote.read(self._segment, offset)) as ranges:
            async for found in ranges:
                is_next = found.base_offset == offset
                if not is_next or (digest and extend_digest_over(digest, found.data) != found.digest_after):
                    raise Conflict(
                        f"segment {self._segment.key}: the object store's part from {found.base_offset} on does not "
                        f"continue what it has below {offset}: run `stratalog verify`"
                    )
                offset, digest = found.end_offset, found.digest_after
                yield found
                if offset >= end_offset:
                    return
        raise NotFound(f"segment {self._segment.key}: metadata name no part from {offset} on")

    async def fill(self, file: SegmentFile, scan: SegmentScan, holes: Sequence[OffsetRange], end_offset: int) -> None:
        """Write what there is from the first of `holes` on, where `scan` ends, and batches without records between; all
        of it is flushed.

        Raises: Unavailable, also when a part is not there any more that was found before; Conflict, DiskFull,
        FlushLost.
        """
        begin = position = SEGMENT_HEADER_BYTES + scan.position
        background = partial(self._context.threads.change_file, file)
        await background(lambda: save_rest(file, begin, file.size_bytes, holes[0][0]))
        file.truncate(begin)
        position += len(first := self._empty(holes[0]))
        try:
            for hole, until in zip(holes, [*(base_offset for base_offset, _ in holes[1:]), end_offset], strict=True):
                if hole is not holes[0]:
                    batches = self._empty(hole)
                    await background(partial(file.put_back, position, batches))
                    position += len(batches)
                async for found in self._read(hole[1], until):
                    await background(partial(file.put_back, position, found.data))
                    position += len(found.data)
                    self._context.stats.healed_bytes += len(found.data)
        except (Corrupt, NotFound) as error:
            raise Unavailable(f"{error}; a moment ago it was there") from error
        await background(lambda: file.sync(with_names=True))
        await background(lambda: file.put_back(begin, first))
        await background(file.sync)

    def _empty(self, hole: OffsetRange) -> bytes:
        return encode_empty_batches(*hole, epoch=self._segment.key.epoch)


def save_rest(file: SegmentFile, position: int, end_position: int, offset: int) -> None:
    """Blocking: keep what lies from `position`, where `offset` belongs, up to `end_position` under another name, for a
    human, unless there is nothing. What an attempt kept that a crash cut short is not replaced by what that attempt
    wrote; what the file has behind another hole has a name of its own."""
    rest = (file.read(at, min(_READ_BYTES, end_position - at)) for at in range(position, end_position, _READ_BYTES))
    kept = file.path.with_suffix(f".{offset}{GIVEN_UP_SUFFIX}")
    if position < end_position and not kept.exists():
        write_durably(kept, rest)
