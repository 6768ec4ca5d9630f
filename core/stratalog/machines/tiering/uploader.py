"""Decides what a node uploads next: chunk, bundle, merge, publication; and what to do when an answer is bad or missing.

Plain data in, plain data out; the shell is `stratalog_node.tier.uploads.uploader`, the simulator is another. One object
per node. What it holds follows the unfinished segments, what it costs follows their traffic: a quiet segment is not
looked at between two events.

Invariants (`check_invariants`):
  a segment has at most one range in flight, a Direct one a few that follow one another, each of which commits after
  those before it have ended: its parts are committed in order;
  bytes in flight stay within the limit, but for one piece when nothing else is in flight (F75);
  nothing is asked for without the write lock (F6, F86).
Source: docs/design.md sections 5 and 11, decision 0003.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

from stratalog.machines.tiering import upload_events
from stratalog.machines.tiering.bundles import IsBundleKey
from stratalog.machines.tiering.service_gate import UploadGates
from stratalog.machines.tiering.small_ranges import SmallRanges
from stratalog.machines.tiering.upload_directories import DirectoryReads, Place
from stratalog.machines.tiering.upload_pieces import PieceChooser
from stratalog.machines.tiering.upload_state import Flight, SegmentUpload, UploaderStatus
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import RemotePart

_PIECES_PER_STEP = 1_000
"""A step ends when it has begun this many pieces: it has taken 10 ms of the event loop; the next step continues at
once."""
_MOST_DOUBLINGS = 16
"""Of the pause before a segment is tried again."""


@dataclass(frozen=True, slots=True)
class _Task:
    keys: tuple[SegmentKey, ...]
    reserved_bytes: int
    place: Place | None = None
    """In which retired nodes' directories it reads; None: in none."""


class Uploader:
    """See the module."""

    def __init__(self, limits: upload_events.UploadLimits, is_bundle_key: IsBundleKey) -> None:
        self._limits = limits
        self._pieces = PieceChooser(limits, is_bundle_key)
        self._uploads: dict[SegmentKey, SegmentUpload] = {}
        self._small = SmallRanges()
        self._direct = SmallRanges(limits.direct_bytes)
        self._packing: dict[SegmentKey, None] = {}
        self._chunks: dict[SegmentKey, None] = {}
        self._to_publish: dict[SegmentKey, None] = {}
        self._holds: list[tuple[int, SegmentKey]] = []
        self._tasks: dict[int, _Task] = {}
        self._last_task = 0
        self._bytes_in_flight = 0
        self._gates = UploadGates(limits)
        self._directories = DirectoryReads(limits)
        self._lock_epoch: int | None = None
        self._next_kind = 0
        self._began_pieces = 0
        self.unstored_bytes = 0
        """Of Direct segments: written, and not in the object store, so that their producers wait."""
        self._effects: list[upload_events.UploaderEffect] = []

    # Stepping -----------------------------------------------------------------------------------------------------
    def step(self, event: upload_events.UploaderEvent, now_ms: int) -> list[upload_events.UploaderEffect]:
        """Take in one event. Returns what is to be done now, in order."""
        return self.step_all((event,), now_ms)

    def step_all(
        self, events: Iterable[upload_events.UploaderEvent], now_ms: int
    ) -> list[upload_events.UploaderEffect]:
        """Take in many events, then decide once: what came together goes out together."""
        self.take_in(events, now_ms)
        self._wake_due(now_ms)
        self._begin_tasks(now_ms)
        effects, self._effects = self._effects, []
        return effects

    def take_in(self, events: Iterable[upload_events.UploaderEvent], now_ms: int) -> None:
        """Take in events and decide nothing yet: a step follows."""
        for event in events:
            self._handle(event, now_ms)

    def next_wake_ms(self, now_ms: int) -> int | None:
        """When `TimePassed` must come, if nothing else does. None: not before the next event."""
        if self._lock_epoch is None:
            return None
        if self._began_pieces > _PIECES_PER_STEP:
            return now_ms
        times = []
        if self._packing or self._chunks or self._to_publish or self._directories.is_waiting():
            times.append(self._gates.open_at_ms)
        if self._directories.is_waiting():
            times.append(max(self._gates.open_at_ms, self._directories.open_at_ms(now_ms)))
        times = [opens_ms for opens_ms in times if opens_ms > now_ms]
        for ranges in (self._small, self._direct):
            if (due_ms := ranges.next_due_ms()) is not None:
                times.append(due_ms)
        if self._holds:
            times.append(self._holds[0][0])
        return min(times) if times else None

    def _handle(self, event: upload_events.UploaderEvent, now_ms: int) -> None:
        match event:
            case upload_events.SegmentSeen():
                self._segment_seen(event, now_ms)
            case upload_events.CommittedGrew(key, unsent_bytes):
                if upload := self._uploads.get(key):
                    self._grow(upload, unsent_bytes, now_ms)
                    self._settle(upload, now_ms)
            case upload_events.SegmentGone(key):
                self._forget(key)
            case upload_events.RewriteRequested(key, parts):
                if upload := self._uploads.get(key):
                    upload.rewrites = parts
                    self._settle(upload, now_ms)
            case upload_events.FlushRequested():
                for key in (
                    *self._small.queue,
                    *self._direct.queue,
                    *(key for key, upload in self._uploads.items() if upload.flights),
                ):
                    self._hurry(self._uploads[key], now_ms)
            case upload_events.LockGained(epoch):
                self._lock_epoch = epoch
            case upload_events.LockLost():
                self._lock_lost(now_ms)
            case upload_events.RangesCut():
                self._cut(event, now_ms)
            case upload_events.TaskEnded(task, outcomes):
                self._end(task, outcomes, now_ms)
            case upload_events.TaskFailed():
                self._fail(event, now_ms)
            case upload_events.TimePassed():
                pass
            case _:
                assert_never(event)

    # What is known --------------------------------------------------------------------------------------------------
    def _segment_seen(self, seen: upload_events.SegmentSeen, now_ms: int) -> None:
        upload = self._uploads.get(seen.key)
        if upload is None:
            upload = self._uploads[seen.key] = SegmentUpload(seen.key, self._limits)
            upload.is_direct = seen.is_direct
            self._move(upload, seen.commit_offset, seen.parts)
        elif not upload.flights and seen.commit_offset > upload.commit_offset:
            self._move(upload, seen.commit_offset, seen.parts)
        upload.is_sealed = seen.is_sealed
        upload.chunk_bytes = min(seen.chunk_bytes or self._limits.chunk_bytes, self._limits.bundle_bytes)
        if (interval_ms := self._interval_ms(seen)) != upload.interval_ms:
            self._leave(upload)  # it comes back with its new deadline
            upload.interval_ms = interval_ms
        upload.end_offset = seen.end_offset
        upload.has_local = seen.has_local
        upload.place = seen.directories
        gone = seen.missing or seen.away
        if gone is not None and not upload.is_wholly_committed:
            self._hold(upload, gone, True, now_ms, is_told=seen.missing is not None)
        elif upload.held_reason is not None and upload.is_missing:
            upload.held_reason = None
        upload.is_missing = gone is not None
        self._grow(upload, seen.unsent_bytes, now_ms)
        self._settle(upload, now_ms)

    def _interval_ms(self, seen: upload_events.SegmentSeen) -> int:
        if seen.is_direct:
            return self._limits.direct_interval_ms
        return seen.interval_ms or self._limits.interval_ms

    def _move(self, upload: SegmentUpload, commit_offset: int, parts: Sequence[RemotePart]) -> None:
        """Metadata of an idle segment was read. The commit offset never goes back: an older answer may come late."""
        commit_offset = max(commit_offset, upload.key.base_offset)
        if commit_offset >= upload.commit_offset:
            upload.commit_offset = commit_offset
            upload.parts = parts

    def _grow(self, upload: SegmentUpload, unsent_bytes: int, now_ms: int) -> None:
        self._count_unsent(upload, unsent_bytes)
        if unsent_bytes == 0:
            upload.waiting_since_ms = None
            return
        upload.has_local = True  # they were counted in the local copy, which is made with the first record
        if upload.waiting_since_ms is None and upload.waiting_bytes > 0:
            upload.waiting_since_ms = now_ms
        if upload.flights and upload.later_since_ms is None and unsent_bytes > upload.sent_bytes:
            upload.later_since_ms = now_ms

    def _count_unsent(self, upload: SegmentUpload, unsent_bytes: int) -> None:
        waited_bytes = upload.waiting_bytes
        if upload.is_direct:
            self.unstored_bytes += unsent_bytes - upload.unsent_bytes
        upload.unsent_bytes = unsent_bytes
        self._count_waiting(upload, waited_bytes)

    def _count_waiting(self, upload: SegmentUpload, before_bytes: int) -> None:
        if (ranges := self._ranges_of(upload)) is not None:
            ranges.grew(upload.waiting_bytes - before_bytes)

    def _ranges_of(self, upload: SegmentUpload) -> SmallRanges | None:
        """Those among which it waits."""
        return next((one for one in (self._small, self._direct) if upload.queue is one.queue), None)

    def _hurry(self, upload: SegmentUpload, now_ms: int) -> None:
        upload.is_urgent = True
        self._settle(upload, now_ms)

    def _lock_lost(self, now_ms: int) -> None:
        """What is in flight commits under the epoch that is over, if at all, so nothing may continue it."""
        self._lock_epoch = None
        for upload in self._uploads.values():
            if upload.last_append is not None:
                upload.is_broken = True
                self._settle(upload, now_ms)

    def _forget(self, key: SegmentKey) -> None:
        upload = self._uploads.pop(key, None)
        if upload is None:
            return
        self._count_unsent(upload, 0)
        self._leave(upload)
        for flight in upload.flights:
            if len(self._tasks[flight.task].keys) == 1:
                self._effects.append(upload_events.CancelTask(flight.task))

    # Queues -----------------------------------------------------------------------------------------------------------
    def _queues(self) -> tuple[dict[SegmentKey, None], ...]:
        gathered = self._small.queue, self._direct.queue
        return *gathered, self._packing, self._chunks, self._to_publish, *self._directories.queues()

    def _leave(self, upload: SegmentUpload) -> None:
        if upload.queue is not None:
            if (ranges := self._ranges_of(upload)) is not None:
                ranges.left(upload)
            upload.queue.pop(upload.key, None)
            upload.queue = None

    def _settle(self, upload: SegmentUpload, now_ms: int) -> None:
        """Put a segment where it belongs by what is known of it. A busy one belongs nowhere until it is back."""
        if upload.is_busy:
            self._leave(upload)
            return
        if upload.waiting_since_ms is None and upload.waiting_bytes > 0:
            upload.waiting_since_ms = now_ms
        if upload.held_reason is not None and (upload.held_until_ms is None or now_ms < upload.held_until_ms):
            self._leave(upload)
            return
        queue = self._queue_of(upload)
        if queue is upload.queue:
            return
        self._leave(upload)
        if queue is None:
            return
        upload.queue = queue
        queue[upload.key] = None
        if (ranges := self._ranges_of(upload)) is not None:
            ranges.came(upload)

    def _queue_of(self, upload: SegmentUpload) -> dict[SegmentKey, None] | None:
        if upload.is_wholly_committed:
            if upload.flights:
                return None
            return self._chunks if self._pieces.parts_to_rehome(upload) else self._to_publish
        can_send = upload.has_local and upload.waiting_bytes > 0
        if can_send and (upload.waiting_bytes >= upload.chunk_bytes or upload.is_sealed):
            return self._chunks if upload.place is None else self._directories.queue(upload.place)
        if moved := self._pieces.parts_to_move(upload):
            return self._chunks if self._pieces.is_settled(moved) else self._packing
        if can_send:
            # Once taken up for packing it stays there: a sweep is not undone by more data.
            is_due = upload.is_urgent or upload.queue is self._packing
            return self._packing if is_due else (self._direct if upload.is_direct else self._small).queue
        return None

    def _wake_due(self, now_ms: int) -> None:
        """When the first small range is due those of its kind that need not wait much longer go with it."""
        for ranges in (self._direct, self._small):
            for key in ranges.take_due(self._uploads, now_ms):
                self._uploads[key].queue = self._packing
                self._packing[key] = None
        while self._holds and self._holds[0][0] <= now_ms:
            _, key = heapq.heappop(self._holds)
            upload = self._uploads.get(key)
            if upload is not None and upload.held_until_ms is not None and upload.held_until_ms <= now_ms:
                upload.held_reason = upload.held_until_ms = None
                self._settle(upload, now_ms)

    # Beginning --------------------------------------------------------------------------------------------------
    def _begin_tasks(self, now_ms: int) -> None:
        """Chunks, bundles, publications, and what is read in directories take turns: none starves the others (F80)."""
        if self._lock_epoch is None:
            return
        kinds: tuple[Callable[[int], bool | None], ...] = (
            lambda now_ms: self._begin_first_of(self._chunks, now_ms),
            self._begin_bundle,
            self._begin_publish,
            self._begin_mounted,
        )
        idle_kinds = 0
        self._began_pieces = 0
        while idle_kinds < len(kinds):
            if self._began_pieces > _PIECES_PER_STEP:
                return
            if not self._gates.may_begin(len(self._tasks), now_ms):
                return
            began = kinds[self._next_kind % len(kinds)](now_ms)
            if began is False:
                return
            self._next_kind += 1
            idle_kinds = 0 if began else idle_kinds + 1

    # Each returns None when it has no work, False when its work must wait for room in flight: then nothing else may
    # begin either, or smaller work would keep it waiting forever.
    def _has_room(self, size_bytes: int) -> bool:
        return self._bytes_in_flight == 0 or self._bytes_in_flight + size_bytes <= self._limits.in_flight_bytes

    def _start(
        self, pieces: Sequence[upload_events.Piece], reserved_bytes: int, place: Place | None = None
    ) -> tuple[int, tuple[int, ...]]:
        """The task's number, and those after which it commits."""
        self._last_task += 1
        self._tasks[self._last_task] = _Task(tuple(piece.key for piece in pieces), reserved_bytes, place)
        self._bytes_in_flight += reserved_bytes
        after: dict[int, None] = {}
        for piece in pieces:
            upload = self._uploads[piece.key]
            self._leave(upload)
            after.update((flight.task, None) for flight in upload.flights)
            is_move = bool(piece.replaces)
            since_ms = None if is_move else upload.waiting_since_ms
            upload.flights.append(
                Flight(self._last_task, piece.base_offset, None, is_move, since_ms, upload.waiting_bytes)
            )
        self._began_pieces += len(pieces)
        return self._last_task, tuple(after)

    def _begin_mounted(self, now_ms: int) -> bool | None:
        """Few at a time: others read there for consumers, and what this node alone has goes first."""
        place = self._directories.next_place(self._reading(), now_ms)
        return None if place is None else self._begin_first_of(self._directories.queue(place), now_ms, place)

    def _reading(self) -> list[Place]:
        return [task.place for task in self._tasks.values() if task.place is not None]

    def _begin_first_of(self, queue: dict[SegmentKey, None], now_ms: int, place: Place | None = None) -> bool | None:
        for key in queue:
            piece = self._pieces.chunk_piece(self._uploads[key])
            if not self._has_room(piece.max_bytes):
                return False
            if place is not None:
                self._directories.began(place)
            task, after = self._start((piece,), piece.max_bytes, place)
            self._effects.append(upload_events.SendChunk(task, piece, after))
            self._settle_movers((piece,), now_ms)
            return True
        return None

    def _begin_bundle(self, now_ms: int) -> bool | None:
        limits = self._limits
        if not self._packing:
            return None
        if not self._has_room(limits.bundle_bytes):
            return False
        pieces, total = self._pieces.bundle(self._uploads[key] for key in self._packing)
        if not self._has_room(total):
            return False
        task, after = self._start(pieces, total)
        if len(pieces) == 1 and total >= limits.chunk_bytes:
            self._effects.append(upload_events.SendChunk(task, pieces[0], after))
        else:
            self._effects.append(upload_events.SendBundle(task, tuple(pieces), after))
        self._settle_movers(pieces, now_ms)
        return True

    def _begin_publish(self, _now_ms: int) -> bool | None:
        for key in self._to_publish:
            upload = self._uploads[key]
            task, _ = self._start((upload_events.Piece(key, upload.commit_offset, 0),), 0)
            self._effects.append(upload_events.Publish(task, key, tuple(upload.parts)))
            return True
        return None

    # Ending -----------------------------------------------------------------------------------------------------
    def _cut(self, cut: upload_events.RangesCut, now_ms: int) -> None:
        """What came since a range of a Direct segment was read need not wait until that is in the store."""
        for key, end_offset, size_bytes in cut.ends:
            upload = self._uploads.get(key)
            flight = upload.last_append if upload is not None and upload.is_direct else None
            if upload is None or flight is None or flight.task != cut.task:
                continue
            flight.end_offset, flight.size_bytes = end_offset, size_bytes
            if size_bytes >= flight.waited_bytes:  # a read may give less than was asked for
                upload.waiting_since_ms, upload.is_urgent = upload.later_since_ms, False
            self._settle(upload, now_ms)

    def _settle_movers(self, pieces: Iterable[upload_events.Piece], now_ms: int) -> None:
        """Parts of a Direct segment that move keep nothing of it waiting."""
        for piece in pieces:
            if piece.replaces:
                self._settle(self._uploads[piece.key], now_ms)

    def _finish(self, task: int) -> list[tuple[SegmentUpload, Flight]]:
        """Each segment's range comes down; the caller says what became of it."""
        done = self._tasks.pop(task, None)
        if done is None:
            return []
        self._bytes_in_flight -= done.reserved_bytes
        landed = []
        for key in done.keys:
            upload = self._uploads.get(key)
            flight = next((one for one in upload.flights if one.task == task), None) if upload is not None else None
            if upload is not None and flight is not None:
                waited_bytes = upload.waiting_bytes
                upload.flights.remove(flight)
                self._count_waiting(upload, waited_bytes)
                landed.append((upload, flight))
        return landed

    def _landed(self, upload: SegmentUpload, flight: Flight, now_ms: int) -> None:
        """A range whose outcome was taken in. What follows one that is not committed goes again with it."""
        if not flight.is_move and not flight.is_committed_by(upload.commit_offset):
            if upload.is_direct and flight.since_ms is not None:
                upload.waiting_since_ms = min(flight.since_ms, upload.waiting_since_ms or flight.since_ms)
            upload.is_urgent = upload.is_urgent or flight.end_offset is not None  # it has waited long enough
            upload.is_broken = (
                any(one.task > flight.task and not one.is_move for one in upload.flights) or upload.is_broken
            )
        upload.is_broken = upload.is_broken and upload.last_append is not None
        self._settle(upload, now_ms)

    def _end(self, task: int, outcomes: Sequence[upload_events.PieceOutcome], now_ms: int) -> None:
        place = self._tasks[task].place if task in self._tasks else None
        landed = {upload.key: (upload, flight) for upload, flight in self._finish(task)}
        if any(isinstance(outcome, upload_events.Moved | upload_events.Gone) for outcome in outcomes):
            self._effects += self._gates.stored(now_ms)
        if place is not None:
            self._effects += self._directories.answered(place, now_ms)
        for outcome in outcomes:
            if outcome.key in landed:
                self._take_outcome(*landed[outcome.key], outcome, now_ms)
        for upload, flight in landed.values():
            if upload.key in self._uploads:
                self._landed(upload, flight, now_ms)

    def _take_outcome(
        self, upload: SegmentUpload, flight: Flight, outcome: upload_events.PieceOutcome, now_ms: int
    ) -> None:
        match outcome:
            case upload_events.Moved():
                self._move(upload, outcome.commit_offset, outcome.parts)
                upload.reported_reason = None
                upload.is_suspect = False
                upload.empty_reads = upload.first_batch_bytes = upload.holds = 0
                if not (upload.is_cut or flight.is_move) and flight.end_offset is None:
                    upload.waiting_since_ms = upload.later_since_ms
                    upload.is_urgent = False
                self._grow(upload, outcome.unsent_bytes, now_ms)
                upload.gathered_bytes = upload.waiting_bytes
                upload.is_urgent = upload.is_urgent and upload.waiting_bytes > 0
            case upload_events.Gone(key):
                self._forget(key)
            case upload_events.NothingThere(key, unsent_bytes):
                # Mostly the next `CommittedGrew` says when there is something: no loop over an open transaction.
                self._grow(upload, unsent_bytes, now_ms)
                upload.is_urgent = False
                upload.empty_reads += 1
                if upload.waiting_bytes and upload.empty_reads > 1:
                    self._hold(upload, f"{unsent_bytes} bytes are committed, but none is read", False, now_ms)
            case upload_events.TooLarge(_, size_bytes):
                # Asked for again when there is room for all of it: bytes in flight are what was read, not a guess.
                upload.first_batch_bytes = size_bytes
            case upload_events.Void():
                pass  # it says nothing about the segment, nor about the meta service
            case upload_events.Unreadable(key, reason, is_final):
                if not upload.is_missing:  # else it is held for good, with better words
                    self._hold(upload, reason, is_final, now_ms)
            case _:
                assert_never(outcome)

    def _hold(self, upload: SegmentUpload, reason: str, is_final: bool, now_ms: int, *, is_told: bool = True) -> None:
        """Suspend a segment, for a while or permanently; the others continue. `is_told`: log each one."""
        upload.held_reason = reason
        upload.held_until_ms = None
        if not is_final:
            limits = self._limits
            pause_ms = min(limits.hold_ms, limits.first_hold_ms << min(upload.holds, _MOST_DOUBLINGS))
            upload.held_until_ms = now_ms + pause_ms
            upload.holds += 1
            heapq.heappush(self._holds, (upload.held_until_ms, upload.key))
        if is_told and upload.reported_reason != reason:
            upload.reported_reason = reason
            self._effects.append(upload_events.ReportHeld(upload.key, reason, is_final))

    def _fail(self, failed: upload_events.TaskFailed, now_ms: int) -> None:
        place = self._tasks[failed.task].place if failed.task in self._tasks else None
        landed = self._finish(failed.task)
        if failed.failure is upload_events.TaskFailure.DIRECTORY_AWAY:
            self._effects += self._directories.silent(place or (), failed, self._reading(), now_ms)
        self._effects += self._gates.failed(failed, now_ms)
        for upload, flight in landed:
            if failed.failure is upload_events.TaskFailure.FAULT and not upload.is_missing:
                upload.is_suspect = True
                self._hold(upload, failed.reason, False, now_ms)
            # At once, with what came meanwhile (non-stop write): it has waited long enough.
            upload.is_urgent = True
            self._landed(upload, flight, now_ms)

    # Looking in -----------------------------------------------------------------------------------------------------
    def knows(self, key: SegmentKey) -> bool:
        return key in self._uploads

    def is_in_flight(self, key: SegmentKey) -> bool:
        return any(key in task.keys for task in self._tasks.values())

    def commit_offset(self, key: SegmentKey) -> int | None:
        upload = self._uploads.get(key)
        return upload.commit_offset if upload else None

    def is_settled(self) -> bool:
        """Nothing is waiting or in flight that could go; held segments are not waited for."""
        return not (self._tasks or any(self._queues()))

    def unsent(self) -> list[SegmentUpload]:
        """Those with committed bytes that are not in the store; read only. Cost: O(segments)."""
        return [upload for upload in self._uploads.values() if upload.unsent_bytes > 0]

    def describe(self, now_ms: int) -> UploaderStatus:
        """Cost: O(unfinished segments)."""
        unsent = self.unsent()
        times = (at for u in unsent for at in (u.waiting_since_ms, *(f.since_ms for f in u.flights)) if at is not None)
        oldest = min(times, default=now_ms)
        store_since, meta_since = self._gates.store.away_since_ms, self._gates.meta.away_since_ms
        return UploaderStatus(
            segments=len(self._uploads),
            unsent_segments=len(unsent),
            unsent_bytes=sum(upload.unsent_bytes for upload in unsent),
            mounted_unsent_bytes=sum(upload.unsent_bytes for upload in unsent if upload.place is not None),
            oldest_unsent_ms=max(0, now_ms - oldest),
            tasks=len(self._tasks),
            bytes_in_flight=self._bytes_in_flight,
            to_publish=len(self._to_publish),
            held=tuple((u.key, u.held_reason) for u in self._uploads.values() if u.held_reason is not None),
            store_away_ms=0 if store_since is None else now_ms - store_since,
            meta_away_ms=0 if meta_since is None else now_ms - meta_since,
            window=self._gates.store.window,
            lock_epoch=self._lock_epoch,
            directory_trouble=self._directories.trouble(self._reading()),
        )

    def check_invariants(self) -> None:
        queues = self._queues()
        for key, upload in self._uploads.items():
            homes = [queue for queue in queues if key in queue]
            assert homes == ([] if upload.queue is None else [upload.queue]), f"{key} is in {len(homes)} queues"
            assert not upload.is_busy or upload.queue is None, f"{key} waits and is in flight"
            assert upload.commit_offset >= key.base_offset, f"{key} is committed below its base"
            tasks = [flight.task for flight in upload.flights]
            assert all(key in self._tasks[task].keys for task in tasks), f"{key} is in flight in no task"
            assert tasks == sorted(tasks) and (upload.is_direct or len(tasks) <= 1), f"{key} is in flight in {tasks}"
        for ranges in (self._small, self._direct):
            waiting = sum(self._uploads[key].waiting_bytes for key in ranges.queue)
            assert ranges.size_bytes == waiting, f"{ranges.size_bytes} bytes are counted, {waiting} wait"
        unstored = sum(upload.unsent_bytes for upload in self._uploads.values() if upload.is_direct)
        assert unstored == self.unstored_bytes, "what Direct segments wait with does not add up"
        reserved = sum(task.reserved_bytes for task in self._tasks.values())
        assert reserved == self._bytes_in_flight, "bytes in flight do not add up"
        with_bytes = sum(1 for task in self._tasks.values() if task.reserved_bytes)
        assert reserved <= self._limits.in_flight_bytes or with_bytes <= 1, "too many bytes in flight"
