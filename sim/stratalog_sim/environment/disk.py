"""A node's disk: files of batches, checkpoints, the note of a clean stop; what of them survives a power cut.

A file is a list of cells. A cell is a batch, or a hole: bytes that do not form a batch (torn, zeros). A process that
dies leaves all that it wrote; a power cut destroys any part of what was not flushed. `dies_in` makes the machine die
between any two operations, or in the middle of a write.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from stratalog.machines.restart.restart_events import CheckpointClaim, Producers
from stratalog.model.batch import BatchHeader
from stratalog.model.ids import SegmentKey, ShardKey


@dataclass(frozen=True, slots=True)
class Batch:
    """A record batch as it lies in a log. `value` says whose it is, and is never used twice."""

    base_offset: int
    count: int
    epoch: int
    value: str
    size_bytes: int
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.count

    def __str__(self) -> str:
        return f"{self.value}@{self.base_offset}"


@dataclass(frozen=True, slots=True)
class Hole:
    """No batch."""

    size_bytes: int


def header_of(batch: Batch) -> BatchHeader:
    return BatchHeader(
        batch.base_offset,
        batch.size_bytes,
        batch.epoch,
        0,
        0,
        batch.count - 1,
        0,
        0,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.count,
    )


def extend_digest(digest: bytes, batch: Batch) -> bytes:
    """The chained digest of a log, one batch further."""
    words = f"{batch.base_offset} {batch.count} {batch.epoch} {batch.value}"
    return zlib.crc32(digest + words.encode()).to_bytes(4, "big")


def digest_of(batches: Iterable[Batch], digest: bytes = b"") -> bytes:
    for batch in batches:
        digest = extend_digest(digest, batch)
    return digest or b"\0"


class Died(Exception):
    """The machine stops just now."""

    def __init__(self, disk: Disk, is_power_cut: bool) -> None:
        super().__init__()
        self.disk = disk
        self.is_power_cut = is_power_cut


class DiskFailed(Exception):
    """An operation that the disk refused."""


@dataclass(slots=True)
class DiskFile:
    cells: list[Batch | Hole] = field(default_factory=list)
    flushed: int = 0
    """So many cells are on the disk for sure."""
    is_named: bool = False
    """Its name is, too."""
    is_ahead: bool = False
    """It was made for a roll that may turn out to be another node's: until that is confirmed it has no name of its own,
    and a start throws it away."""
    is_flush_lost: bool = False
    """A flush failed: in this life no other one proves anything."""

    @property
    def size_bytes(self) -> int:
        return sum(cell.size_bytes for cell in self.cells)

    def seen_offset(self, key: SegmentKey) -> int:
        """Below it batches were written, as the bytes show: above the end of the whole ones where some are damaged, or
        lie behind something that is none."""
        whole = self.whole(key)
        end = whole[-1].end_offset if whole else key.base_offset
        rest, seen = self.cells[len(whole) :], end
        for cell in rest:
            if isinstance(cell, Batch) and cell.epoch == key.epoch and cell.base_offset >= seen:
                seen = cell.end_offset
        return seen

    _read: tuple[list[Batch | Hole], int, Batch | Hole, list[Batch]] | None = None
    """What was read last: of which cells, how many, the last one of them, and what was found. Whoever changes what
    is there, or takes some away, makes new cells."""

    def whole(self, key: SegmentKey) -> list[Batch]:
        """The whole batches from its start on. Not to be changed."""
        cells, read = self.cells, self._read
        if not cells:
            return []
        if read is not None and read[0] is cells and read[1] == len(cells) and read[2] is cells[-1]:
            return read[3]
        found = self._read_all(key)
        self._read = cells, len(cells), cells[-1], found
        return found

    def _read_all(self, key: SegmentKey) -> list[Batch]:
        found: list[Batch] = []
        offset = key.base_offset
        for cell in self.cells:
            if not isinstance(cell, Batch) or cell.base_offset != offset or cell.epoch != key.epoch:
                break
            found.append(cell)
            offset = cell.end_offset
        return found


@dataclass
class Disk:
    node_id: int
    storage: int = 1
    """Another one: the disk is new."""
    files: dict[SegmentKey, DiskFile] = field(default_factory=dict)
    sealed: dict[SegmentKey, None] = field(default_factory=dict)
    """Segments whose index block is beside the file."""
    tables: dict[SegmentKey, Producers] = field(default_factory=dict)
    """Of producers at the ends of segments, in those index blocks."""
    led_to_the_end: set[SegmentKey] = field(default_factory=set)
    """Segments whose index block their leader wrote here, before it asked for the seal."""
    set_aside: int = 0
    checkpoints: dict[SegmentKey, list[CheckpointClaim]] = field(default_factory=dict)
    """Newest last; a power cut may take the newest."""
    clean: tuple[int, dict[ShardKey, int]] | None = None
    """The life that stopped in order, and the epochs in doubt."""
    boot: int = 1
    """Of the machine: another one says that its memory is gone."""
    fences: dict[SegmentKey, int] = field(default_factory=dict)
    """Promises, flushed."""
    seen: dict[SegmentKey, int] = field(default_factory=dict)
    """Of copies that were found damaged: below which offset they held batches. Flushed."""
    ends_in_memory: dict[SegmentKey, int] = field(default_factory=dict)
    """Up to which offset each file was written, in memory that outlives the process and not the boot."""
    starts: tuple[str, ...] = ()
    """Which starts may have begun the last life here; flushed, and written at `starts_place`."""
    place: int = 0
    """Which directory this is: a copy is another one."""
    starts_place: int = 0
    booted: tuple[int, int] = (0, 0)
    """Storage and boot of the last life that began here."""
    dies_in: int = -1
    """Operations until the machine stops; -1: not of itself."""
    dies_of_power: bool = False
    on_written: Callable[..., None] = lambda *_, **__: None
    on_removed: Callable[[int, SegmentKey], None] = lambda *_: None
    is_full: bool = False
    fails_flushes: bool = False
    hung_since_ms: int = 0
    hangs_until_ms: int = 0
    """Until then no flush returns; what is written stays in the page cache, and can be read."""
    slow_ms: int = 0
    """Each flush takes so much longer."""
    operations: int = 0

    def hang(self, now_ms: int, lasting_ms: int) -> None:
        if self.hangs_until_ms <= now_ms:
            self.hung_since_ms = now_ms
        self.hangs_until_ms = max(self.hangs_until_ms, now_ms + lasting_ms)

    def touch(self) -> None:
        """Before each operation."""
        self.operations += 1
        if self.dies_in == 0:
            self.dies_in = -1
            raise Died(self, self.dies_of_power)
        if self.dies_in > 0:
            self.dies_in -= 1

    @property
    def has_lost_a_flush(self) -> bool:
        """In this life of its node."""
        return any(file.is_flush_lost for file in self.files.values())

    def note_start(self, start_id: str) -> tuple[str, ...]:
        """Returns: which starts before it may have begun the last life, as far as this directory can show."""
        self.touch()
        past = self.starts if self.starts_place == self.place else ()
        self.starts, self.starts_place = (*past, start_id), self.place
        return past

    def note_damage(self, key: SegmentKey, seen_offset: int) -> None:
        self.touch()
        self.seen[key] = max(seen_offset, self.seen.get(key, -1))

    def written_offset(self, key: SegmentKey) -> int:
        """Below it the last lives wrote batches, whatever the file has now; -1: not known."""
        return self.ends_in_memory.get(key, -1)

    def note_life(self, start_id: str) -> None:
        self.touch()
        self.starts, self.starts_place = (start_id,), self.place

    # Files ------------------------------------------------------------------------------------------------------------
    def make(self, key: SegmentKey, *, is_ahead: bool = False) -> None:
        """A file with nothing but its header; what was made ahead makes way."""
        self.touch()
        if self.is_full:
            raise DiskFailed("no space left")
        before = self.files.get(key)
        if before is not None and before.cells and not before.is_ahead:
            raise DiskFailed("it holds batches: nothing is written over them")
        self.files[key] = DiskFile(is_ahead=is_ahead)
        self.ends_in_memory.pop(key, None)

    def append(self, key: SegmentKey, batches: list[Batch], *, as_leader: bool = False) -> None:
        if self.is_full:
            raise DiskFailed("no space left")
        cells = self.files[key].cells
        try:
            self.touch()
        except Died:
            some = batches[: len(batches) // 2]
            cells += some
            cells.append(Hole(batches[-1].size_bytes // 2 + 1))
            self.on_written(self.node_id, key, some, as_leader=as_leader)
            raise
        cells += batches
        self.ends_in_memory[key] = batches[-1].end_offset
        self.on_written(self.node_id, key, batches, as_leader=as_leader)

    def flush(self, key: SegmentKey) -> bool:
        """Flush the file and its name. False: the flush failed, and the content of the disk is unknown."""
        self.touch()
        file = self.files[key]
        if self.fails_flushes or file.is_flush_lost:
            file.is_flush_lost = True
            return False
        file.flushed, file.is_named = len(file.cells), True
        return True

    def name(self, key: SegmentKey) -> None:
        """Durability: the name of a file."""
        self.touch()
        self.files[key].is_named = True

    def truncate(self, key: SegmentKey, cells: int) -> None:
        self.touch()
        file = self.files[key]
        file.cells = file.cells[:cells]
        file.flushed = min(file.flushed, cells)

    def remove(self, key: SegmentKey) -> None:
        self.touch()
        self.on_removed(self.node_id, key)
        self.files.pop(key, None)
        self.sealed.pop(key, None)
        self.tables.pop(key, None)
        self.led_to_the_end.discard(key)
        self.checkpoints.pop(key, None)
        self.seen.pop(key, None)
        self.ends_in_memory.pop(key, None)

    # Checkpoints ------------------------------------------------------------------------------------------------------
    def checkpoint(self, key: SegmentKey, claim: CheckpointClaim) -> None:
        self.touch()
        self.checkpoints.setdefault(key, []).append(claim)

    def revoke(self, keys: Iterable[SegmentKey]) -> None:
        self.touch()
        for key in keys:
            self.checkpoints.pop(key, None)

    # What befalls it ------------------------------------------------------------------------------------------------
    def restarted(self) -> None:
        """A process begins: what the one before wrote is there."""
        for file in self.files.values():
            file.is_flush_lost = False  # a start copies such a file before it opens it

    def power_cut(self, rng: Random) -> None:
        self.restarted()
        self.boot += 1
        self.ends_in_memory.clear()
        for key in list(self.files):
            file = self.files[key]
            if not file.is_named and rng.random() < 0.7:
                del self.files[key]
                continue
            unflushed = len(file.cells) - file.flushed
            if unflushed:
                kept = file.flushed + rng.randrange(unflushed + 1)
                rest = file.cells[kept:]
                file.cells = file.cells[:kept]
                if rest and rng.random() < 0.4:
                    file.cells.append(Hole(rest[0].size_bytes))
                    if rng.random() < 0.5:
                        file.cells += rest[1:]  # pages are written in any order
            file.flushed = len(file.cells)
        for key in list(self.checkpoints):
            claims = self.checkpoints[key]
            del claims[rng.randrange(len(claims) + 1) :]
            if not claims:
                del self.checkpoints[key]

    def wipe(self) -> None:
        self.storage += 1
        self.place += 1
        self.boot += 1
        self.files.clear()
        self.fences.clear()
        self.seen.clear()
        self.ends_in_memory.clear()
        self.sealed.clear()
        self.tables.clear()
        self.led_to_the_end.clear()
        self.checkpoints.clear()
        self.clean = None
