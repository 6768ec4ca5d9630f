"""The uploads of one node: the real uploader machine over the simulated object store, with the write lock it needs.

Each task of the machine is one of this process: read, put under a name that no other try has, commit until there is an
answer. What is not known to be committed is put again.
"""

from __future__ import annotations

from typing import Any, assert_never

from stratalog.machines.tiering import upload_events
from stratalog.machines.tiering.mounted_uploads import MountedCopy, most_unsent_bytes, mounted_copy
from stratalog.machines.tiering.uploader import Uploader
from stratalog.model.commands import table_commands as commands
from stratalog.model.errors import (
    AlreadyExists,
    Fenced,
    NotFound,
    OutcomeUnknown,
    Rejected,
    StratalogError,
    Unavailable,
)
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Lock, PartCommit, PartReplacement, life_name
from stratalog.model.segment import RemotePart, RemoteState, Segment
from stratalog_sim.environment.disk import Batch, digest_of, extend_digest
from stratalog_sim.environment.process import Ask, Sleep, Task
from stratalog_sim.environment.store import Get, Put, StoredManifest, StoredPart
from stratalog_sim.node.proofs import table_of
from stratalog_sim.node.serving import PeerRead
from stratalog_sim.node.shard import LeadingNode

LIMITS = upload_events.UploadLimits(
    chunk_bytes=60,
    bundle_bytes=4_000,
    interval_ms=400,
    in_flight_bytes=16_000,
    put_timeout_ms=500,
    backoff_ms=20,
    backoff_cap_ms=300,
    hold_ms=500,
    merge_parts=3,
)
_LEASE_MS = 1_500
_COMMITS = 6
_PEER_MS = 200
_RETRY_MS = 40
_DOUBT_MS = 10_000
"""Longer than any put, commit and repetition of it may be on its way."""


class DirectoryAway(Exception):
    """The process that reads a retired node's directory gave no answer."""


def is_bundle_key(key: str) -> bool:
    return key.startswith("bundle")


class Uploads:
    def __init__(self, node: LeadingNode) -> None:
        self._node = node
        self._machine = Uploader(LIMITS, is_bundle_key)
        self.lock: Lock | None = None
        self._attempt = 0
        self._in_flight: dict[str, int] = {}
        """By name of an object: until when it is unknown whether the object will be committed."""
        self._wake_ms: int | None = None
        self.stalled_until_ms = 0
        """An upload that begins before this time waits until then."""
        self._mounted: dict[SegmentKey, MountedCopy | None] = {}
        """Where what the machine knows is read, if not on this disk."""

    def begin(self) -> None:
        self.look_at_all()
        self._node.spawn(self._hold_lock())

    @property
    def store_away_ms(self) -> int:
        return self._machine.describe(self._node.scheduler.now_ms).store_away_ms

    def is_protected(self, object_key: str) -> bool:
        return self._in_flight.get(object_key, 0) > self._node.scheduler.now_ms

    # The machine --------------------------------------------------------------------------------------------------
    def look_at_all(self) -> None:
        for shard in self._node.view.shards.values():
            for segment in shard.segments.values():
                self.look_at(segment.key)

    def look_at(self, key: SegmentKey) -> None:
        """Metadata of the segment changed."""
        node = self._node
        segment = node.view.segment(key)
        if segment is None or segment.remote.state is RemoteState.COMPLETE or not node.uploads_segment(segment):
            self._mounted.pop(key, None)
            if self._machine.knows(key):
                self.step(upload_events.SegmentGone(key))
            return
        mounted = self.mounted(segment)
        if self._mounted.get(key) not in (None, mounted):
            self.step(upload_events.SegmentGone(key))
        self._mounted[key] = mounted
        self.step(
            upload_events.SegmentSeen(
                key,
                segment.seal is not None,
                segment.end_offset,
                segment.remote.commit_offset,
                segment.remote.parts,
                key in node.disk.files or mounted is not None,
                self.unsent_bytes(segment),
                directories=mounted.nodes if mounted is not None else None,
                away=mounted.away if mounted is not None else None,
            )
        )

    def mounted(self, segment: Segment) -> MountedCopy | None:
        node = self._node
        return None if segment.key in node.disk.files else mounted_copy(segment, node.node_id, node.view.mount_of)

    def grew(self, key: SegmentKey) -> None:
        segment = self._node.view.segment(key)
        if segment is not None and self._machine.knows(key):
            self.step(upload_events.CommittedGrew(key, self.unsent_bytes(segment)))

    def unsent_bytes(self, segment: Segment) -> int:
        if self.mounted(segment) is not None:
            return most_unsent_bytes(segment)
        shard = self._node.shards.get(segment.key.shard_key)
        if shard is None:
            return 0
        begin = max(segment.base_offset, self._machine.commit_offset(segment.key) or 0, segment.remote.commit_offset)
        return sum(batch.size_bytes for batch in shard.committed_batches(segment.key, begin))

    def step(self, event: upload_events.UploaderEvent) -> None:
        effects = self._machine.step(event, self._node.scheduler.now_ms)
        self._machine.check_invariants()
        for effect in effects:
            self._perform(effect)
        wake_ms = self._machine.next_wake_ms(self._node.scheduler.now_ms)
        if wake_ms is not None and (self._wake_ms is None or wake_ms < self._wake_ms):
            self._wake_ms = wake_ms
            delay_ms = max(1, wake_ms - self._node.scheduler.now_ms)
            self._node.scheduler.after(delay_ms, self._node, self._time_passed)

    def _time_passed(self) -> None:
        self._wake_ms = None
        self.step(upload_events.TimePassed())

    def _perform(self, effect: upload_events.UploaderEffect) -> None:
        match effect:
            case upload_events.SendChunk(task, piece):
                self._node.spawn(self._guarded(task, self._send(task, (piece,), "chunk")))
            case upload_events.SendBundle(task, pieces):
                self._node.spawn(self._guarded(task, self._send(task, pieces, "bundle")))
            case upload_events.Publish(task, key, parts):
                self._node.spawn(self._guarded(task, self._publish(task, key, tuple(parts))))
            case upload_events.CancelTask():
                pass  # the task continues, and learns that the segment is gone
            case upload_events.ReportStore() | upload_events.ReportHeld():
                self._node.tell(f"{effect}")
            case _:
                assert_never(effect)

    def _guarded(self, task: int, work: Task) -> Task:
        try:
            while (left_ms := self.stalled_until_ms - self._node.scheduler.now_ms) > 0:
                yield Sleep(left_ms)
            yield from work
        except DirectoryAway as error:
            self._fail(task, upload_events.TaskFailure.DIRECTORY_AWAY, error)
        except AlreadyExists as error:
            self._fail(task, upload_events.TaskFailure.DOUBTFUL, error)
        except Fenced as error:
            self._fail(task, upload_events.TaskFailure.LOCK_LOST, error)
            self._let_go()
        except OutcomeUnknown as error:
            self._fail(task, upload_events.TaskFailure.DOUBTFUL, error)
        except Unavailable as error:
            self._fail(task, upload_events.TaskFailure.REFUSED, error)
        except Rejected as error:
            self._fail(task, upload_events.TaskFailure.REFUSED, error)

    def _fail(self, task: int, failure: upload_events.TaskFailure, error: Exception) -> None:
        self.step(upload_events.TaskFailed(task, failure, str(error), self._node.scheduler.rng.random()))

    # The lock -------------------------------------------------------------------------------------------------------
    def _hold_lock(self) -> Task:
        node = self._node
        name, holder = f"tier/{node.node_id}", life_name(node.node_id, node.life.epoch)
        while True:
            try:
                lock = yield node.ask_meta(commands.AcquireLock(name, holder, _LEASE_MS))
                if self.lock is not None and self.lock.epoch != lock.epoch:
                    self._let_go()
                if self.lock is None:
                    self.lock = lock
                    self.step(upload_events.LockGained(lock.epoch))
                self.lock = lock
            except Rejected:
                if self.lock is not None:
                    self._let_go()
            except StratalogError:
                pass
            yield Sleep(_LEASE_MS // 3)

    def _let_go(self) -> None:
        self.lock = None
        self.step(upload_events.LockLost())

    def _held(self) -> Lock:
        if self.lock is None:
            raise Fenced("the write lock is lost")
        return self.lock

    # Sending --------------------------------------------------------------------------------------------------------
    def _send(self, task: int, pieces: tuple[upload_events.Piece, ...], kind: str) -> Task:
        lock, outcomes = self._held(), list[upload_events.PieceOutcome]()
        self._attempt += 1
        read: list[tuple[upload_events.Piece, StoredPart]] = []
        for piece in pieces:
            found = yield from self._read(piece)
            if isinstance(found, StoredPart):
                read.append((piece, found))
            else:
                outcomes.append(found)
        if read:
            first = read[0][1]
            name = f"{kind}-n{self._node.node_id}.{lock.epoch}.{self._attempt}"
            if kind == "chunk":
                name += f"-e{first.key.epoch}-{first.batches[0].base_offset}-{first.batches[-1].end_offset}"
            self._in_flight[name] = self._node.scheduler.now_ms + _DOUBT_MS
            yield Ask("store", Put(name, tuple(part for _, part in read)), LIMITS.put_timeout_ms)
            outcomes += yield from self._commit(lock, name, read)
            del self._in_flight[name]
        self.step(upload_events.TaskEnded(task, tuple(outcomes)))

    def _read(self, piece: upload_events.Piece):  # type: ignore[no-untyped-def]  # a task with a result
        node = self._node
        segment, shard = node.view.segment(piece.key), node.shards.get(piece.key.shard_key)
        if segment is None:
            return upload_events.Gone(piece.key)
        if piece.replaces:
            parts: list[StoredPart] = []
            for one in piece.replaces:
                try:
                    body = yield Ask("store", Get(one.object_key))
                except NotFound as error:
                    return upload_events.Unreadable(piece.key, str(error), is_final=False)
                parts += [part for part in body if part.key == piece.key and _begins(part, one)]
            batches = tuple(batch for part in parts for batch in part.batches)
            return StoredPart(piece.key, batches, parts[0].digest_before, parts[-1].digest_after)
        if (mounted := self.mounted(segment)) is not None:
            return (yield from self._read_mounted(piece, segment, mounted))
        if shard is None:
            return upload_events.Gone(piece.key)
        file = node.disk.files.get(piece.key)
        taken: list[Batch] = []
        size = 0
        for batch in shard.committed_batches(piece.key, piece.base_offset):
            if taken and size + batch.size_bytes > piece.max_bytes:
                break
            taken.append(batch)
            size += batch.size_bytes
        if not taken or file is None or taken[0].base_offset != piece.base_offset:
            return upload_events.NothingThere(piece.key, self.unsent_bytes(segment))
        before = b""
        for batch in file.whole(piece.key):
            if batch.base_offset >= piece.base_offset:
                break
            before = extend_digest(before, batch)
        after = before
        for batch in taken:
            after = extend_digest(after, batch)
        return StoredPart(piece.key, tuple(taken), before, after)

    def _read_mounted(self, piece: upload_events.Piece, segment: Segment, mounted: MountedCopy):  # type: ignore[no-untyped-def]
        """From the first directory that is read."""
        if mounted.away is not None:
            raise DirectoryAway(mounted.away)
        assert segment.seal is not None
        host = self._node.view.reads_at(mounted.nodes[0]) or ""
        taken: list[Batch] = []
        offset = piece.base_offset
        while offset < segment.seal.end_offset and sum(batch.size_bytes for batch in taken) < piece.max_bytes:
            try:
                found = yield Ask(host, PeerRead(piece.key, offset), _PEER_MS)
            except StratalogError as error:
                raise DirectoryAway(str(error)) from error
            if not found or found[0].base_offset != offset:
                return upload_events.Unreadable(piece.key, f"the directory does not serve {offset}", is_final=False)
            taken += found
            offset = taken[-1].end_offset
        before = b""
        if piece.base_offset > segment.base_offset:
            last = segment.remote.parts[-1] if segment.remote.parts else None
            if last is None or last.end_offset != piece.base_offset:  # news of its own commit is on its way
                return upload_events.NothingThere(piece.key, most_unsent_bytes(segment))
            body = yield Ask("store", Get(last.object_key))
            before = next(part.digest_after for part in body if part.key == piece.key and _begins(part, last))
        after = before
        for batch in taken:
            after = extend_digest(after, batch)
        if offset == segment.seal.end_offset and after != segment.seal.digest:
            return upload_events.Unreadable(
                piece.key, "the directory has other batches than were sealed", is_final=True
            )
        return StoredPart(piece.key, tuple(taken), before, after)

    def _commit(self, lock: Lock, name: str, read: list[tuple[upload_events.Piece, StoredPart]]):  # type: ignore[no-untyped-def]
        appends: list[PartCommit] = []
        moves: list[PartReplacement] = []
        position = 0
        for piece, stored in read:
            size = sum(batch.size_bytes for batch in stored.batches)
            part = RemotePart(name, position, size, stored.batches[0].base_offset, stored.batches[-1].end_offset)
            position += size
            if piece.replaces:
                moves.append(PartReplacement(piece.key, piece.replaces, (part,)))
            else:
                appends.append(PartCommit(piece.key, piece.base_offset, part))
        outcomes: list[upload_events.PieceOutcome] = []
        if appends:
            answers = yield from self._repeat(commands.CommitParts(lock, tuple(appends)))
            outcomes += [self._outcome_of(one.segment, said) for one, said in zip(appends, answers, strict=True)]
        if moves:
            answers = yield from self._repeat(commands.ReplaceParts(lock, tuple(moves)))
            outcomes += [self._outcome_of(one.segment, said) for one, said in zip(moves, answers, strict=True)]
        return outcomes

    def _outcome_of(self, key: SegmentKey, answer: Segment | StratalogError) -> upload_events.PieceOutcome:
        refusal = answer if isinstance(answer, StratalogError) else None
        segment = self._node.view.segment(key) if isinstance(answer, StratalogError) else answer
        if segment is None or segment.deleted_ms is not None or segment.remote.state is RemoteState.COMPLETE:
            return upload_events.Gone(key)
        if refusal is not None and segment.remote.commit_offset <= (self._machine.commit_offset(key) or 0):
            return upload_events.Unreadable(key, f"the meta service refuses the commit: {refusal}", is_final=False)
        offset = max(segment.remote.commit_offset, segment.base_offset)
        shard = self._node.shards.get(key.shard_key)
        if self.mounted(segment) is not None:
            unsent = most_unsent_bytes(segment)
        else:
            unsent = sum(one.size_bytes for one in shard.committed_batches(key, offset)) if shard is not None else 0
        return upload_events.Moved(key, offset, segment.remote.parts, unsent, is_ours=refusal is None)

    def _repeat(self, command: commands.Command[Any]):  # type: ignore[no-untyped-def]
        """Ask until there is an answer: only for commands that are harmless when repeated."""
        for attempt in range(_COMMITS):
            try:
                return (yield self._node.ask_meta(command))
            except (OutcomeUnknown, Unavailable):
                if attempt == _COMMITS - 1:
                    raise
                yield Sleep(_RETRY_MS << attempt)
        raise AssertionError

    # Publishing -----------------------------------------------------------------------------------------------------
    def _publish(self, task: int, key: SegmentKey, parts: tuple[RemotePart, ...]) -> Task:
        lock = self._held()
        segment = self._node.view.segment(key)
        if segment is None or segment.seal is None:
            self.step(upload_events.TaskEnded(task, (upload_events.Gone(key),)))
            return
        stored: list[StoredPart] = []
        for one in parts:
            try:
                body = yield Ask("store", Get(one.object_key))
            except NotFound as error:
                self.step(upload_events.TaskEnded(task, (upload_events.Unreadable(key, str(error), is_final=False),)))
                return
            stored += [part for part in body if part.key == key and _begins(part, one)]
        batches = [batch for part in stored for batch in part.batches]
        if digest_of(batches) != segment.seal.digest:
            self.step(
                upload_events.TaskEnded(
                    task, (upload_events.Unreadable(key, "its parts are not the sealed segment", is_final=True),)
                )
            )
            return
        producers = table_of(self._node, segment)
        if producers is None:
            self.step(
                upload_events.TaskEnded(
                    task, (upload_events.Unreadable(key, "its table of producers is away", is_final=False),)
                )
            )
            return
        self._attempt += 1
        name = f"manifest-n{self._node.node_id}.{lock.epoch}.{self._attempt}-e{key.epoch}"
        manifest = StoredManifest(key, tuple(part.object_key for part in parts), segment.seal.digest, producers)
        self._in_flight[name] = self._node.scheduler.now_ms + _DOUBT_MS
        yield Ask("store", Put(name, manifest), LIMITS.put_timeout_ms)
        yield Ask("store", Get(name), LIMITS.put_timeout_ms)
        size = sum(part.size_bytes for part in parts)
        try:
            yield from self._repeat(commands.CompleteRemote(lock, key, name, manifest.digest, size))
        except Fenced:
            raise
        except Rejected as refusal:
            self.step(upload_events.TaskEnded(task, (upload_events.Unreadable(key, str(refusal), is_final=False),)))
            return
        self.step(upload_events.TaskEnded(task, (upload_events.Gone(key),)))


def _begins(stored: StoredPart, part: RemotePart) -> bool:
    return stored.batches[0].base_offset == part.base_offset
