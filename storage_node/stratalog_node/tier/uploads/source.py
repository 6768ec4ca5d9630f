"""Reads what is to be uploaded: new batches from the local copy, or where a retired node's directory is read; committed
ones from the local copy or from the store.

Loop task; files are read on the disk threads, large parts are checked on the encoder's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from stratalog.formats.batches.record_batch import walk
from stratalog.formats.batches.record_times import BatchTimes
from stratalog.formats.bucket.part import PART_HEADER_BYTES, PartHeader, PartIndex
from stratalog.formats.fields import Buffer
from stratalog.machines.tiering.upload_events import Piece, TooLarge, UploadLimits
from stratalog.model.batch import BatchHeader
from stratalog.model.errors import Corrupt, NotFound, Unavailable
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import RemotePart, Segment
from stratalog.objects.reused_buffers import ReusedBuffers
from stratalog.objects.store import ObjectStore
from stratalog.stored.remote.parts import check_part_header, check_part_index, check_whole_part
from stratalog_node.shards.copies.shard_view import LogRange, Shards, ShardView
from stratalog_node.tier.uploads.encoder import Encoder
from stratalog_node.tier.uploads.ledger import PartLedger
from stratalog_node.tier.uploads.mounted_copies import MountedCopies

_SMALL_PART_BYTES = 64 << 10
"""A part up to this size is read whole when its header and index are wanted: one request instead of two."""


class LocalCopyAway(Unavailable):
    """This node's disk does not give what is to be uploaded: that says nothing about the store, or other segments."""


@dataclass(frozen=True, slots=True)
class PieceData:
    """Whole batches `[base_offset, end_offset)` of a piece, CRC checked, and the segment's digest before them."""

    piece: Piece
    base_offset: int
    end_offset: int
    data: Buffer
    headers: Sequence[BatchHeader]
    digest_before: bytes
    is_mounted: bool = False
    """From a retired node's directory."""
    times: Sequence[BatchTimes] | None = None
    """Times of the records of each batch, if the batches were opened."""


class PieceReader:
    """Every read of a segment's bytes on their way up."""

    def __init__(
        self,
        shards: Shards,
        store: ObjectStore,
        ledger: PartLedger,
        encoder: Encoder,
        limits: UploadLimits,
        mounted: MountedCopies,
        cluster_id: str,
    ) -> None:
        self._cluster_id = cluster_id
        # Half as much again as may be in flight: a buffer is somewhat larger than what is read into it.
        self._buffers = ReusedBuffers(limits.in_flight_bytes * 3 // 2)
        self._timeout_ms = limits.call_timeout_ms
        self._shards = shards
        self._mounted = mounted
        self._store = store
        self._ledger = ledger
        self._encoder = encoder

    async def read(self, piece: Piece, segment: Segment) -> PieceData | TooLarge | None:
        """The bytes of a piece, never more than its `max_bytes`; None when there is nothing below min(HW, LSO) yet.

        `segment` is what is known of the piece's. Raises: Corrupt, NotFound, LocalCopyAway, what the store raises; of
        a mounted copy DirectoryAway, PeerRefused.
        """
        self._buffers.keep()
        if piece.replaces:
            return await self._read_run(piece)
        view = self._local_view(piece.key)
        if view is None:
            found, limit = await self._mounted.read(segment, piece), segment.end_offset or 0
        else:
            found = await self._read_locally(view, piece.key, piece.base_offset, piece.max_bytes, at_least_one=False)
            limit = view.upload_limit(piece.key)
        if found.needed_bytes:
            return TooLarge(piece.key, found.needed_bytes)
        if not found.headers:
            return None
        # F26: what is above the limit may yet be taken back. The shard promises it; a broken promise stops here.
        assert found.base_offset == piece.base_offset, f"{piece.key}: read from {found.base_offset}, asked otherwise"
        assert found.end_offset <= limit, f"{piece.key}: read up to {found.end_offset}, only {limit} is committed"
        digest = await self._digest_at(piece.key, piece.base_offset, segment.remote.parts)
        is_mounted = view is None
        return PieceData(
            piece, found.base_offset, found.end_offset, found.data, found.headers, digest, is_mounted, found.times
        )

    # Digests and indexes --------------------------------------------------------------------------------------------
    async def _digest_at(self, key: SegmentKey, offset: int, parts: Sequence[RemotePart]) -> bytes:
        known = self._ledger.digest_at(key, offset)
        if known is None:
            if not parts or parts[-1].end_offset != offset:
                raise NotFound(f"segment {key}: no committed part ends at {offset}: read its metadata again")
            known = (await self.header(key, parts[-1])).digest_after
            self._ledger.note_digest(key, offset, known)
        return known

    async def header(self, key: SegmentKey, part: RemotePart) -> PartHeader:
        """A committed part's header, from the store. Raises: Corrupt when it is another part's."""
        data = await self._get(part, 0, PART_HEADER_BYTES)
        return check_part_header(data, self._cluster_id, key, part)

    async def index(self, key: SegmentKey, part: RemotePart) -> PartIndex:
        """A committed part's header and index: remembered, or from the store."""
        known = self._ledger.index_at(key, part.base_offset, part.end_offset)
        if known is not None:
            return known
        if part.size_bytes <= _SMALL_PART_BYTES:
            data = await self._get(part, 0, part.size_bytes)
            header = check_part_header(data, self._cluster_id, key, part)
            index_bytes: bytes | memoryview = memoryview(data)[header.index_position :]
        else:
            header = await self.header(key, part)
            index_bytes = await self._get(part, header.index_position, header.index_size_bytes)
        index = check_part_index(index_bytes, header, part)
        self._ledger.note_index(key, index)
        return index

    # Parts that move ------------------------------------------------------------------------------------------------
    async def _read_run(self, piece: Piece) -> PieceData:
        run = piece.replaces
        view = self._local_view(piece.key)
        if view is not None:
            try:
                return await self._read_run_locally(piece, view)
            except (Corrupt, NotFound, LocalCopyAway):
                pass  # what is in the store was checked when it went there: it is as good
        data = bytearray()  # part by part, so that no more is held than the run, and the part just read
        headers: list[BatchHeader] = []
        digest_before = b""
        for part in run:
            body = await self._get(part, 0, part.size_bytes)
            index = await self._encoder.run(part.size_bytes, check_whole_part, body, self._cluster_id, piece.key, part)
            digest_before = digest_before or index.header.digest_before
            batches = memoryview(body)[PART_HEADER_BYTES : index.header.index_position]
            headers += (header for _, header in walk(batches, source=part.object_key, verify=False))
            data += batches
            del batches, body
        return PieceData(piece, run[0].base_offset, run[-1].end_offset, data, headers, digest_before)

    async def _read_run_locally(self, piece: Piece, view: ShardView) -> PieceData:
        run = piece.replaces
        next_offset, end_offset = run[0].base_offset, run[-1].end_offset
        data = bytearray()
        headers: list[BatchHeader] = []
        times: list[BatchTimes] = []
        left_bytes = piece.max_bytes
        while next_offset < end_offset:
            found = await self._read_locally(view, piece.key, next_offset, max(left_bytes, 1), at_least_one=True)
            size = 0
            for header in found.headers:
                if header.end_offset > end_offset:
                    break
                size += header.size_bytes
                headers.append(header)
            if not size:
                raise NotFound(f"segment {piece.key}: local copy lacks a batch at {next_offset} below {end_offset}")
            times += (found.times or ())[: len(headers) - len(times)]
            data += memoryview(found.data)[:size]
            del found
            next_offset = headers[-1].end_offset
            left_bytes -= size
        digest = self._ledger.digest_at(piece.key, run[0].base_offset)
        if digest is None:
            digest = (await self.header(piece.key, run[0])).digest_before
        known = times if len(times) == len(headers) else None
        return PieceData(piece, run[0].base_offset, end_offset, data, headers, digest, times=known)

    async def _read_locally(
        self, view: ShardView, key: SegmentKey, offset: int, max_bytes: int, *, at_least_one: bool
    ) -> LogRange:
        """Raises: Corrupt, NotFound, LocalCopyAway."""
        try:
            return await view.read_committed_range(
                key, offset, max_bytes, at_least_one=at_least_one, take_buffer=self._buffers.allocate
            )
        except (Unavailable, OSError) as error:
            raise LocalCopyAway(f"segment {key} cannot be read on this node now: {error}") from error

    async def _get(self, part: RemotePart, position: int, size_bytes: int) -> bytes:
        """Bytes of a part, `position` from its start. Raises: Unavailable after the time limit."""
        start = part.position + position
        try:
            async with asyncio.timeout(self._timeout_ms / 1_000):
                return await self._store.get_range(part.object_key, start, start + size_bytes)
        except TimeoutError as error:
            raise Unavailable(f"get {part.object_key}: no answer within {self._timeout_ms} ms") from error

    def _local_view(self, key: SegmentKey) -> ShardView | None:
        view = self._shards.get(key.shard_key)
        return view if view is not None and view.has_local(key) else None
