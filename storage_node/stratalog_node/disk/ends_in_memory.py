"""Up to which offset each unsealed segment was written, in memory that outlives the process but not the machine's boot.

After `kill -9` a file may silently have less than was acknowledged: its last batches are zeros, the file is gone, or
the file system was set back to an earlier state. Checkpoints are older than the last batches, and go back with the file
system. So the node also keeps the end of each segment in a file on a memory file system (`/dev/shm`), mapped into the
process. A start that finds a file shorter than that knows that acknowledged batches are missing.

The file belongs to a storage id. It has a header and slots of six words; the last word of a slot is the end, written
with one store after the batches are in the segment file, so it is never above what was written. An end that moves back
(`EndMark.move`) is written before the segment file is cut.
Limit: after a restart of the machine, or in a container with another `/dev/shm`, this file is missing, and the start
relies on the directory alone.
Cost: 48 bytes a segment; a store per append. `EndMark.move` is called on the event loop, or on a disk thread while
nothing is appended; all others on any thread.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import UUID

from stratalog.model.ids import SegmentKey
from stratalog.telemetry.logs import logger

log = logger(__name__)

_MAGIC: Final = b"stratalog-ends-1"
_TOPIC_BYTES: Final = 16
_WORDS: Final = 6
"""Words of a slot: topic (two), shard, epoch, base offset, end offset. An end of 0 marks a free slot, because no
segment ends at its base."""
_SLOT_BYTES: Final = 8 * _WORDS
_CHUNK_BYTES: Final = 3 * mmap.ALLOCATIONGRANULARITY
_SLOTS_PER_CHUNK: Final = _CHUNK_BYTES // _SLOT_BYTES
_END_WORD: Final = _WORDS - 1


class EndMark:
    """The end of one segment. Does nothing once the segment was forgotten, or where there is no such memory."""

    __slots__ = ("_at", "_ends", "_key", "_words")

    def __init__(self, ends: EndsInMemory, key: SegmentKey) -> None:
        self._ends: EndsInMemory | None = ends
        self._key = key
        self._words: memoryview | None = None
        self._at = 0

    def move(self, end_offset: int) -> None:
        """Batches below it are in the file: called after an append, and before a cut."""
        words = self._words
        if words is not None:
            words[self._at] = end_offset
        elif self._ends is not None:
            self._allocate(end_offset)

    def _allocate(self, end_offset: int) -> None:
        assert self._ends is not None
        place = self._ends.allocate(self._key, end_offset)
        if place is None:
            self._ends = None
        else:
            self._words, self._at = place

    def forget(self) -> None:
        """The segment is sealed, or gone."""
        if self._ends is not None:
            self._ends.forget(self._key)

    def release(self) -> tuple[memoryview, int] | None:
        """Returns: its place, which it uses no more."""
        words, self._words, self._ends = self._words, None, None
        return None if words is None else (words, self._at)


class EndsInMemory:
    """The ends of one storage id's segments. Without a folder it stores nothing."""

    def __init__(self, folder: Path | None = None, storage_id: str = "") -> None:
        self._path = None if folder is None else folder / f"stratalog-{storage_id}"
        self._found: dict[SegmentKey, int] = {}
        self._marks: dict[SegmentKey, EndMark] = {}
        self._free: list[tuple[memoryview, int]] = []
        self._fd = -1
        self._chunks: list[mmap.mmap] = []
        self._changing = threading.Lock()

    def begin(self, should_follow: Callable[[SegmentKey], bool]) -> None:
        """Blocking, at a start: read what the last life left, and keep what is wanted of it in a file of this life.
        A process that has the old file still maps it, and changes nothing here."""
        if self._path is None:
            return
        self._found = {key: end for key, end in _read(self._path).items() if should_follow(key)}
        made = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            with suppress(FileNotFoundError):
                made.unlink()
            self._fd = os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            self._add_chunk()
            for key, end_offset in self._found.items():
                self.mark(key).move(end_offset)
            os.replace(made, self._path)
        except OSError as error:
            log.warning("the ends of segments are not kept in memory", file=str(self._path), error=str(error))
            with suppress(OSError):
                made.unlink(missing_ok=True)

    @property
    def found(self) -> Mapping[SegmentKey, int]:
        """What the last life left: below these offsets batches were written."""
        return self._found

    def mark(self, key: SegmentKey) -> EndMark:
        """The same one each time, until the segment is forgotten."""
        with self._changing:
            known = self._marks.get(key)
            if known is None:
                known = self._marks[key] = EndMark(self, key)
            return known

    def allocate(self, key: SegmentKey, end_offset: int) -> tuple[memoryview, int] | None:
        """The slot for the end of this segment; None if there is none."""
        with self._changing:
            if not self._free:
                if self._fd < 0:
                    return None
                try:
                    self._add_chunk()
                except OSError as error:
                    log.warning("no room for more ends of segments in memory", file=str(self._path), error=str(error))
                    return None
            words, at = self._free.pop()
            first = at - _END_WORD
            words[first : first + 2] = memoryview(key.topic_id.bytes).cast("q")
            words[first + 2], words[first + 3], words[first + 4] = key.shard, key.epoch, key.base_offset
            words[at] = end_offset
            return words, at

    def settle(self, key: SegmentKey) -> None:
        """A recovery decided without what the last life wrote there: it counts no more."""
        self._found.pop(key, None)

    def forget(self, key: SegmentKey) -> None:
        """It is sealed, gone, or begun again: nothing is known of it."""
        with self._changing:
            self._found.pop(key, None)
            mark = self._marks.pop(key, None)
            place = None if mark is None else mark.release()
            if place is not None:
                words, at = place
                words[at] = 0
                self._free.append(place)

    def _add_chunk(self) -> None:
        """Room that is there in any case: a store into memory that is not would end the process. Raises: OSError."""
        begin = len(self._chunks) * _CHUNK_BYTES
        os.posix_fallocate(self._fd, begin, _CHUNK_BYTES)
        chunk = mmap.mmap(self._fd, _CHUNK_BYTES, offset=begin)
        self._chunks.append(chunk)
        words = memoryview(chunk).cast("q")
        first = 1 if begin == 0 else 0  # the header has the place of a slot
        if first:
            chunk[: len(_MAGIC)] = _MAGIC
        self._free += [(words, slot * _WORDS + _END_WORD) for slot in range(_SLOTS_PER_CHUNK - 1, first - 1, -1)]

    def close(self) -> None:
        """The file stays: a directory may be set back while the node is stopped, too."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _read(path: Path) -> dict[SegmentKey, int]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return {}
    with open(fd, "rb") as file:
        if os.fstat(fd).st_uid != os.geteuid():
            log.warning("ends of segments that another user wrote are not used", file=str(path))
            return {}
        data = file.read()
    if data[: len(_MAGIC)] != _MAGIC:
        return {}
    words = memoryview(data[: len(data) - len(data) % _SLOT_BYTES]).cast("q")
    found: dict[SegmentKey, int] = {}
    for first in range(0, len(words), _WORDS):
        shard, epoch, base_offset, end_offset = words[first + 2 : first + _WORDS]
        if end_offset > base_offset >= 0:
            topic_id = UUID(bytes=data[8 * first : 8 * first + _TOPIC_BYTES])
            found[SegmentKey(topic_id, shard, epoch, base_offset)] = end_offset
    return found
