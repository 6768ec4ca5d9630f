"""The journal that is being written, and the full ones: how many bytes of each segment they protect.

A full journal is put away on the loop and retired beside the traffic: its files are flushed, then it is removed. If one
of its files could not be flushed, the journal holds the only durable copy of acknowledged batches: it stays for the
next start. A journal that cannot be removed may stay: its entries equal what the files hold.
The journal is written from what appends left in memory, else from the file: each read of a file releases the
interpreter lock, and then waits for the event loop to get it back.
Threads: `write` on the flush thread, one group at a time; `put_away` on the loop between groups; `retire` on a
background thread, for a journal that was put away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from stratalog.formats.disk.journal import JournalHeader
from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.model.errors import NotFound, Unavailable
from stratalog.telemetry.logs import logger
from stratalog_node.disk.journal_file import JournalFile, remove_journal
from stratalog_node.disk.layout import NodeLayout
from stratalog_node.shards.copies.active import ActiveSegment

log = logger(__name__)

JOURNAL_BYTES = 64 << 20


class Span(Protocol):
    """What of a segment's file is to be made durable."""

    @property
    def active(self) -> ActiveSegment: ...

    @property
    def size_bytes(self) -> int:
        """Size of the file up to the span's end."""
        ...

    @property
    def kept_from(self) -> int:
        """From here to its end the span lies in `kept` as well; -1 when it does not."""
        ...

    @property
    def kept(self) -> Sequence[bytes]: ...


def sync_segment(active: ActiveSegment, size_bytes: int) -> None:
    """Blocking: flush a segment's file, with its name when it is the first time. Raises: FlushLost, NotFound,
    Unavailable."""
    active.file.sync(with_names=active.flushed_bytes == 0)
    active.flushed_bytes = max(active.flushed_bytes, size_bytes)


class FullJournal:
    """A journal that takes no more entries, and the size of each segment below which it may be needed."""

    __slots__ = ("_file", "_sizes", "_unremoved")

    def __init__(self, file: JournalFile, sizes: dict[ActiveSegment, int], unremoved: set[Path]) -> None:
        self._file = file
        self._sizes = sizes
        self._unremoved = unremoved

    def retire(self) -> list[tuple[ActiveSegment, Exception]]:
        """Blocking: flush its files; then it is not needed. Returns those that could not be flushed."""
        failed: list[tuple[ActiveSegment, Exception]] = []
        for active, size_bytes in self._sizes.items():
            if active.flushed_bytes >= size_bytes:
                continue
            try:
                sync_segment(active, size_bytes)
            except NotFound:
                continue  # deleted meanwhile, by retention or with its topic
            except Exception as error:  # whatever it is, this file's data is only in the journal
                failed.append((active, error))
                log.error(
                    "a file cannot be flushed; the journal that holds its data stays, the next start replays it",
                    file=str(active.file.path),
                    journal=str(self._file.path),
                    error=str(error),
                )
        self._file.close()
        if not failed:
            self._unremoved.add(self._file.path)
        for path in sorted(self._unremoved):
            try:
                remove_journal(path)
            except Unavailable as left:
                log.warning("a journal that is not needed any more stays for now", error=str(left))
            else:
                self._unremoved.discard(path)
        return failed


class SharedJournal:
    def __init__(
        self, layout: NodeLayout, cluster_id: str, node_id: int, first_number: int, clock_ms: Callable[[], int]
    ) -> None:
        self._layout = layout
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._next_number = first_number
        self._clock_ms = clock_ms
        self._file: JournalFile | None = None
        self._sizes: dict[ActiveSegment, int] = {}
        self._sizes_before: dict[ActiveSegment, int] = {}
        """The sizes in the journal that was put away last: these bytes are on the disk as well."""
        self._unremoved: set[Path] = set()
        """Retired, but still there: each retirement tries again. Retirements follow one another."""
        self._is_doubtful = False

    @property
    def is_full(self) -> bool:
        return self._file is not None and (self._is_doubtful or self._file.size_bytes >= JOURNAL_BYTES)

    def durable_bytes(self, active: ActiveSegment) -> int:
        """Size of the segment's file below which this journal, or the file itself, is on the disk."""
        journaled = self._sizes.get(active) or self._sizes_before.get(active, 0)
        return max(active.flushed_bytes, journaled, SEGMENT_HEADER_BYTES)

    def write(self, spans: Sequence[Span]) -> int:
        """Blocking: copy what lies between each segment's durable size and its span's end, and flush. Returns the
        bytes copied. Raises: DiskFull, Unavailable, Corrupt; then nothing of it counts, and the next journal is a new
        one, because a flush that failed says nothing about what a later one covers."""
        try:
            file = self._file
            if file is None:
                header = JournalHeader(self._cluster_id, self._node_id, self._next_number, self._clock_ms())
                self._next_number += 1
                file = self._file = JournalFile(self._layout.journal, header)
            entries = []
            for span in spans:
                active, position = span.active, self.durable_bytes(span.active)
                if position >= span.size_bytes:
                    continue  # flushed meanwhile, with what came after it
                if position == span.kept_from:
                    payload = b"".join(span.kept)
                else:
                    payload = active.file.read(position, span.size_bytes - position)
                entries.append((active.key, position - SEGMENT_HEADER_BYTES, payload))
            file.write(entries)
        except Exception:
            self._is_doubtful = True
            raise
        self._sizes.update((span.active, span.size_bytes) for span in spans)
        return sum(len(payload) for _, _, payload in entries)

    def put_away(self) -> FullJournal | None:
        """The present journal, if there is one; the next write begins a new one. Requires: the one put away before has
        been retired."""
        file, self._file = self._file, None
        self._sizes_before, self._sizes = self._sizes, {}
        self._is_doubtful = False
        return FullJournal(file, self._sizes_before, self._unremoved) if file is not None else None
