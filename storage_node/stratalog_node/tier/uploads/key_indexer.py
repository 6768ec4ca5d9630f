"""Builds the key index of a segment that is being completed, for topics with `index.keys=true`, and puts its runs.

The segment's parts are read once more, from the local copy where there is one, and their keys are found on the tier's
thread, 8 MiB of records at a time. One segment at a time, so that memory is a part, a group and a run (some 150 MiB at
worst), however many segments end together. A run that is full is put before the next one begins.
A batch whose records cannot be opened is the client's doing, and no reason not to complete the segment: it then has no
key index, and one line of the log says so.
Loop task. numpy is loaded when the first such topic comes, and not before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from stratalog.formats.bucket.key_index import KeyRun
from stratalog.formats.bucket.part import PART_HEADER_BYTES
from stratalog.formats.segments.digest import object_digest
from stratalog.machines.tiering.upload_events import Piece, UploadLimits
from stratalog.model.errors import Corrupt
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import RemotePart, SealRecord, Segment
from stratalog.objects.store import ObjectStore
from stratalog.telemetry.logs import logger
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.tier.store.stats import TierStats
from stratalog_node.tier.uploads.attempts import Attempts
from stratalog_node.tier.uploads.encoder import Encoder
from stratalog_node.tier.uploads.puts import put
from stratalog_node.tier.uploads.source import PieceData, PieceReader

if TYPE_CHECKING:
    from stratalog.formats.batches.batch_headers import BatchHeaders
    from stratalog.formats.bucket.key_runs import KeyEntries, KeysFound

RUN_ENTRIES: Final = 1 << 20
"""A run with this many entries is put, and the next one begun (docs/formats.md section 16)."""
_RUN_WEIGHT: Final = 1 << 20

log = logger(__name__)


@dataclass(slots=True)
class _Building:
    """An index under way. Runs are named and put as of one attempt."""

    key: SegmentKey
    seal: SealRecord
    lock_epoch: int
    attempt: int
    in_flight: ExitStack
    entries: KeyEntries
    from_offset: int
    runs: list[KeyRun]


class KeyIndexer:
    """Raises PutDoubtful, PutRefused; and of reading a part Corrupt, NotFound, and whatever the store raises."""

    def __init__(
        self,
        catalog: Catalog,
        store: ObjectStore,
        reader: PieceReader,
        attempts: Attempts,
        encoder: Encoder,
        limits: UploadLimits,
        stats: TierStats,
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._reader = reader
        self._attempts = attempts
        self._encoder = encoder
        self._put_timeout_ms = limits.put_timeout_ms
        self._stats = stats
        self._one_at_a_time = asyncio.Lock()

    async def put_runs(
        self,
        segment: Segment,
        seal: SealRecord,
        parts: Sequence[RemotePart],
        lock_epoch: int,
        attempt: int,
        in_flight: ExitStack,
    ) -> tuple[KeyRun, ...]:
        """The runs of the segment's key index, which are in the store now; none where it gets no index. They are
        protected from the sweep until `in_flight` is closed."""
        key = segment.key
        if not parts or not self._is_wanted(key):
            return ()
        from stratalog.formats.bucket.key_runs import KeyEntries

        async with self._one_at_a_time:
            building = _Building(key, seal, lock_epoch, attempt, in_flight, KeyEntries(), seal.base_offset, [])
            for number, part in enumerate(parts):
                data = await self._reader.read(Piece(key, part.base_offset, part.size_bytes, (part,)), segment)
                assert isinstance(data, PieceData), "a piece that is committed is read whole"
                if not await self._add_part(building, number, data):
                    return ()
            await self._put_run(building, seal.end_offset)
        self._stats.key_indexes_built += 1
        return tuple(building.runs)

    def _is_wanted(self, key: SegmentKey) -> bool:
        if self._catalog.topic_by_id(key.topic_id) is None:
            return False  # deleted meanwhile
        return self._catalog.topic_settings(key.topic_id).index_keys

    async def _add_part(self, building: _Building, number: int, data: PieceData) -> bool:
        """The keys of one part. False when a batch of it cannot be opened."""
        groups = await self._encoder.run(len(data.data), _groups_of, data)
        while True:
            try:
                found = await self._encoder.run(len(data.data), next, groups, None)
            except Corrupt as error:
                log.warning(
                    "segment gets no key index, a client's batch cannot be opened",
                    segment=str(building.key),
                    error=str(error),
                )
                return False
            if found is None:
                return True
            headers, keys = found
            if building.entries.count >= RUN_ENTRIES and keys.hashes.size:
                await self._put_run(building, int(headers.longs("base_offset")[0]))
            sizes = headers.ends - headers.positions
            positions = headers.positions + PART_HEADER_BYTES
            await self._encoder.run(len(data.data), building.entries.add, keys, number, positions, sizes)

    async def _put_run(self, building: _Building, to_offset: int) -> None:
        count = building.entries.count
        weight = _RUN_WEIGHT + count
        body, digest, buckets = await self._encoder.run(weight, _run_of, building.entries, building.seal.digest)
        name = self._attempts.keys(building.key, building.from_offset, to_offset, building.lock_epoch, building.attempt)
        building.in_flight.enter_context(self._attempts.in_flight(name))
        await put(self._store, name, [body], self._put_timeout_ms)
        building.runs.append(KeyRun(name, len(body), digest, buckets, count, building.from_offset, to_offset))
        building.from_offset = to_offset


def _run_of(entries: KeyEntries, segment_digest: bytes) -> tuple[bytes, bytes, int]:
    """Its bytes, their digest, how many buckets it has."""
    pages, buckets = entries.take_run(segment_digest)
    body = b"".join(pages)
    return body, object_digest(body), buckets


def _groups_of(data: PieceData) -> Iterator[tuple[BatchHeaders, KeysFound]]:
    from stratalog.formats.batches.batch_headers import BatchHeaders
    from stratalog.formats.bucket.key_runs import find_keys

    positions = [0, *accumulate(header.size_bytes for header in data.headers)]
    body = bytes(data.data)
    return iter(find_keys(body, BatchHeaders(body, positions), source=str(data.piece.key)))
