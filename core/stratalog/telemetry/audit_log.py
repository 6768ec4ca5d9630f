"""The audit log of one process: changes and denials, each with its caller (docs/security.md).

Noting costs the caller a few microseconds and no I/O. A thread makes the lines and writes them. What cannot be written
is kept and tried again, within bounds of count and memory; what exceeds them is lost, counted and reported by the first
line that can be written. One asker has a quarter of these bounds (`Shares`). The service continues in any case.

Denials are counted by kind, and so are changes that failed, and requests that ended without an answer: a client needs
no right for thousands of them. What was done, or may have been by the answer, has a line of its own.

Thread: `change`, `later` and `event` from any thread; the lines are made and written in the log's own.
Memory: `MOST_WAITING` notes, of `MOST_WAITING_BYTES` and one request that is larger than the share of an asker, and
the kinds of events of one window.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from stratalog.machines.audit.event_counts import EventCounts, EventKind, Report
from stratalog.machines.audit.lines import Asker, AuditLine, Change, Outcome
from stratalog.machines.audit.shares import Shares
from stratalog.telemetry.audit_file import AuditSink
from stratalog.telemetry.logs import logger
from stratalog.telemetry.metrics import counter, gauge

MOST_WAITING: Final = 10_000
MOST_WAITING_BYTES: Final = 32 << 20
_LARGE_NOTE_BYTES: Final = MOST_WAITING_BYTES // 4
"""What is larger fits into no asker's share."""
_NOTE_BYTES: Final = 1_000
_RETRY_S: Final = 1.0
_LAST_RETRY_S: Final = 0.05
_POLL_S: Final = 1.0
"""How late the end of a window may be noticed."""
_LAST_LINES_S: Final = 2.0
"""How long a stop waits for lines that are not written yet."""
_GRACE_S: Final = 2.0
"""For a write that hangs, beyond that."""

Lines: TypeAlias = Callable[[], Iterable[AuditLine]]
"""Makes the lines of one note, in the log's thread."""

log = logger(__name__)


@dataclass(slots=True)
class AuditStats:
    lines: int = counter("Lines written to the audit log.")
    lost: int = counter("Changes and denials that are missing in the audit log, because it could not be written.")
    waiting: int = gauge("Changes and denials that are not written to the audit log yet.")
    is_failing: int = gauge("1 while the audit log cannot be written.")


class _Note(NamedTuple):
    asker: Asker
    lines: Lines
    size_bytes: int
    is_counted: bool
    """Whether its events were counted by kind when they were noted."""


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _steady_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class AuditLog:
    """`cluster_id` is set by the process once it is known."""

    def __init__(
        self,
        sink: AuditSink | None,
        part: str,
        *,
        window_ms: int = 60_000,
        wall_ms: Callable[[], int] = _wall_ms,
        steady_ms: Callable[[], int] = _steady_ms,
        retry_s: float = _RETRY_S,
    ) -> None:
        """`sink` None: nothing is noted. `part` names this process in each line."""
        self.is_on = sink is not None
        self.cluster_id = ""
        self.wall_ms = wall_ms
        self.stats = AuditStats()
        self._sink = sink
        self._part = part
        self._steady_ms = steady_ms
        self._retry_s = retry_s
        self._changed = threading.Condition()
        """Guards all of the following."""
        self._waiting: deque[_Note] = deque()
        self._places = Shares(MOST_WAITING)
        self._bytes = Shares(MOST_WAITING_BYTES)
        self._is_large_waiting = False
        """A note that fits into no share."""
        self._in_hand = 0
        """Events that are being written."""
        self._counts = EventCounts(window_ms)
        self._untold_lost = 0
        self._is_closing = False
        self._is_given_up = False
        """A stop has given up waiting for the thread: what it holds is counted as lost."""
        self._give_up_at_s = 0.0
        self._trouble = ""
        self._writer: threading.Thread | None = None

    # Noting ---------------------------------------------------------------------------------------------------------
    def change(self, asker: Asker, change: Change, outcome: Outcome, error: str = "") -> None:
        if self.is_on:
            line = AuditLine(self.wall_ms(), asker, change, outcome, error)
            self._note(_Note(asker, lambda: (line,), _NOTE_BYTES, is_counted=False))

    def later(self, asker: Asker, lines: Lines, size_bytes: int = 0) -> None:
        """A note whose lines are made in the log's thread. `size_bytes`: the memory that it holds until then."""
        if self.is_on:
            self._note(_Note(asker, lines, size_bytes + _NOTE_BYTES, is_counted=False))

    def _note(self, note: _Note) -> None:
        with self._changed:
            if not self._places.reserve(note.asker):
                self._lose()
                return
            if not self._reserve_bytes(note):
                self._places.give_back(note.asker)
                self._lose()
                return
            self._waiting.append(note)
            self.stats.waiting = len(self._waiting)
            self._changed.notify()

    def _reserve_bytes(self, note: _Note) -> bool:
        """One note may be larger than the share of its asker, so that no one hides a change by a larger request.
        Requires: the lock is held."""
        if note.size_bytes <= _LARGE_NOTE_BYTES:
            return self._bytes.reserve(note.asker, note.size_bytes)
        is_free = not self._is_large_waiting
        self._is_large_waiting = True
        return is_free

    def _give_back_bytes(self, note: _Note) -> None:
        """Requires: the lock is held."""
        if note.size_bytes <= _LARGE_NOTE_BYTES:
            self._bytes.give_back(note.asker, note.size_bytes)
        else:
            self._is_large_waiting = False

    def denied(self, asker: Asker, action: str, resource_type: str, resource: str, error: str = "") -> None:
        self.event(asker, Change(action, resource_type, resource), Outcome.DENIED, error)

    def event(self, asker: Asker, change: Change, outcome: Outcome, error: str = "") -> None:
        """What may happen often: counted by kind. The details of the first are shown."""
        if not self.is_on:
            return
        line = AuditLine(self.wall_ms(), asker, change, outcome, error)
        if self._is_first(line):
            self._note(_Note(asker, lambda: (line,), _NOTE_BYTES, is_counted=True))

    def _is_first(self, line: AuditLine) -> bool:
        """Of its kind; the others are counted."""
        asker, change = line.asker, line.change
        kind = EventKind(
            asker.principal,
            asker.address,
            change.action,
            change.resource_type,
            change.resource,
            line.outcome,
            line.error,
        )
        with self._changed:
            return self._counts.note(kind, line.at_ms, self._steady_ms())

    def _lose(self, count: int = 1) -> None:
        self.stats.lost += count
        self._untold_lost += count

    # The thread -----------------------------------------------------------------------------------------------------
    def start(self) -> None:
        if self.is_on and self._writer is None:
            self._writer = threading.Thread(target=self._run, name="audit", daemon=True)
            self._writer.start()

    def close(self) -> None:
        """Writes what is left, for a moment. Blocking. What cannot be written by then is lost."""
        with self._changed:
            self._is_closing = True
            self._give_up_at_s = time.monotonic() + _LAST_LINES_S
            self._changed.notify_all()
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.join(_LAST_LINES_S + _GRACE_S)
        with self._changed:
            self._is_given_up = True
            counted = sum(report.events for report in self._counts.due(self._steady_ms(), is_last=True))
            left = len(self._waiting) + self._in_hand + counted
            self._waiting.clear()
            self.stats.waiting = 0
            self._lose(left)
            if self._untold_lost:
                log.error("the audit log could not be written to its end", lost=self._untold_lost, reason=self._trouble)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._waiting and not self._is_closing:
                    self._changed.wait(_POLL_S)
                is_last = self._is_closing and not self._waiting
                due = self._counts.due(self._steady_ms(), is_last=is_last)
                note = self._taken()
                self._in_hand = sum(report.events for report in due) + (note is not None)
            if not all(map(self._write_counted, due)) or (note is not None and not self._write_note(note)):
                break
            if is_last:
                break
        if self._sink is not None:
            self._sink.close()

    def _taken(self) -> _Note | None:
        """The next note. Requires: the lock is held."""
        note = self._waiting.popleft() if self._waiting else None
        if note is not None:
            self._places.give_back(note.asker)
            self._give_back_bytes(note)
        self.stats.waiting = len(self._waiting)
        return note

    def _write_counted(self, report: Report) -> bool:
        """False: the process ends before it could be written."""
        is_written = self._write(report.line())
        if is_written:
            with self._changed:
                self._in_hand -= report.events
        return is_written

    def _write_note(self, note: _Note) -> bool:
        """False: the process ends before its lines could be written."""
        try:
            for line in note.lines():
                is_told = note.is_counted or not _is_counted(line) or self._is_first(line)
                if is_told and not self._write(line):
                    return False
        except Exception:  # a fault of one description must not end the log (F48)
            log.exception("a change could not be described for the audit log")
            with self._changed:
                self._lose()
        with self._changed:
            self._in_hand = 0
        return True

    def _write(self, line: AuditLine) -> bool:
        """Tries until it is written, or the process ends."""
        text = line.as_json(self.cluster_id, self._part)
        while True:
            try:
                self._put(text)
            except (OSError, ValueError) as error:
                self._note_trouble(str(error))
            else:
                return not self._is_given_up
            with self._changed:
                if self._is_closing and time.monotonic() >= self._give_up_at_s:
                    return False
                if self._is_closing:
                    self._changed.wait(_LAST_RETRY_S)
                else:  # notes that come meanwhile do not make it try again
                    self._changed.wait_for(lambda: self._is_closing, self._retry_s)

    def _put(self, text: str) -> None:
        assert self._sink is not None
        lost = self._untold_lost
        if lost:
            self._sink.write(self._loss(lost).as_json(self.cluster_id, self._part))
            with self._changed:
                self._untold_lost -= lost
            self.stats.lines += 1
        self._sink.write(text)
        self.stats.lines += 1
        if self._trouble:
            self._trouble, self.stats.is_failing = "", 0
            log.info("the audit log is written again")

    def _loss(self, lost: int) -> AuditLine:
        now_ms = self.wall_ms()
        own = Asker(self._part, "")
        change = Change("LoseAuditLines", "AUDIT_LOG", self._part)
        return AuditLine(now_ms, own, change, Outcome.DONE, count=lost, until_ms=now_ms)

    def _note_trouble(self, trouble: str) -> None:
        self.stats.is_failing = 1
        if trouble != self._trouble:
            self._trouble = trouble
            log.error("the audit log cannot be written; lines wait, and are lost beyond a bound", reason=trouble)


def _is_counted(line: AuditLine) -> bool:
    """Whether nothing was done, or no answer says anything."""
    return line.outcome is Outcome.FAILED or (line.outcome is Outcome.UNKNOWN and not line.error)


NO_AUDIT: Final = AuditLog(None, "")
"""Notes nothing."""
