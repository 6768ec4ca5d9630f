"""Performs one upload: read, build, put under a new attempt name, commit.

Loop task; one call per task of the uploader. The name is protected from the sweep until the commit is known. The bytes
are let go as soon as the put has answered: a meta service that is away holds up no memory (F80).
"""

from __future__ import annotations

import asyncio
from asyncio import Task
from collections.abc import Callable, Sequence

from stratalog.formats.bucket.bundle import BundleHeader
from stratalog.formats.fields import Buffer
from stratalog.machines.tiering.bundles import run_starts
from stratalog.machines.tiering.chunk_packing import is_to_pack
from stratalog.machines.tiering.upload_events import (
    Gone,
    NothingThere,
    Piece,
    PieceOutcome,
    TooLarge,
    Unreadable,
    UploadLimits,
    Void,
)
from stratalog.model.errors import Corrupt, NotFound, StratalogError
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Lock, PartCommit, PartReplacement
from stratalog.model.segment import RemotePart, Segment
from stratalog.objects.store import ObjectStore
from stratalog.telemetry.logs import logger
from stratalog_node.shards.copies.peer_reads import PeerRefused
from stratalog_node.tier.store.stats import TierStats
from stratalog_node.tier.uploads.attempts import Attempts
from stratalog_node.tier.uploads.committer import Change, Committed, Committer, outcome_of
from stratalog_node.tier.uploads.ledger import PartLedger
from stratalog_node.tier.uploads.mounted_copies import DirectoryAway
from stratalog_node.tier.uploads.packer import Packer
from stratalog_node.tier.uploads.parts import BuiltPart, PartBuilder
from stratalog_node.tier.uploads.puts import PutRefused, RequestRefused, put
from stratalog_node.tier.uploads.segment_records import SegmentRecords
from stratalog_node.tier.uploads.source import LocalCopyAway, PieceReader

_READS_AT_A_TIME = 8
_OUTCOMES_PER_STEP = 512

log = logger(__name__)


class TaskOrder:
    """Where a task stands among those before and behind it, of Direct segments. Made for each task."""

    def __init__(
        self, cut: Callable[[tuple[tuple[SegmentKey, int, int], ...]], None], before: Sequence[Task[None]]
    ) -> None:
        """`cut` gets the ends of the ranges, so that what follows them may be read; `before` end first."""
        self._cut = cut
        self._before = before
        self.continues = bool(before)
        """Whether ranges of it continue those of other tasks."""

    def has_read(self, ends: Sequence[tuple[SegmentKey, int, int]]) -> None:
        if ends:
            self._cut(tuple(ends))

    async def turn(self) -> None:
        """Return once all that this task continues has ended, in whatever way."""
        if self._before:
            await asyncio.wait(self._before)


class Sender:
    """Raises PutDoubtful, PutRefused, MetaAway, DirectoryAway, Fenced; otherwise an outcome for each piece."""

    def __init__(
        self,
        *,
        cluster_id: str,
        node_id: int,
        store: ObjectStore,
        reader: PieceReader,
        builder: PartBuilder,
        committer: Committer,
        attempts: Attempts,
        known: SegmentRecords,
        ledger: PartLedger,
        limits: UploadLimits,
        stats: TierStats,
    ) -> None:
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._store = store
        self._reader = reader
        self._builder = builder
        self._packer = Packer(stats)
        self._committer = committer
        self._attempts = attempts
        self._known = known
        self._ledger = ledger
        self._limits = limits
        self._stats = stats
        self._refused_classes: set[str] = set()
        """Storage classes that the store has refused."""

    def close(self) -> None:
        self._packer.close()

    async def send_chunk(self, lock: Lock, piece: Piece, order: TaskOrder) -> tuple[PieceOutcome, ...]:
        attempt = self._attempts.next_attempt()
        built = await self._prepare(piece, attempt)
        if not isinstance(built, BuiltPart):
            return (built,)
        self._has_read(order, (built,))
        slim = BuiltPart(piece, built.identity, (), built.index)
        packed = await self._pack(built)
        body: Sequence[Buffer] = built.buffers if packed is None else [packed]
        is_packed = packed is not None
        del built, packed
        name = self._attempts.packed if is_packed else self._attempts.chunk
        object_key = name(piece.key, slim.base_offset, slim.end_offset, lock.epoch, attempt)
        part = RemotePart(object_key, 0, slim.size_bytes, slim.base_offset, slim.end_offset)
        with self._attempts.in_flight(object_key):
            size = await self._put_chunk(piece.key, object_key, body)
            del body
            outcomes = await self._commit(lock, [(slim, part)], order)
        self._stats.chunks_put += 1
        self._stats.put_bytes += size
        if is_packed:
            self._stats.chunks_packed += 1
            self._stats.packed_bytes += size
            self._stats.unpacked_bytes += slim.size_bytes
        return outcomes

    async def _pack(self, built: BuiltPart) -> bytes | None:
        """What is put in place of the part, if its topic asks for compression and it pays."""
        piece = built.piece
        segment = self._known.get(piece.key)
        is_wanted = is_to_pack(
            built.size_bytes,
            is_asked_for=self._known.is_packing(piece.key),
            has_waiting_producers=segment is not None and segment.is_direct and not piece.replaces,
        )
        if not is_wanted:
            return None
        return await self._packer.pack(built.buffers, built.index.header.index_position, source=f"segment {piece.key}")

    async def _put_chunk(self, key: SegmentKey, object_key: str, body: Sequence[Buffer]) -> int:
        """In the class of its topic. A server that does not have it gets the chunk in its default class: one topic's
        setting must not hold up uploads."""
        timeout_ms, wanted = self._limits.put_timeout_ms, self._known.storage_class(key)
        if wanted and wanted not in self._refused_classes:
            try:
                return await put(self._store, object_key, body, timeout_ms, wanted)
            except RequestRefused as error:
                size = await put(self._store, object_key, body, timeout_ms)
                self._refused_classes.add(wanted)
                log.warning(
                    "the object store does not take a storage class; data is put in its default class until the next "
                    "start of this node",
                    storage_class=wanted,
                    segment=str(key),
                    error=str(error),
                )
                return size
        return await put(self._store, object_key, body, timeout_ms)

    async def send_bundle(self, lock: Lock, pieces: Sequence[Piece], order: TaskOrder) -> tuple[PieceOutcome, ...]:
        attempt = self._attempts.next_attempt()
        outcomes: list[PieceOutcome] = []
        parts: list[BuiltPart] = []
        for start in range(0, len(pieces), _READS_AT_A_TIME):
            some = pieces[start : start + _READS_AT_A_TIME]
            for built in await asyncio.gather(*(self._prepare(piece, attempt) for piece in some)):
                if isinstance(built, BuiltPart):
                    parts.append(built)
                else:
                    outcomes.append(built)
        if not parts:
            return tuple(outcomes)
        self._has_read(order, parts)
        number = self._attempts.next_bundle_number()
        object_key = self._attempts.bundle(lock.epoch, number, attempt)
        header = BundleHeader(self._cluster_id, self._node_id, lock.epoch, number, attempt)
        body, entries = await self._builder.bundle(header, parts)
        placed = [
            (
                BuiltPart(part.piece, part.identity, (), part.index),
                RemotePart(object_key, entry.position, entry.size_bytes, entry.base_offset, entry.end_offset),
            )
            for part, entry in zip(parts, entries, strict=True)
        ]
        del parts
        with self._attempts.in_flight(object_key):
            size = await put(self._store, object_key, body, self._limits.put_timeout_ms)
            del body
            outcomes += await self._commit(lock, placed, order)
        self._stats.bundles_put += 1
        self._stats.put_bytes += size
        return tuple(outcomes)

    async def _prepare(self, piece: Piece, attempt: int) -> BuiltPart | PieceOutcome:
        segment = self._known.get(piece.key)
        identity = self._known.identity(piece.key)
        if segment is None or identity is None:
            return Gone(piece.key)
        try:
            data = await self._reader.read(piece, segment)
            if data is None:
                return NothingThere(piece.key)
            if isinstance(data, TooLarge):
                return data
            built = await self._builder.part(data, identity, attempt)
        except (Corrupt, NotFound, PeerRefused, LocalCopyAway) as error:
            return Unreadable(piece.key, str(error), is_final=False)
        except DirectoryAway:
            raise
        except StratalogError as error:
            raise PutRefused(str(error)) from error
        except Exception as error:
            # One segment's trouble must not hold up the others of its bundle (F48).
            self._stats.tasks_crashed += 1
            log.exception("segment cannot be read for its upload", segment=str(piece.key))
            return Unreadable(piece.key, f"unexpected error: {error!r}", is_final=False)
        if data.is_mounted and (why := _other_end(built, segment)) is not None:
            return Unreadable(piece.key, why, is_final=True)
        following = self._ledger.digest_at(piece.key, built.end_offset) if piece.replaces else None
        if following is not None and following != built.index.header.digest_after:
            reason = (
                f"offsets {built.base_offset} to {built.end_offset} read for a move end with digest "
                f"{built.index.header.digest_after.hex()}, what follows continues from {following.hex()}: local "
                f"copy and "
                "object store differ, run `stratalog verify`"
            )
            return Unreadable(piece.key, reason, is_final=True)
        return built

    def _has_read(self, order: TaskOrder, parts: Sequence[BuiltPart]) -> None:
        """What follows these ranges continues their digests, also before they are committed."""
        ends = []
        for built in parts:
            segment = self._known.get(built.piece.key)
            if segment is not None and segment.is_direct and not built.piece.replaces:
                self._ledger.note_digest(built.piece.key, built.end_offset, built.index.header.digest_after)
                ends.append((built.piece.key, built.end_offset, built.index.header.data_size_bytes))
        order.has_read(ends)

    # Committing -----------------------------------------------------------------------------------------------------
    async def _commit(
        self, lock: Lock, placed: Sequence[tuple[BuiltPart, RemotePart]], order: TaskOrder
    ) -> tuple[PieceOutcome, ...]:
        await order.turn()
        outcomes: list[PieceOutcome] = []
        if order.continues:
            outcomes, placed = self._without_void(placed)
            if not placed:
                return tuple(outcomes)
        changes: list[Change] = [
            PartReplacement(built.piece.key, built.piece.replaces, (part,))
            if built.piece.replaces
            else PartCommit(built.piece.key, built.piece.base_offset, part)
            for built, part in placed
        ]
        answers = await self._committer.commit(lock, changes)
        for number, (committed, (built, part)) in enumerate(zip(answers, placed, strict=True), 1):
            if number % _OUTCOMES_PER_STEP == 0:
                await asyncio.sleep(0)
            if committed.refusal is None:
                self._note(committed, built, part)
            if committed.segment is not None:
                self._known.put(committed.segment)
            outcomes.append(outcome_of(committed))
        return tuple(outcomes)

    def _without_void(
        self, placed: Sequence[tuple[BuiltPart, RemotePart]]
    ) -> tuple[list[PieceOutcome], list[tuple[BuiltPart, RemotePart]]]:
        """A range whose predecessor was not committed cannot be: the metadata would refuse it."""
        void: list[PieceOutcome] = []
        left = []
        for built, part in placed:
            segment = self._known.get(built.piece.key)
            if segment is None or built.piece.replaces:
                left.append((built, part))
            elif max(segment.remote.commit_offset, segment.base_offset) < built.base_offset:
                void.append(Void(built.piece.key))
            else:
                left.append((built, part))
        return void, left

    def _note(self, committed: Committed, built: BuiltPart, part: RemotePart) -> None:
        key = built.piece.key
        if built.piece.replaces:
            self._stats.parts_moved += 1
        else:
            self._stats.parts_committed += 1
            self._stats.committed_bytes += part.size_bytes
            self._ledger.note_digest(key, part.end_offset, built.index.header.digest_after)
        if not self._known.is_bundle_key(part.object_key):
            self._ledger.note_index(key, built.index)
        if committed.segment is None:
            return
        remote = committed.segment.remote
        starts = run_starts(remote.parts, self._known.is_bundle_key, self._limits.chunk_bytes)
        edges = [remote.parts[index].base_offset for index in starts if index < len(remote.parts)]
        self._ledger.keep_digests(key, edges, remote.commit_offset)


def _other_end(built: BuiltPart, segment: Segment) -> str | None:
    """Why the last part of a sealed segment is not what was sealed; None if it is, or is not the last. The sealing node
    has read back its own copy, but a directory that was away since then is unchecked. So this is checked before a
    commit."""
    seal, digest = segment.seal, built.index.header.digest_after
    if seal is None or built.end_offset != seal.end_offset or digest == seal.digest:
        return None
    return (
        f"offsets {built.base_offset} to {built.end_offset} in the directory of a retired node end with digest "
        f"{digest.hex()}, the seal record says {seal.digest.hex()}: put the right file back there, and start what "
        "reads it again"
    )
